"""Lines 6 to 9 for some nodes at a time, on a CPU where all nodes are here: what they need stays small and near.

A node's gradient, table and own noise want nothing of the others', so that every core can take nodes of its own from
the samples to the moved x; what nodes share, all threads draw. Threads that share out each operation instead wait for
each other hundreds of times a step. The bits are the same: `gradients.product`.
"""

from __future__ import annotations

import copy
import itertools
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING

import torch

from privsgp.devices import device_of
from privsgp.gradients.rules.ruled import Ruled
from privsgp.threads import one_thread_each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from privsgp.gradients import PerSample, Stacked
    from privsgp.gradients.layout import Layout

_MOST = 32  # nodes of a part: more gain nothing, and take memory


def divided(nodes: int, threads: int) -> Sequence[slice]:
    """Return as many stretches of nodes as threads, or more: of about one length, none of a node alone."""
    count = min(max(threads, -(-nodes // _MOST)), nodes // 2)
    if count < 2 and nodes <= _MOST:
        return ()
    ends = [nodes * i // count for i in range(count + 1)]
    return [slice(start, stop) for start, stop in itertools.pairwise(ends)]


def can_be_parted(gradient: Stacked, device: torch.device) -> bool:
    """Tell whether the gradients of some nodes can be those of all, to the bit, and be taken by several threads.

    Grouped convolutions are one operation for all nodes, and what has no rule is the user's own code.
    """
    ruled = isinstance(gradient, Ruled) and not gradient.samples_first
    return ruled and device_of(device).in_host_memory


def alone_as_together(
    gradient: Stacked, made_up: tuple[Tensor, Tensor], parts: Sequence[slice], batch: int, dtype: torch.dtype
) -> bool:
    """Tell whether nodes by themselves have the bits, for batches of made-up samples, that they have among others.

    Between layers may stand products of the user's own, attention say, that round by their place among others.
    """
    few, nodes = parts[0].stop, parts[1].stop
    number = torch.arange(nodes * batch).view(nodes, batch)
    z = torch.randn(nodes, gradient.layout.dim, generator=torch.Generator().manual_seed(0)).mul_(0.1).to(dtype)
    given = [z, *(t[number % len(t)] for t in made_up), number]
    some = slice(1, 1 + few)  # a node further than where they stand by themselves
    alone = one_thread_each(lambda nodes: gradient(*(t[nodes] for t in given)), [some])[0]
    together = gradient(*given)
    if not torch.equal(together.norm()[some], alone.norm()):  # what they are clipped by
        return False
    pairs = zip(together.pieces, alone.pieces, strict=True)
    factors = [(a.factors(), b.factors()) for a, b in pairs]
    return all(torch.equal(f[some], b[name]) for a, b in factors for name, f in a.items())


class Lent:
    """The same gradients for several threads: each takes a copy, which remembers what passes through its layers.

    The loss, which may be the user's own code and keep what it is given, is not copied, and called by one at a time.
    """

    def __init__(self, gradient: Stacked, threads: int) -> None:
        self.layout: Layout = gradient.layout
        self._free: SimpleQueue[Stacked] = SimpleQueue()  # who finds none waits
        first = _one_at_a_time(gradient)
        for lent in (first, *(_twin(first) for _ in range(threads - 1))):
            self._free.put(lent)

    def __call__(self, z: Tensor, inputs: Tensor, targets: Tensor, keys: Tensor | None = None) -> PerSample:
        """Return the gradients of model z[i] on inputs[i, j]."""
        gradient = self._free.get()
        try:
            return gradient(z, inputs, targets, keys)
        finally:
            self._free.put(gradient)


def _one_at_a_time(gradient: Stacked) -> Stacked:
    """Return the same gradients, whose loss, and that of copies, is called by one thread at a time."""
    if not isinstance(gradient, Ruled):
        return gradient
    guarded, loss, lock = copy.copy(gradient), gradient.loss, threading.Lock()

    def one(outputs: Tensor, targets: Tensor) -> Tensor:  # a function: copies of what has it share it
        with lock:
            return loss(outputs, targets)

    guarded.loss = one
    return guarded


def _twin(gradient: Stacked) -> Stacked:
    """Copy the layers, and none of the numbers that do not change."""
    constants = [t for t in _tensors(gradient) if not t.requires_grad]
    return copy.deepcopy(gradient, {id(t): t for t in constants})


def _tensors(gradient: Stacked) -> list[Tensor]:
    if not isinstance(gradient, Ruled):
        return []
    frozen = [value for layer in gradient.layers for value in layer.frozen.values()]
    return [*gradient.model.parameters(), *gradient.model.buffers(), *frozen]
