"""Lines 6 to 9 for some nodes at a time, on a CPU where all nodes are here: what they need stays small and near.

A node's gradient, table and noise want nothing of the others', so that every core can take nodes of its own from the
samples to the moved x. Threads that share out each operation instead wait for each other hundreds of times a step.
The bits are the same: `gradients.product`.
"""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING

import torch

from privsgp.devices import device_of
from privsgp.gradients.rules.ruled import Ruled

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


def can_be_parted(gradient: Stacked, inputs: object, device: torch.device) -> bool:
    """Tell whether the gradients of some nodes are those of all, to the bit, and can be taken by several threads.

    Grouped convolutions are one operation for all nodes, and what has no rule is the user's own code.
    """
    ruled = isinstance(gradient, Ruled) and not gradient.samples_first
    return ruled and isinstance(inputs, torch.Tensor) and device_of(device).in_host_memory


class Lent:
    """The same gradients for several threads: each takes a copy, which remembers what passes through its layers."""

    def __init__(self, gradient: Stacked, threads: int) -> None:
        self.layout: Layout = gradient.layout
        self._free = [gradient, *(_twin(gradient) for _ in range(threads - 1))]

    def __call__(self, z: Tensor, inputs: Tensor, targets: Tensor, keys: Tensor | None = None) -> PerSample:
        """Return the gradients of model z[i] on inputs[i, j]."""
        gradient = self._free.pop()
        try:
            return gradient(z, inputs, targets, keys)
        finally:
            self._free.append(gradient)


def _twin(gradient: Stacked) -> Stacked:
    """Copy the layers, and none of the numbers that do not change."""
    constants = [t for t in _tensors(gradient) if not t.requires_grad]
    return copy.deepcopy(gradient, {id(t): t for t in constants})


def _tensors(gradient: Stacked) -> list[Tensor]:
    if not isinstance(gradient, Ruled):
        return []
    frozen = [value for layer in gradient.layers for value in layer.frozen.values()]
    return [*gradient.model.parameters(), *gradient.model.buffers(), *frozen]
