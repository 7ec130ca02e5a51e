"""Pictures of one run for a notebook: metrics over the steps, the ROC curve, calibration."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _COLOURS = "#263238", ("#2f6fb0", "#e07b39", "#3a9b6e")
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
        try:
            self.figure.savefig(path, dpi=150)
        except (OSError, ValueError) as error:
            raise Refused(f"the picture {str(path)!r} cannot be written: {error}", "give a .png in a folder") from error

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.figure.savefig(file, format="png", dpi=110)
        return file.getvalue()


def drawn(summary: dict[str, Any], rows: Sequence[dict[str, Any]]) -> Figure:
    """Return a figure with a panel for each thing that is known."""
    from matplotlib.figure import Figure

    panels = [name for name, keys in _CURVES.items() if any(row.get(key) is not None for row in rows for key in keys)]
    panels += [name for name in ("roc", "calibration") if summary.get(name)]
    figure = Figure(figsize=(4.2 * max(1, len(panels)), 3.4), layout="constrained", facecolor="white")
    for name, axis in zip(panels, figure.subplots(1, max(1, len(panels)), squeeze=False).flat, strict=False):
        if name in _CURVES:
            _over_steps(axis, name, rows)
        else:
            _against_diagonal(axis, name, summary[name])
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    return figure


def _over_steps(axis: Axes, name: str, rows: Sequence[dict[str, Any]]) -> None:
    for colour, (key, label) in zip(_COLOURS, _CURVES[name].items(), strict=False):
        points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
        if points:
            axis.plot(*zip(*points, strict=True), color=colour, label=label, linewidth=1.8)
    axis.set(title=name, xlabel="step")
    axis.legend(frameon=False, fontsize=8)


def _against_diagonal(axis: Axes, name: str, points: Sequence[Sequence[float]]) -> None:
    axis.plot([0, 1], [0, 1], color=_INK, linestyle=":", linewidth=1)
    axis.plot([p[0] for p in points], [p[1] for p in points], color=_COLOURS[0], linewidth=1.8)
    words = ("false positive rate", "true positive rate") if name == "roc" else ("confidence", "how often right")
    axis.set(title="ROC" if name == "roc" else name, xlabel=words[0], ylabel=words[1])
