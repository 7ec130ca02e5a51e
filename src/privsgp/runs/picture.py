"""Pictures of one run for a notebook: metrics over the steps, the ROC curve, calibration."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from privsgp.pictures import COLOURS, INK, panes, save

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CURVES = {
    "accuracy": {"test_accuracy": "average model", "worst_node_accuracy": "worst site"},
    "loss": {"test_loss": "test", "train_loss": "training"},
}


class Picture:
    """A matplotlib figure that a notebook shows by itself; `figure` is there to be changed."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure

    def save(self, path: str | Path) -> None:
        """Write it to a .png, .svg or .pdf file."""
        save(self.figure, path)

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.figure.savefig(file, format="png", dpi=110)
        return file.getvalue()


def drawn(summary: dict[str, Any], rows: Sequence[dict[str, Any]]) -> Figure:
    """Return a figure with a panel for each thing that is known."""
    panels = [name for name, keys in _CURVES.items() if any(row.get(key) is not None for row in rows for key in keys)]
    panels += [name for name in ("roc", "calibration") if summary.get(name)]
    count = max(1, len(panels))
    figure, axes = panes(count, 4.2 * count, 3.4)
    for name, axis in zip(panels, axes, strict=False):
        if name in _CURVES:
            _over_steps(axis, name, rows)
        else:
            _against_diagonal(axis, name, summary[name])
    return figure


def _over_steps(axis: Axes, name: str, rows: Sequence[dict[str, Any]]) -> None:
    for colour, (key, label) in zip(COLOURS, _CURVES[name].items(), strict=False):
        points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
        if points:
            axis.plot(*zip(*points, strict=True), color=colour, label=label, linewidth=1.8)
    axis.set(title=name, xlabel="step")
    axis.legend(frameon=False, fontsize=8)


def _against_diagonal(axis: Axes, name: str, points: Sequence[Sequence[float]]) -> None:
    axis.plot([0, 1], [0, 1], color=INK, linestyle=":", linewidth=1)
    axis.plot([p[0] for p in points], [p[1] for p in points], color=COLOURS[0], linewidth=1.8)
    words = ("false positive rate", "true positive rate") if name == "roc" else ("confidence", "how often right")
    axis.set(title="ROC" if name == "roc" else name, xlabel=words[0], ylabel=words[1])
