"""L, b², F⁰ and ‖x⁰‖² of the bound, from data that may be looked at.

As the methods the paper cites do: L from differences of gradients along a trajectory, b² from how far a node's
gradient may be from the mean, F⁰ from the initial loss (f* ≥ 0), G is the clip. Looking at the nodes' own data for
this spends privacy that no accountant here counts: it is refused unless the user says that it may be, and recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch.func import functional_call

from privsgp.errors import Refused
from privsgp.planner.theorems import Constants

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.gradients import PerSample
    from privsgp.planner.rehearsal import Rehearsal

TRAJECTORY, SAMPLES = 16, 256  # steps along which L and b² are looked for, and samples that are looked at


@dataclass(frozen=True)
class Source:
    """Where the samples of a plan come from. `kind` "private" is the nodes' own data."""

    kind: Literal["synthetic", "public", "private"]
    name: str

    @property
    def words(self) -> str:
        """Say it to the user."""
        return {
            "synthetic": "synthetic stand-in data: nothing was spent",
            "public": f"{self.name}, which the configuration declares public: nothing was spent",
            "private": f"{self.name}, the nodes' own data: this spent privacy that no ε here covers",
        }[self.kind]


def permit(source: Source, *, may_spend: bool) -> None:
    """Refuse the nodes' own data unless the user agrees to spend it.

    Guarantee: what passes here without `may_spend` does not depend on any node's samples.
    Assumes: the user is right in calling data public.
    """
    if source.kind == "private" and not may_spend:
        raise Refused(
            f"plan.data = {source.name!r} is the nodes' own data",
            "plan with 'synthetic' or public data, or set plan.may_spend = true: it is recorded, and no ε covers it",
        )


def constants(rehearsal: Rehearsal, clip: float, distance: float, samples: float, *, skewed: bool = False) -> Constants:
    """Estimate the constants for nodes of `samples` samples each, along gradient descent over γK = `distance`.

    `skewed` is for partitions by label, where a node may hold a single class.
    """
    step, x = distance / TRAJECTORY, rehearsal.x0.clone()
    before, smoothness, heterogeneity = _mean(rehearsal, x, clip), 1e-6, 0.0
    for _ in range(TRAJECTORY):
        heterogeneity = max(heterogeneity, _heterogeneity(rehearsal, x, clip, samples, skewed=skewed))
        x = x - step * before
        after = _mean(rehearsal, x, clip)
        smoothness = max(smoothness, float((after - before).norm() / (step * before).norm().clamp(min=1e-12)))
        before = after
    return Constants(smoothness, _initial_loss(rehearsal), heterogeneity, float(rehearsal.x0.double().square().sum()))


def _gradients(rehearsal: Rehearsal, x: Tensor, clip: float, keep: Tensor | None = None) -> PerSample:
    """Return the clipped gradients of a few hundred samples, of those to `keep` among them."""
    inputs, targets = rehearsal.samples.x[:SAMPLES], rehearsal.samples.y[:SAMPLES]
    mask = torch.ones(len(targets), dtype=torch.bool) if keep is None else keep
    g = rehearsal.gradient(x[None], inputs[None], targets[None])
    g.clip_(clip, mask[None])
    return g


def _mean(rehearsal: Rehearsal, x: Tensor, clip: float, keep: Tensor | None = None) -> Tensor:
    count = min(SAMPLES, len(rehearsal.samples.y)) if keep is None else int(keep.sum())
    return _gradients(rehearsal, x, clip, keep).sum()[0] / count


def _heterogeneity(rehearsal: Rehearsal, x: Tensor, clip: float, samples: float, *, skewed: bool) -> float:
    """Return ‖∇f_i − ∇f‖²: for an even partition what chance makes of J samples, for a skewed one that of one class."""
    mean, targets = _mean(rehearsal, x, clip), rehearsal.samples.y[:SAMPLES]
    if not skewed or targets.is_floating_point():
        lengths = _gradients(rehearsal, x, clip).norm().square().mean()
        return max(float(lengths - mean.square().sum()), 0.0) / samples
    return max(float((_mean(rehearsal, x, clip, targets == c) - mean).square().sum()) for c in set(targets.tolist()))


def _initial_loss(rehearsal: Rehearsal) -> float:
    with torch.no_grad():
        outputs = functional_call(rehearsal.model, rehearsal.layout.views(rehearsal.x0), (rehearsal.samples.x,))
        return float(rehearsal.loss(outputs, rehearsal.samples.y).double().mean())
