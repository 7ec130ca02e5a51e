"""What the pages of numbers have in common: a part between two marks, and the commits that its numbers come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


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
    """Say which commits results come from, and on which devices; refuse one that names none."""
    made: dict[tuple[str, str], int] = {}
    for one in told:
        if not one.get("commit"):
            raise SystemExit(f"a result names no commit: {dict(one)!s:.200}; run it again or take it out")
        key = (one["commit"], one.get("device") or "")
        made[key] = made.get(key, 0) + 1
    total = sum(made.values())
    words = [_words(*key, "" if count == total else f" ({count} of {total})") for key, count in sorted(made.items())]
    return "Numbers from " + "; ".join(words) + "." if words else "Not run yet."


def _words(commit: str, device: str, many: str) -> str:
    short = commit if commit.endswith("+") else commit[:12]
    return f"commit `{short}`" + (f" on {device}" if device else "") + many
