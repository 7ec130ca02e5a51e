"""Write the table of all decentralised methods into docs/results.md, from what `privsgp compare` left beside it.

python experiments/comparison_table.py docs/results/comparison docs/results.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pages

RINGS = {"ring-50": "50 nodes", "ring-16": "16 nodes"}


def main() -> None:
    """Put the table between the page's two marks."""
    folder, page = map(Path, sys.argv[1:])
    pages.put(page, "comparison", written(folder))


def written(folder: Path) -> str:
    """Return one line a method, with what it came to on every ring, and where the numbers come from."""
    told = {words: json.loads((folder / f"{name}.json").read_text()) for name, words in RINGS.items()}
    columns = " | ".join(f"{words}: accuracy % | loss | step size" for words in told)
    lines = [f"| method | {columns} | certified ε |", "|---" * (2 + 3 * len(told)) + "|"]
    rings = [{row["algorithm"]: row for row in one["rows"]} for one in told.values()]
    lines += [line(name, [ring[name] for ring in rings]) for name in rings[0]]
    return "\n".join([*lines, "", pages.commits(told.values())])


def line(name: str, rows: list[dict[str, Any]]) -> str:
    """Return a method's line; its ε is the largest of all rings."""
    cells = [
        f"{100 * row['accuracy']['mean']:.2f} ± {100 * row['accuracy']['sd']:.2f} | {row['test_loss']['mean']:.3f} | "
        f"{row['step_size']:.3g}"
        for row in rows
    ]
    spent = [row["epsilon"] for row in rows]
    epsilon = "none" if None in spent else f"{max(spent):.3f}"
    return f"| {name} | {' | '.join(cells)} | {epsilon} |"


if __name__ == "__main__":
    main()
