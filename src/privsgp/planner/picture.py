"""A picture of a plan: the bound and the noise in the average model against K, one curve per method, K* marked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from privsgp.errors import Refused
from privsgp.planner.record import SHOWN

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from privsgp.planner.choose import Noise
    from privsgp.planner.record import Formula, Plan

_COLOURS = ("#2f6fb0", "#e07b39", "#3a9b6e", "#b5478a")
_INK = "#263238"
_POINTS = 33


def draw(formula: Formula, path: str | Path, plan: Plan | None = None) -> None:
    """Draw to `path` (.png, .pdf or .svg); without a `plan` the bound alone. Needs no display."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5 if plan else 6, 4.4), layout="constrained", facecolor="white")
    axes: list[Axes] = list(figure.subplots(1, 2 if plan else 1, squeeze=False).flat)
    noises: dict[str, Noise] = {formula.network.accountant: formula.noise}
    if plan:
        noises = {c.method.label: c.noise for c in plan.choices}
    _bound(axes[0], formula, noises, plan)
    if plan:
        _noise(axes[1], plan)
    try:
        figure.savefig(Path(path), dpi=150)
    except (OSError, ValueError) as error:
        raise Refused(
            f"the picture {str(path)!r} cannot be written: {error}", "give a .png in a folder that exists"
        ) from error


def _bound(axis: Axes, formula: Formula, noises: dict[str, Noise], plan: Plan | None) -> None:
    """Theorem 1's bound over the K that a plan chooses from, or around K* of the bound."""
    steps = SHOWN if plan else _steps(max(1, formula.steps / 16), formula.steps * 16)
    for colour, (label, noise) in zip(_COLOURS, noises.items(), strict=False):
        axis.plot(steps, [formula.bound(K, noise) for K in steps], color=colour, label=label, linewidth=1.8)
    _dress(axis, "bound on E‖∇f‖² (Theorem 1)", plan.chosen.steps if plan else formula.steps)


def _noise(axis: Axes, plan: Plan) -> None:
    for colour, c in zip(_COLOURS, plan.choices, strict=False):
        axis.plot(SHOWN, plan.noise_curve(c), color=colour, label=c.method.label, linewidth=1.8)
        axis.plot([c.steps], [plan.deviation(c)], "o", color=colour, markersize=6)
    _dress(axis, "noise in the average model, per coordinate", plan.chosen.steps)
    axis.set(yscale="linear", ylim=(0, None))


def _dress(axis: Axes, title: str, best: int) -> None:
    axis.axvline(best, color=_INK, linestyle=":", linewidth=1.2, label=f"K* = {best}")
    axis.set(xscale="log", yscale="log", xlabel="steps K", title=title)
    axis.title.set_color(_INK)
    axis.grid(visible=True, which="major", alpha=0.25)
    axis.legend(frameon=False, fontsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _steps(low: float, high: float) -> list[float]:
    return [low * (high / low) ** (i / (_POINTS - 1)) for i in range(_POINTS)]
