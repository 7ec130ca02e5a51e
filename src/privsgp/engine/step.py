"""One step on a GPU, for a simulation whose nodes are all here: the lines of `PushSum.step`, with fewer launches.

Lines 6 and 7 of a small model are a hundred little kernels, whose launches would take longer than they do: they are
recorded once as a CUDA graph and replayed. Lines 8 to 14 are one kernel (`privsgp.kernels.push`). Nothing here waits
for the device, and buffers are allocated once.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import numpy as np
import torch

from privsgp.algorithms import Drawn, State
from privsgp.algorithms.push_sum import PushSum
from privsgp.gradient.rules import Ruled

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from privsgp.graph import Graph
    from privsgp.privacy.noise import Keyed

    Announce = Callable[[int, Tensor], int]

# A receiver draws its senders' noise again: beyond a few of them, to write messages down is cheaper.
_MOST_SENDERS = 4
# Above so many weights the kernels take longer than their launches, and a graph would only hold memory.
_MOST_RECORDED = 1 << 25
_WARM_UP = 3


def suits(algorithm: PushSum, graph: Graph, x: Tensor) -> bool:
    """Tell whether `OnDevice` can take the steps of an algorithm."""
    if x.device.type != "cuda" or x.dtype != torch.float32 or importlib.util.find_spec("triton") is None:
        return False
    if graph.period is None or type(algorithm).step is not PushSum.step or algorithm.block.steering is not None:
        return False
    return all(np.bincount(graph.edges(k).target).max() <= _MOST_SENDERS for k in range(graph.period))


class OnDevice:
    """Takes steps as `PushSum.step` does.

    `announce(k, x)` is called before the messages of step k exist and returns the attempt they are made at. Each call
    overwrites the z of the state before, and its x at the next but one.
    """

    def __init__(self, algorithm: PushSum, graph: Graph, source: Keyed, like: Tensor, announce: Announce) -> None:
        self.algorithm, self.block, self.graph, self.announce = algorithm, algorithm.block, graph, announce
        small = like.numel() <= _MOST_RECORDED and isinstance(self.block.gradient, Ruled)
        self.direction = Recorded(algorithm) if small else algorithm.direction
        self._key = source.philox_key(like.device)
        self._sigma = torch.tensor([m.sigma for m in self.block.mechanisms], device=like.device)
        self._peers = [_peers(graph, k, like.device) for k in range(graph.period or 1)]
        self._spare: tuple[Tensor, Tensor] | None = None

    def __call__(self, k: int, s: State) -> State:
        """Take step k."""
        from privsgp.kernels.push import push

        batch = self.block.sample(k)  # 5
        g = self.direction(s.z, batch)  # 6-7
        attempt = self.announce(k, s.x)
        x, w = self._spare or (torch.empty_like(s.x), torch.empty_like(s.w))
        source, share = self._peers[k % len(self._peers)]
        push(
            s.x, g, s.w, out=(x, w, s.z), sigma=self._sigma, source=source, share=share, key=self._key,
            step=k, attempt=attempt, gamma=self.block.step_size(k),
        )  # fmt: skip
        self._spare = s.x, s.w
        return State(x, w, s.z)


class Recorded:
    """An algorithm's direction as a CUDA graph, for batches of one pass and for as long as its memory stays in place.

    Assumes: the direction keeps what it remembers in `arrays()`, and changes it in place.
    """

    def __init__(self, algorithm: PushSum) -> None:
        self.algorithm = algorithm
        self._where: tuple[int, ...] = ()
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Drawn
        self._g: Tensor

    def __call__(self, z: Tensor, batch: list[Drawn]) -> Tensor:
        """Return the nodes' gradient estimates [m, d] at z; the next call overwrites them."""
        kept = list(self.algorithm.arrays().values())
        where = tuple(t.data_ptr() for t in (z, *kept))
        if where != self._where:
            self._where, self._calls, self._graph = where, 0, None
        self._calls += 1
        if len(batch) > 1 or self._calls <= _WARM_UP or any(t.device != z.device for t in kept):
            return self.algorithm.direction(z, batch)
        if self._graph is None:
            self._graph = self._record(z, batch[0])
        for place, drawn in zip(self._batch, batch[0], strict=True):
            place.copy_(drawn)
        self._graph.replay()
        return self._g

    def _record(self, z: Tensor, drawn: Drawn) -> torch.cuda.CUDAGraph:
        """Record the launches; recording runs nothing, so the memory is as it was."""
        self._batch = Drawn(drawn.rows.clone(), drawn.mask.clone())
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._g = self.algorithm.direction(z, [self._batch])
        return graph


def _peers(graph: Graph, k: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return who node i hears from, in order, and which shares: both [n, most]; a share of 0 fills up."""
    edges = graph.edges(k)
    rank = np.arange(len(edges.target)) - np.searchsorted(edges.target, edges.target)
    source = np.tile(np.arange(graph.nodes)[:, None], (1, rank.max() + 1))
    share = np.zeros(source.shape, np.float32)
    source[edges.target, rank], share[edges.target, rank] = edges.source, edges.shares(np.float32)
    return torch.from_numpy(source).to(device), torch.from_numpy(share).to(device)
