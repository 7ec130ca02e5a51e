"""Write the table of docs/results.md anew from the figures beside it.

privsgp reproduce all --out FIGURES --data-dir DATA          # then copy FIGURES/*.json, *.png and *.svg
python experiments/figures_table.py docs/results docs/results.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from privsgp.experiments import claims

BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"


def main() -> None:
    """Put the table between its two marks."""
    folder, page = map(Path, sys.argv[1:])
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(before + BEGIN + "\n" + table(folder) + "\n" + END + after)


def table(folder: Path) -> str:
    """Return one line a figure and scale: what the paper says, what came out in each mode."""
    told = [
        json.loads(path.read_text())
        for path in sorted(folder.glob("*-small.json")) + sorted(folder.glob("*-full.json"))
    ]
    found: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for one in told:
        found.setdefault((one["name"], one["scale"]), {})[one["mode"]] = one
    lines = ["| figure | the paper says | published noise | certified budget |", "|---|---|---|---|"]
    for (name, scale), modes in found.items():
        says = next(iter(modes.values()))["paper"]
        cells = [cell(folder, modes.get(mode)) for mode in ("published", "certified")]
        lines.append(f"| {name}, {scale} | {says} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cell(folder: Path, one: dict[str, Any] | None) -> str:
    """Return the verdict with its numbers, linked to the picture."""
    if one is None:
        return "not run"
    picture = f"{folder.name}/{one['name']}-{one['mode']}-{one['scale']}.svg"
    spent = [curve["epsilon_certified"] for curve in one["curves"]]
    epsilon = "no finite bound" if None in spent else f"{min(spent):.3g} … {max(spent):.3g}"
    seeds = "one seed" if one["seeds"] == 1 else f"{one['seeds']} seeds"
    return f"[{claims.WORDS[one['holds']]}]({picture}): {one['found']} (certified ε {epsilon}; {seeds})"


if __name__ == "__main__":
    main()
