"""Write the paper's figures into docs/results.md anew, from what `privsgp reproduce` left beside it.

privsgp reproduce all --out FIGURES --data-dir DATA          # then copy FIGURES/*.json
python experiments/figures_table.py docs/results docs/results.md

Every claim is judged anew by the rule of the code at hand, and every picture drawn anew from its JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pages

from privsgp.files import write_json
from privsgp_research import claims, picture
from privsgp_research.figures import MODES, NAMES, known
from privsgp_research.reproduce import judged

SCALES = ("full", "small")
NOISE = {"published": "published noise", "certified": "certified budget"}

Figures = dict[tuple[str, str, str], dict[str, Any]]


def main() -> None:
    """Judge and draw what is there, and put it between the page's two marks."""
    folder, page = map(Path, sys.argv[1:])
    for path in sorted(folder.glob("*-*.json")):
        told = judged(json.loads(path.read_text()))
        write_json(path, told)
        picture.draw_figure(told, path.with_suffix(".svg"))
    pages.put(page, "figures", written(folder))


def written(folder: Path) -> str:
    """Return a table of all verdicts, and a section for each figure."""
    read = [json.loads(path.read_text()) for path in sorted(folder.glob("*-*.json"))]
    figures = {(one["name"], one["scale"], one["mode"]): one for one in read}
    sections = [section(name, figures, folder.name) for name in NAMES]
    return "\n".join([plain(table(figures)), pages.commits(read), "", plain("\n".join(sections))])


def plain(text: str) -> str:
    """Keep the asterisk of K* an asterisk."""
    return text.replace("K*", "K\\*")


def table(figures: Figures) -> str:
    """Return one line a figure: what the paper says, and whether it holds."""
    columns = [(scale, mode) for scale in SCALES for mode in MODES]
    lines = ["| figure | the paper says | " + " | ".join(f"{s}: {NOISE[m]}" for s, m in columns) + " |"]
    lines.append("|---" * (2 + len(columns)) + "|")
    for name in NAMES:
        cells = [figures.get((name, scale, mode)) for scale, mode in columns]
        words = ["not run" if one is None else ", ".join(claims.stated(one)) + _part(one) for one in cells]
        lines.append(f"| [{name}](#{name}) | {known(name).says} | {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


def _part(one: dict[str, Any]) -> str:
    """Say where not all of a figure was run; its section names what was left out."""
    return " (of the curves run)" if any("left out:" in found for found in claims.stated(one).values()) else ""


def section(name: str, figures: Figures, folder: str) -> str:
    """Return what came out at each scale and in each mode, with a picture of each mode at its largest scale."""
    lines, shown = [f"### {name}", "", f"The paper: {known(name).says}.", ""], dict[str, str]()
    for scale in SCALES:
        for mode in MODES:
            one = figures.get((name, scale, mode))
            if one is None:
                continue
            shown.setdefault(mode, scale)
            lines += [f"- {cell(one, folder)}"]
    pictures = [
        f"![{name}, {NOISE[mode]}, {shown[mode]}]({folder}/{name}-{mode}-{shown[mode]}.svg){{ loading=lazy }}"
        for mode in MODES
        if mode in shown
    ]
    return "\n".join([*lines, "", *pictures, ""])


def cell(one: dict[str, Any], folder: str) -> str:
    """Return a verdict with its numbers."""
    picture = f"{folder}/{one['name']}-{one['mode']}-{one['scale']}.svg"
    spent = [curve["epsilon_certified"] for curve in one["curves"]]
    epsilon = "no finite bound" if None in spent else f"{min(spent):.3g} … {max(spent):.3g}"
    seeds = "one seed" if one["seeds"] == 1 else f"{one['seeds']} seeds"
    told = "; ".join(f"**{verdict}**: {found}" for verdict, found in claims.stated(one).items())
    commits = {curve.get("commit") or one.get("commit") for curve in one["curves"]} - {None}  # some are made later
    made = f"; commit {', '.join(f'`{commit}`' for commit in sorted(commits))}" if commits else ""
    words = f"{told} (certified ε {epsilon}; {seeds}{made})"
    return f"[{one['scale']}, {NOISE[one['mode']]}]({picture}): {words}"


if __name__ == "__main__":
    main()
