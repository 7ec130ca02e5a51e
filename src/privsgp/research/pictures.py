"""What all pictures by matplotlib have in common: colours, bare axes, and files that are the same bytes again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from privsgp.errors import Refused

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#2f6fb0", "#e07b39", "#3a9b6e", "#b5478a", "#8a6fd1", "#c9a227", "#5aa7b8", "#7a5c45")
INK = "#263238"


def panes(count: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure of this size, in inches, and its axes side by side; needs no display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    axes: list[Axes] = list(figure.subplots(1, count, squeeze=False).flat)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: Figure, path: str | Path, dpi: int = 150) -> None:
    """Write a picture (.png, .pdf or .svg); the same picture is the same bytes."""
    from matplotlib import rc_context

    try:
        with rc_context({"svg.hashsalt": "privsgp", "svg.fonttype": "none"}):
            figure.savefig(path, dpi=dpi, metadata={"Date": None} if Path(path).suffix == ".svg" else None)
    except (OSError, ValueError) as error:
        raise Refused(
            f"the picture {str(path)!r} cannot be written: {error}", "give a .png in a folder that exists"
        ) from error
