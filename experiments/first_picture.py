"""The picture on the first page of the documentation, from the JSON of the experiment on shared noise.

A line for each setting, a dot for each way to learn at one certified budget: every site's own noise, noise that pairs
of sites share, all data in one place. Whiskers are standard deviations over seeds.

    python experiments/first_picture.py
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from shared_noise import PARTS, RESULTS

if TYPE_CHECKING:
    from pathlib import Path

PICTURE = RESULTS.with_name("accuracy.svg")
KINDS = {"local": ("own noise", "#e07b39"), "pairwise": ("shared by pairs", "#2f6fb0"), "pooled": ("pooled", "#3a9b6e")}
SHOWN = {
    "mnist": "MNIST, 50 sites, ε = 1",
    "mnist-0.4": "MNIST, 50 sites, ε = 0.4",
    "mnist-mlp": "MNIST, pixels, ε = 1",
    "cifar10": "CIFAR-10, 16 sites, ε = 3",
    "cifar10-1": "CIFAR-10, 16 sites, ε = 1",
    "a9a": "a9a, 16 sites, ε = 0.2 … 2",
}
_INK = "#607d8b"  # readable on light and on dark pages


def values(rows: list[dict[str, Any]]) -> dict[str, dict[str, tuple[float, float]]]:
    """Return mean and standard deviation in percent, by part and kind, of the parts that have all kinds."""
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for row in rows:
        if row["kind"] in KINDS and row["part"] in SHOWN:
            pair = 100 * row["accuracy"]["mean"], 100 * row["accuracy"]["sd"]
            found.setdefault(row["part"], {})[row["kind"]] = pair
    return {part: found[part] for part in PARTS if len(found.get(part, ())) == len(KINDS)}


def draw(found: dict[str, dict[str, tuple[float, float]]], path: Path) -> None:
    """Draw to an SVG whose numbers are text."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "privsgp", "font.family": "sans-serif"}
    figure = Figure(figsize=(7.6, 0.62 * len(found) + 0.7), layout="constrained")
    panels = figure.subplots(len(found), 1, squeeze=False)[:, 0]
    for axis, (part, kinds) in zip(panels, found.items(), strict=True):
        for kind, (mean, sd) in kinds.items():
            label, colour = KINDS[kind]
            axis.errorbar([mean], [0], xerr=[sd], fmt="o", color=colour, markersize=8, capsize=3, label=label)
            place = (mean, 0.25) if kind != "pairwise" else (mean, -0.8)
            axis.annotate(f"{mean:.2f}", place, ha="center", color=colour, fontsize=8)
        low, high = min(mean - sd for mean, sd in kinds.values()), max(mean + sd for mean, sd in kinds.values())
        room = 0.05 * (high - low)
        axis.set(ylim=(-1, 1), yticks=[0], yticklabels=[SHOWN[part]], xlim=(low - room, high + room), xticks=[])
        axis.tick_params(colors=_INK, length=0)
        axis.axhline(0, color=_INK, linewidth=0.5, zorder=0)
        for spine in axis.spines.values():
            spine.set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(KINDS), frameon=False, labelcolor=_INK)
    figure.savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    draw(values(json.loads(RESULTS.read_text())["rows"]), PICTURE)
