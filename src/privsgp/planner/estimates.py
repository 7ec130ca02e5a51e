"""L, b², F⁰ and ‖x⁰‖² of the bound, from data that may be looked at.

As the methods the paper cites do: L from differences of gradients along a trajectory, b² from how far a node's
gradient may be from the mean, F⁰ from the initial loss (f* ≥ 0), G is the clip. Looking at the nodes' own data for
this would spend privacy that no accountant here counts: `settle` refuses it.

What a run costs besides privacy: messages, the table's memory, and time on this machine.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.func import functional_call

from privsgp.algorithms import ALGORITHMS, Block, Drawn, Exchange, Randomness, State
from privsgp.algorithms.block import EVERYONE
from privsgp.engine.drive import drive, rehearsed
from privsgp.planner.theorems import Constants
from privsgp.randomness.noise import Keyed, add_noise_

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from privsgp.algorithms import Event
    from privsgp.gradients import PerSample
    from privsgp.graph import Graph
    from privsgp.planner.choose import Method
    from privsgp.planner.rehearsal import Rehearsal


TRAJECTORY, SAMPLES = 16, 256  # steps along which L and b² are looked for, and samples that are looked at
_SIGMA = 1e-9  # noise that changes nothing and takes its time
_TRIES = 3  # steps whose fastest counts
FEW = 4  # steps with a model that is too large to rehearse


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
    steps = TRAJECTORY if rehearsal.rehearsed else FEW
    step, x = distance / steps, rehearsal.x0.clone()
    before, smoothness, heterogeneity = None, 1e-6, 0.0
    for _ in range(steps + 1):
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


def table_bytes(rehearsal: Rehearsal, method: Method, samples: Sequence[int]) -> int:
    """Return the memory of all nodes' tables together; 0 for a method without one."""
    block = _block(rehearsal, method, nodes=1, batch=1)
    algorithm = ALGORITHMS[method.algorithm](block, method.settings)
    algorithm.begin(State.start(rehearsal.x0, 1).z)
    table = getattr(algorithm, "table", None)
    return 0 if table is None else round(table.entry_bytes * sum(samples))


def memory_bytes() -> int:
    """Return how much memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def seconds_per_step(rehearsal: Rehearsal, method: Method, nodes: int, batch: float) -> float:
    """Take a few steps with all nodes in this process, on stand-in data, and return the fastest."""
    block = _block(rehearsal, method, nodes, batch=max(1, round(batch)))
    algorithm = ALGORITHMS[method.algorithm](block, method.settings)
    state = State.start(rehearsal.x0, nodes)
    algorithm.begin(state.z)
    took = []
    for k in range(_TRIES):
        started = time.perf_counter()
        state = drive(algorithm.step(k, state), k, _one_neighbour)
        took.append(time.perf_counter() - started)
    algorithm.close()
    return min(took)


def _one_neighbour(k: int, event: Event) -> Any:  # noqa: ANN401
    """Let every node mix with one neighbour."""
    if isinstance(event, Exchange):
        return (event.x + event.x.roll(1, 0)) / 2, event.w
    return rehearsed(k, event)


class _SameRows(Randomness):
    """Nodes that draw the same rows at every step, and a little noise."""

    def __init__(self, nodes: int, index: Tensor) -> None:
        self.nodes, self.source = nodes, Keyed(0)
        self.drawn = Drawn(index.expand(nodes, -1), torch.ones(nodes, len(index), dtype=torch.bool))

    def sample(self, k: int) -> list[Drawn]:
        """Return the same rows."""
        del k
        return [self.drawn]

    def noise(self, k: int, g: Tensor, nodes: slice = EVERYONE) -> None:
        """Add a little noise, which takes as long as any."""
        del nodes
        add_noise_(g, self.source, range(self.nodes), k, sigma=[_SIGMA] * self.nodes)


def _block(rehearsal: Rehearsal, method: Method, nodes: int, batch: int) -> Block:
    """Return nodes that draw the same rows of a few stand-in samples at every step."""
    rows = min(batch, len(rehearsal.samples.y))
    mechanism = ALGORITHMS[method.algorithm].mechanism(
        method.settings, sigma=_SIGMA, batch=float(rows), samples=rows, kappa=0.0
    )

    def place(t: Tensor) -> Tensor:
        return torch.cat([t[:rows], torch.zeros_like(t[:1])]).expand(nodes, -1, *t.shape[1:]).contiguous()

    return Block(
        mechanisms=[mechanism] * nodes,
        inputs=place(rehearsal.samples.x),
        targets=place(rehearsal.samples.y),
        gradient=rehearsal.gradient,
        random=_SameRows(nodes, torch.arange(batch) % rows),
        step_size=lambda _k: 0.0,
    )
