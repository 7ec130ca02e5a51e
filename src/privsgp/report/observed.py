"""A picture of a neighbour's view: observers down, sites across, the darker the more is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privsgp.accounting.shown import up
from privsgp.pictures import INK, panes, save

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from privsgp.accounting.observer import View

_NUMBERS = 16  # sites up to which a cell has room for its number


def draw(view: View, guarantee: float, title: str, path: str | Path) -> None:
    """Draw to `path` (.svg, .png or .pdf); the scale ends at the ε that holds against everybody. Needs no display."""
    nodes = len(view.epsilon)
    size = max(4.2, 0.42 * min(nodes, _NUMBERS) + 1.6)
    figure, (axis,) = panes(1, size + 1.2, size)
    shown = axis.imshow(view.epsilon, cmap="Blues", vmin=0, vmax=guarantee)
    axis.set(xlabel="site", ylabel="observer", title=title)
    axis.title.set_color(INK)
    if nodes <= _NUMBERS:
        axis.set(xticks=range(nodes), yticks=range(nodes))
        _write(axis, view, guarantee)
    bar = figure.colorbar(shown, ax=axis)
    bar.set_label(f"ε at δ = {up(view.delta)}; against everybody {up(guarantee, 3)}")
    save(figure, path)


def _write(axis: Axes, view: View, guarantee: float) -> None:
    for i, row in enumerate(view.epsilon.tolist()):
        for j, value in enumerate(row):
            if i != j:
                colour = "white" if value > 0.6 * guarantee else INK
                axis.text(j, i, up(value, 2), ha="center", va="center", fontsize=7, color=colour)
