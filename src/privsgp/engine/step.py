"""One step on a GPU, where all nodes are here: the lines of `PushSum.step`, with fewer launches.

Lines 6 and 7 of a small model are a hundred little kernels, whose launches would take longer than they do: they are
recorded once as a CUDA graph and replayed. Lines 8 to 14 of a simulation are one kernel (`privsgp.kernels.push`), with
secret noise, which costs more and is drawn once, two (`privsgp.kernels.chacha`).
Nothing there waits for the device; buffers are allocated once. The events are those of `PushSum.step`, but for mixing,
which is the kernel's: `Pushed` has its bytes counted.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

import numpy as np
import torch

from privsgp.algorithms import Drawn, Pushed, Release, State
from privsgp.algorithms.push_sum import PushSum
from privsgp.devices import runs_on
from privsgp.randomness.noise import Keyed, Secure

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

    from privsgp.algorithms import Step
    from privsgp.algorithms.block import Direction, Kept
    from privsgp.graph import Graph

    _Push = Callable[[int, State, Tensor, tuple[Tensor, Tensor, Tensor], Tensor, Tensor], None]

# A receiver draws its senders' noise again: beyond a few of them, to write messages down is cheaper.
_MOST_SENDERS = 4
_WARM_UP = 3
_LOG = logging.getLogger(__name__)


def chosen(algorithm: PushSum, graph: Graph, source: Keyed | Secure, x: Tensor) -> Callable[[int, State], Step]:
    """Return whose steps are driven on x's device, where a kernel may draw the noise from `source`."""
    if not _suits(algorithm, graph, x):
        return algorithm.step
    from privsgp.randomness import on_device

    if isinstance(source, Keyed):
        return _OnDevice(algorithm, graph, _seeded(algorithm, source, x), x).step
    noised = all(m.sigma for m in algorithm.block.mechanisms) and x.shape[1] < on_device.LONGEST
    return _OnDevice(algorithm, graph, _secret(algorithm, source, x), x).step if noised else algorithm.step


def _suits(algorithm: PushSum, graph: Graph, x: Tensor) -> bool:
    """Tell whether `_OnDevice` can take the steps of an algorithm."""
    block, one_sigma = algorithm.block, all(len(m.kinds) == 1 for m in algorithm.block.mechanisms)  # for all steps
    plain = type(algorithm).step is PushSum.step and block.update_rule is None and graph.period is not None
    if not (runs_on(x) and x.dtype == torch.float32 and one_sigma and plain and graph.period):
        return False
    return all(np.bincount(graph.edges(k).target).max() <= _MOST_SENDERS for k in range(graph.period))


class _OnDevice:
    """Takes steps as `PushSum.step` does. Each overwrites the z of the state before, and its x at the next but one.

    `push` does lines 8 to 14: it writes the next (x, w, z), and may overwrite the state's own x.
    """

    def __init__(self, algorithm: PushSum, graph: Graph, push: _Push, like: Tensor) -> None:
        self.algorithm, self.push = algorithm, push
        period = range(graph.period or 1)
        self._peers = [tuple(torch.from_numpy(a).to(like.device) for a in peers(graph, k)) for k in period]
        self._next: tuple[Tensor, Tensor] | None = None

    def step(self, k: int, s: State) -> Step:
        """Take step k."""
        g = self.algorithm.recorded(s.z, self.algorithm.block.random.sample(k))  # 5-7
        yield Release(s.x)  # before the messages exist: their bytes never come to the host, and have no hash
        x, w = self._next or (torch.empty_like(s.x), torch.empty_like(s.w))
        self.push(k, s, g, (x, w, s.z), *self._peers[k % len(self._peers)])  # 8-14
        yield Pushed()
        self._next = s.x, s.w
        return State(x, w, s.z)


def _seeded(algorithm: PushSum, source: Keyed, like: Tensor) -> _Push:
    """Return how a simulation pushes: noise is drawn once for each receiver, in the kernel that mixes."""
    from privsgp.kernels.push import push
    from privsgp.randomness.on_device import philox_key

    block, key = algorithm.block, philox_key(source.seed, like.device)
    sigma = torch.tensor([m.sigma for m in block.mechanisms], device=like.device)
    return lambda k, s, g, out, senders, share: push(
        s.x, g, s.w, out=out, sigma=sigma, source=senders, share=share, key=key, step=k, gamma=block.step_size(k)
    )


