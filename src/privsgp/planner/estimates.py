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


def constants(rehearsal: Rehearsal, clip: float, distance: float, samples: float) -> Constants:
    """Estimate the constants for nodes of `samples` samples each, along gradient descent over γK = `distance`."""
    step, x = distance / TRAJECTORY, rehearsal.x0.clone()
    inputs, targets = rehearsal.samples.x[:SAMPLES], rehearsal.samples.y[:SAMPLES]
    before, smoothness, heterogeneity = None, 1e-6, 0.0
    for _ in range(TRAJECTORY + 1):
        g = rehearsal.gradient(x[None], inputs[None], targets[None])
        g.clip_(clip, torch.ones(1, len(targets), dtype=torch.bool))
        lengths, mean = g.norm(), g.sum()[0] / len(targets)
        heterogeneity = max(heterogeneity, float(lengths.square().mean() - mean.square().sum()) / samples)
        if before is not None:
            moved = (step * before).norm().clamp(min=1e-12)
            smoothness = max(smoothness, float((mean - before).norm() / moved))
        before, x = mean, x - step * mean
    with torch.no_grad():
        outputs = functional_call(rehearsal.model, rehearsal.layout.views(rehearsal.x0), (rehearsal.samples.x,))
        loss = float(rehearsal.loss(outputs, rehearsal.samples.y).double().mean())
    return Constants(smoothness, loss, heterogeneity, float(rehearsal.x0.double().square().sum()))


BYTES = 4  # float32


def bytes_sent_per_node(graph: Graph, dim: int, steps: int) -> int:
    """Return what a node sends on average: x and its float64 weight w, to every out-neighbour at every step."""
    period = graph.period or min(steps, 64)
    messages = sum(len(graph.out_neighbours(k, i)) for k in range(period) for i in range(graph.nodes))
    return round(messages / period / graph.nodes * steps * (dim * BYTES + 8))
