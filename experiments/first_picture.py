"""The picture on the first page of the documentation, from the JSON of the record table.

A panel for each data set, a line for each ε, a dot for each way to learn at that certified budget: every site's own
noise, noise that pairs of sites share, all data in one place. Records lie evenly at the sites; whiskers are standard
deviations over seeds.

    python experiments/first_picture.py
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import record

if TYPE_CHECKING:
    from pathlib import Path

PICTURE = record.RESULTS.with_name("first.svg")
KINDS = {"local": ("own noise", "#e07b39"), "pairwise": ("shared by pairs", "#2f6fb0"), "pooled": ("pooled", "#3a9b6e")}
SHOWN = {
    "mnist": "MNIST, 50 sites",
    "cifar10": "CIFAR-10, 16 sites",
    "cifar10-synthetic": "CIFAR-10, 16 sites, encoder trained on made-up images",
    "a9a": "a9a, 16 sites",
}
_INK = "#607d8b"  # readable on light and on dark pages

Dots = dict[str, tuple[float, float]]  # mean and standard deviation in percent, by kind


def values(rows: list[dict[str, Any]]) -> dict[str, dict[float, Dots]]:
    """Return the dots by data set and ε; a data set with a hole is left out."""
    found: dict[str, dict[float, Dots]] = {name: {epsilon: {} for epsilon in record.EPSILONS} for name in SHOWN}
    for row in rows:
        if row["data"] in SHOWN and row["kind"] in KINDS and row["partition"] in ("even", None):
            a = row["accuracy"]
            found[row["data"]][row["asked"]][row["kind"]] = 100 * a["mean"], 100 * a["sd"]
    return {name: lines for name, lines in found.items() if all(len(dots) == len(KINDS) for dots in lines.values())}


def draw(found: dict[str, dict[float, Dots]], path: Path) -> None:
    """Draw to an SVG whose numbers are text."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "privsgp", "font.family": "sans-serif"}
    figure = Figure(figsize=(7.6, 1.6 * len(found) + 0.7), layout="constrained")
    for axis, (name, lines) in zip(figure.subplots(len(found), 1, squeeze=False)[:, 0], found.items(), strict=True):
        for height, dots in enumerate(lines.values()):
            axis.axhline(-height, color=_INK, linewidth=0.5, zorder=0)
            for kind, (mean, sd) in dots.items():
                label, colour = KINDS[kind]
                axis.errorbar([mean], [-height], xerr=[sd], fmt="o", color=colour, markersize=7, capsize=3, label=label)
                place = (mean, -height + (0.22 if kind != "pairwise" else -0.48))
                axis.annotate(f"{mean:.2f}", place, ha="center", color=colour, fontsize=7)
        axis.set_title(SHOWN[name], loc="left", color=_INK, fontsize=9)
        axis.set(ylim=(0.4 - len(lines), 0.6), yticks=[-height for height in range(len(lines))])
        axis.set_yticklabels([f"ε = {epsilon:g}" for epsilon in lines])
        axis.margins(x=0.06)
        axis.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.tick_params(colors=_INK, length=0)
        axis.tick_params(axis="x", labelsize=7, pad=1)
        for spine in axis.spines.values():
            spine.set_visible(False)
    figure.axes[-1].set_xlabel("test accuracy, %", color=_INK, fontsize=8)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    first = dict(zip(labels, handles, strict=True))
    figure.legend(first.values(), first, loc="outside upper center", ncols=len(KINDS), frameon=False, labelcolor=_INK)
    figure.savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    draw(values(record.read(record.RESULTS)["rows"]), PICTURE)