def _secret(algorithm: PushSum, source: Secure, like: Tensor) -> _Push:
    """Return how secret noise is pushed: it is added to g in float64, and rounded to its grid, before all else."""
    from privsgp.kernels.push import mix
    from privsgp.randomness.on_device import levels, step_

    block = algorithm.block
    known = levels([m.sigma for m in block.mechanisms], like.device)

    def push(k: int, s: State, g: Tensor, out: tuple[Tensor, Tensor, Tensor], senders: Tensor, share: Tensor) -> None:
        if g.dtype != torch.float64 or not g.is_contiguous() or not s.x.is_contiguous():
            raise RuntimeError(f"an estimate in {g.dtype} where noise is secret, or rows apart: report this")
        step_(s.x, g, source, range(len(g)), k, levels=known, step_size=block.step_size(k))  # all nodes are here
        mix(s.x, s.w, out=out, source=senders, share=share)

    return push


class Recorded:
    """A direction as a CUDA graph, for batches of one pass and for as long as its memory stays in place.

    A graph keeps the memory of a step for itself. If this does not fit into memory together with a step of two passes,
    nothing is recorded: such steps hide their launches.

    Assumes: the direction keeps what it remembers in `kept()`, and changes it in place.
    """

    def __init__(self, direction: Direction, kept: Kept) -> None:
        self._direction, self._kept = direction, kept
        self._where: tuple[int, ...] = ()
        self._calls = 0
        self._fits = True
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Drawn
        self._g: Tensor

    def __call__(self, z: Tensor, batch: list[Drawn]) -> Tensor:
        """Return the nodes' gradient estimates [m, d] at z; the next call overwrites them."""
        kept = list(self._kept().values())
        where = tuple(t.data_ptr() for t in (z, *kept))
        if where != self._where:
            self._where, self._calls, self._graph = where, 0, None
            self._fits = all(t.device == z.device for t in kept)
        self._calls += 1
        if len(batch) == 1 and self._calls > _WARM_UP and self._fits and self._graph is None:
            self._graph = self._record(z, batch[0]) if _twice_a_step_fits() else None
            self._fits = self._graph is not None
        if len(batch) > 1 or self._graph is None:
            return self._direction(z, batch)
        for buffer, drawn in zip(self._batch, batch[0], strict=True):
            buffer.copy_(drawn)
        self._graph.replay()
        return self._g

    def _record(self, z: Tensor, drawn: Drawn) -> torch.cuda.CUDAGraph | None:
        """Record the launches, or return None where that cannot be; nothing is run, so the memory is as it was."""
        self._batch = Drawn(drawn.rows.clone(), drawn.mask.clone())
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(z.device)  # type: ignore[no-untyped-call]
        try:
            with warnings.catch_warnings(), torch.cuda.graph(graph, stream=stream):
                warnings.filterwarnings("error", "The CUDA Graph is empty")  # it would replay nothing
                self._g = self._direction(z, [self._batch])
        except (RuntimeError, UserWarning) as error:
            _LOG.info("steps are not recorded: %s", error)
            return None
        return graph


def _twice_a_step_fits() -> bool:
    """Tell whether twice the memory that steps have taken at most is free; it is asked after a few of them."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return 2 * (torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()) <= torch.cuda.mem_get_info()[0]


def peers(graph: Graph, k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return who node i hears from, in order, and which shares: both [n, most]; a share of 0 fills up."""
    edges = graph.edges(k)
    rank = np.arange(len(edges.target)) - np.searchsorted(edges.target, edges.target)
    source = np.tile(np.arange(graph.nodes)[:, None], (1, rank.max() + 1))
    share = np.zeros(source.shape, np.float32)
    source[edges.target, rank], share[edges.target, rank] = edges.source, edges.shares(np.float32)
    return source, share
