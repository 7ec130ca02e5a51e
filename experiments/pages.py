"""What the pages of numbers have in common: a part between two marks, and the commits that its numbers come from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def asked(about: str | None, *, data: bool = False) -> argparse.Namespace:
    """Read the command line of a script that runs all it has, or writes its page alone."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if data:
        parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--page", type=Path, help="run nothing: write what the JSON file has into this page")
    return parser.parse_args()


def put(page: Path, mark: str, text: str) -> None:
    """Put text between a page's two marks: `<!-- mark -->` and `<!-- end of mark -->`."""
    page.write_text(replaced(page.read_text(), mark, text))


def replaced(whole: str, mark: str, text: str) -> str:
    """Return a page with other text between its two marks; refuse one that has none."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->\n"
    before, found, rest = whole.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"the page has no {begin.strip()} … {end.strip()}")
    return f"{before}{begin}\n{text.strip()}\n\n{end}{after}"


def shown(whole: str, mark: str) -> str:
    """Return what stands between a page's two marks."""
    return whole.partition(f"<!-- {mark} -->\n")[2].partition(f"<!-- end of {mark} -->\n")[0].strip()


def commits(told: Iterable[Mapping[str, Any]]) -> str:
    """Say which commits results come from, on which devices and with which torch; refuse one that names none."""
    made: dict[tuple[str, str, str], int] = {}
    for one in told:
        if not one.get("commit"):
            raise SystemExit(f"a result names no commit: {dict(one)!s:.200}; run it again or take it out")
        torch = (one.get("versions") or {}).get("torch", "").partition("+")[0]
        key = (one["commit"], one.get("device") or "", torch)
        made[key] = made.get(key, 0) + 1
    total = sum(made.values())
    words = [_words(*key, "" if count == total else f" ({count} of {total})") for key, count in sorted(made.items())]
    return "Numbers from " + "; ".join(words) + "." if words else "Not run yet."


def _words(commit: str, device: str, torch: str, many: str) -> str:
    short = commit if commit.endswith("+") else commit[:12]
    parts = [f"commit `{short}`" + (f" on {device}" if device else ""), *([f"torch {torch}"] if torch else [])]
    return ", ".join(parts) + many
