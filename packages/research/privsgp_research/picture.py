"""Pictures of many runs: a line and a band for each method or setting. The same picture is the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from privsgp.accounting.mechanisms import nominal
from privsgp.accounting.shown import span_up
from privsgp_research import claims

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Points = Sequence[Mapping[str, float]]

COLOURS = ("#2f6fb0", "#e07b39", "#3a9b6e", "#b5478a", "#8a6fd1", "#c9a227", "#5aa7b8", "#7a5c45")
INK = "#263238"
_STYLES = ("-", "--", ":")  # the colours again


def draw_comparison(result: dict[str, Any], path: Path) -> None:
    """Draw accuracy, as comparison.json holds it, against steps and, where there is a clock, against virtual time."""
    panels = {"against_steps": "steps", "against_time": "virtual seconds"}
    drawn = [key for key in panels if any(row[key] for row in result["rows"])] or ["against_steps"]
    figure, axes = panes(len(drawn))
    for axis, key in zip(axes, drawn, strict=True):
        lines(axis, {row["algorithm"]: row[key] for row in result["rows"] if row[key]})
        dress(axis, panels[key], "test accuracy")
    save(figure, path)


def draw_figure(result: dict[str, Any], path: Path) -> None:
    """Draw a figure of the paper, as its JSON holds it: loss and accuracy against steps, or accuracy against ε."""
    along = result["curves"][0]["line"]
    figure, axes = panes(1 if along else 2)
    if along:
        by_line: dict[str, list[dict[str, Any]]] = {}
        for c in result["curves"]:
            by_line.setdefault(c["line"], []).append(c)
        points = {_legend(line, on): [{"x": c["x"]} | c["accuracy"] for c in on] for line, on in by_line.items()}
        lines(axes[0], points, marker="o")
        dress(axes[0], "ε, nominal" if nominal(result["mode"]) else "ε, certified", "test accuracy")
    else:
        for axis, key, words in zip(axes, ("loss", "accuracy"), ("training loss", "test accuracy"), strict=True):
            lines(axis, {_legend(c["label"], [c]): c[f"{key}_curve"] for c in result["curves"]})
            dress(axis, "steps", words)
            means = [p["mean"] for c in result["curves"] for p in c[f"{key}_curve"]]
            if means and 0 < 1000 * min(means) < max(means):  # one curve would flatten all others
                axis.set_yscale("log")
    verdict = ", ".join(claims.stated(result))
    figure.suptitle(
        f"{result['name']}, {result['mode']}, {result['scale']}: the claim {verdict}", color=INK, fontsize=11
    )
    save(figure, path)


def _legend(words: str, curves: Sequence[dict[str, Any]]) -> str:
    """Return a label with the certified ε of the curves."""
    found = [c["epsilon_certified"] for c in curves]
    return f"{words} (ε: no finite bound)" if None in found else f"{words} (ε = {span_up(found, 3)})"


def panes(count: int) -> tuple[Figure, list[Axes]]:
    """Return a figure and its axes side by side; needs no display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.4 * count + 0.4, 4.2), layout="constrained", facecolor="white")
    return figure, list(figure.subplots(1, count, squeeze=False).flat)


def lines(axis: Axes, curves: Mapping[str, Points], marker: str = "") -> None:
    """Draw a line through the means and a band of one standard deviation for each curve."""
    for i, (label, points) in enumerate(curves.items()):
        colour, style = COLOURS[i % len(COLOURS)], _STYLES[i // len(COLOURS) % len(_STYLES)]
        x, mean = [p["x"] for p in points], [p["mean"] for p in points]
        axis.plot(x, mean, style, color=colour, label=label, linewidth=1.6, marker=marker, markersize=4)
        low, high = ([p["mean"] + side * p["sd"] for p in points] for side in (-1, 1))
        axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def dress(axis: Axes, x: str, y: str) -> None:
    """Name the axes and take away what is not needed."""
    axis.set(xlabel=x, ylabel=y)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(visible=True, alpha=0.25)
    axis.legend(frameon=False, fontsize=8)


def save(figure: Figure, path: Path) -> None:
    """Write a picture (.png or .svg)."""
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "privsgp", "svg.fonttype": "none"}):
        figure.savefig(path, dpi=100, metadata={"Date": None} if path.suffix == ".svg" else None)
