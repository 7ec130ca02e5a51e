"""A picture of a graph: nodes on a circle, a panel for each step, and all steps of a period together.

What `privsgp graph` prints: the constants of a graph as rows of words and numbers.
"""

from __future__ import annotations

from math import ceil, inf, log
from typing import TYPE_CHECKING

import numpy as np

from privsgp.graph.convergence import constants
from privsgp.pictures import COLOURS, INK, save

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from privsgp.graph.edges import Edges
    from privsgp.graph.sequences import Graph


_ARROWS = 400
"""Above this many lines in a panel, arrow heads hide more than they show."""


def draw(graph: Graph, path: str | Path, *, steps: int | None = None) -> None:
    """Draw the first `steps` steps of `graph` into `path` (.png, .pdf or .svg); needs no display.

    By default that is one period, but at most eight steps, and four when it never repeats. Lines without heads go
    both ways, or are too many for heads.
    """
    shown = steps or min(graph.period or 4, len(COLOURS))
    panels = {"every step" if graph.period == 1 else f"step {k}": [k] for k in range(shown)}
    if len(panels) > 1:
        panels = {"all together": list(range(shown))} | panels
    figure, axes = _figure(len(panels))
    figure.suptitle(_title(graph, shown), color=INK, fontsize=13)
    for axis, (title, together) in zip(axes, panels.items(), strict=False):
        _panel(axis, graph, together, title)
    save(figure, path)


def _figure(panels: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    columns = min(panels, 4 if panels > 6 else 3)
    rows = ceil(panels / columns)
    size = 5.5 if panels == 1 else 3.8
    figure = Figure(figsize=(size * columns, 1.05 * size * rows + 0.4), layout="constrained", facecolor="white")
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.set_axis_off()
    return figure, axes


def _title(graph: Graph, shown: int) -> str:
    nodes = f"{graph.nodes} node{'s' if graph.nodes != 1 else ''}"
    rest = f"period {graph.period}" if graph.period else "never repeats"
    return f"{graph.name}, {nodes}, {rest}" + (f", first {shown} steps" if shown != graph.period else "")


def _panel(axis: Axes, graph: Graph, steps: list[int], title: str) -> None:
    angle = np.pi / 2 - 2 * np.pi * np.arange(graph.nodes) / graph.nodes  # node 0 on top, then clockwise
    places = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    for k in steps:
        _lines(axis, graph.edges(k), places, COLOURS[k % len(COLOURS)])
    axis.scatter(places[:, 0], places[:, 1], s=min(60, 900 / graph.nodes), color=INK, zorder=3)
    for node in range(0, graph.nodes, ceil(graph.nodes / 64)):
        x, y = 1.11 * places[node]
        axis.text(x, y, str(node), ha="center", va="center", color=INK, fontsize=max(5.5, 10 - graph.nodes / 12))
    axis.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
    axis.set_title(title, color=INK, fontsize=10)


def _lines(axis: Axes, edges: Edges, places: NDArray[np.float64], colour: str) -> None:
    from matplotlib.patches import FancyArrowPatch, PathPatch
    from matplotlib.path import Path as Curve

    sent = {(int(i), int(j)) for i, j in zip(edges.source, edges.target, strict=True) if i != j}
    lines = [(i, j) for i, j in sorted(sent) if i < j or (j, i) not in sent]
    look = {"color": colour, "linewidth": np.clip(60 / max(len(lines), 1), 0.3, 1.4)}
    look["alpha"] = 0.85 if len(lines) <= _ARROWS else 0.35
    heads = "-|>,head_width=1.6,head_length=3.2" if len(places) > 24 else "-|>,head_width=2.4,head_length=4.8"
    for i, j in lines:
        curve = Curve([places[i], _bend(places[i], places[j]), places[j]], [Curve.MOVETO, Curve.CURVE3, Curve.CURVE3])
        if (j, i) in sent or len(lines) > _ARROWS:
            axis.add_patch(PathPatch(curve, fill=False, **look))
        else:
            axis.add_patch(FancyArrowPatch(path=curve, arrowstyle=heads, mutation_scale=1, **look))


def _bend(start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.float64]:
    """A control point nearer to the centre the further the hop, so that hops of different length stay apart."""
    middle = (start + end) / 2
    radius = float(np.linalg.norm(middle))
    angle = 2 * np.arccos(min(radius, 1.0))
    inward = 0.4 * radius + 0.6 * (1 - np.sqrt(angle / np.pi))
    control: NDArray[np.float64] = middle * (inward / max(radius, 1e-9))
    return control


def table(graph: Graph, dim: int = 1) -> list[tuple[str, str]]:
    """Rows (label, value) on `graph` for a model of `dim` parameters; refuses a graph that fails `check`."""
    of = constants(graph, dim)
    seen = f" (first {of.horizon} steps)" if of.estimated else ""
    exact = ": agreement becomes exact" if of.spectral_gap == 1 else ""
    return [
        ("graph", graph.name),
        ("nodes", str(graph.nodes)),
        ("period", f"{of.period} step{'s' if of.period != 1 else ''}" if of.period else "none: every step differs"),
        ("messages a node sends per step, at most", str(of.max_out_degree)),
        ("doubly stochastic", "yes: push-sum weights stay 1" if of.doubly_stochastic else "no: push-sum at work"),
        ("B: steps until strongly connected", f"{of.B}{seen}"),
        ("Δ: diameter of those steps together", f"{of.diameter}{seen}"),
        ("ε: smallest share", f"{of.min_share:.4g}"),
        ("λ = 1 − nε^(ΔB)", _below_one(of.lemma.lam, of.lemma.log_one_minus_lam)),
        ("q = λ^(1/(ΔB+1))", _below_one(of.lemma.q, of.lemma.log_one_minus_q)),
        (
            f"bound on C (d = {dim})",
            "none: the lemma needs λ > 0" if of.lemma.log_c == inf else _power_of_ten(of.lemma.log_c),
        ),
        ("spectral gap per step", f"{of.spectral_gap:.4f}{exact}{seen}"),
    ]


def _below_one(value: float, log_rest: float) -> str:
    return f"{value:.4g}" if value < 0.999 else f"1 − {_power_of_ten(log_rest)}"


def _power_of_ten(log_value: float) -> str:
    """A number from its natural logarithm, also where it is beyond floating point."""
    exponent, rest = divmod(log_value / log(10), 1)
    digits = round(10**rest, 2)
    return f"{digits:.3g}e{exponent:+03.0f}" if digits < 10 else f"1e{exponent + 1:+03.0f}"
