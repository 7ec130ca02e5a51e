"""L, b², F⁰ and ‖x⁰‖² of the bound, from data that may be looked at.

As the methods the paper cites do: L from differences of gradients along a trajectory, b² from how far a node's
gradient may be from the mean, F⁰ from the initial loss (f* ≥ 0), G is the clip. Looking at the nodes' own data for
this would spend privacy that no accountant here counts: `settle` refuses it.

Also the bytes that a run sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch.func import functional_call

from privsgp.planner.theorems import Constants

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.gradients import PerSample
    from privsgp.graph import Graph
    from privsgp.planner.rehearsal import Rehearsal


TRAJECTORY, SAMPLES = 16, 256  # steps along which L and b² are looked for, and samples that are looked at


@dataclass(frozen=True)
class Source:
    """Where the samples of a plan come from."""

    kind: Literal["synthetic", "public"]
    name: str

    @property
    def text(self) -> str:
        """Say it to the user."""
        if self.kind == "synthetic":
            return "synthetic stand-in data: nothing was spent"
        return f"{self.name}, which the configuration declares public: nothing was spent"


def constants(rehearsal: Rehearsal, clip: float, distance: float, samples: float, *, skewed: bool = False) -> Constants:
    """Estimate the constants for nodes of `samples` samples each, along gradient descent over γK = `distance`.

    `skewed` is for partitions by label, where a node may hold a single class.
    """
    step, x = distance / TRAJECTORY, rehearsal.x0.clone()
    before, smoothness, heterogeneity = None, 1e-6, 0.0
    for _ in range(TRAJECTORY + 1):
        gradients = _gradients(rehearsal, x, clip)
        lengths, mean = gradients.norm(), gradients.sum()[0] / gradients.norm().numel()
        heterogeneity = max(heterogeneity, _heterogeneity(rehearsal, x, clip, samples, lengths, mean, skewed=skewed))
        if before is not None:
            moved = (step * before).norm().clamp(min=1e-12)
            smoothness = max(smoothness, float((mean - before).norm() / moved))
        before, x = mean, x - step * mean
    with torch.no_grad():
        outputs = functional_call(rehearsal.model, rehearsal.layout.views(rehearsal.x0), (rehearsal.samples.x,))
        loss = float(rehearsal.loss(outputs, rehearsal.samples.y).double().mean())
    return Constants(smoothness, loss, heterogeneity, float(rehearsal.x0.double().square().sum()))


def _gradients(rehearsal: Rehearsal, x: Tensor, clip: float, keep: Tensor | None = None) -> PerSample:
    """Return the clipped gradients of a few hundred samples, of those to `keep` among them."""
    inputs, targets = rehearsal.samples.x[:SAMPLES], rehearsal.samples.y[:SAMPLES]
    mask = torch.ones(len(targets), dtype=torch.bool) if keep is None else keep
    g = rehearsal.gradient(x[None], inputs[None], targets[None])
    g.clip_(clip, mask[None])
    return g


def _heterogeneity(
    rehearsal: Rehearsal, x: Tensor, clip: float, samples: float, lengths: Tensor, mean: Tensor, *, skewed: bool
) -> float:
    """Return ‖∇f_i − ∇f‖²: for an even partition what chance makes of J samples, for a skewed one that of one class."""
    targets = rehearsal.samples.y[:SAMPLES]
    if not skewed or targets.is_floating_point():
        return max(float(lengths.square().mean() - mean.square().sum()), 0.0) / samples
    alike = [targets == c for c in set(targets.tolist())]
    means = [_gradients(rehearsal, x, clip, keep).sum()[0] / int(keep.sum()) for keep in alike]
    return max(float((one - mean).square().sum()) for one in means)


BYTES = 4  # float32


def bytes_sent_per_node(graph: Graph, dim: int, steps: int) -> int:
    """Return what a node sends on average: x and its float64 weight w, to every out-neighbour at every step."""
    period = graph.period or min(steps, 64)
    messages = sum(len(graph.out_neighbours(k, i)) for k in range(period) for i in range(graph.nodes))
    return round(messages / period / graph.nodes * steps * (dim * BYTES + 8))
