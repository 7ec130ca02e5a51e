"""What nodes do that act one at a time: the tools of an asynchronous algorithm, handed in by the engine.

A node counts its own gradients. Coins, noise and payments go by (node, number), never by the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import Tensor

    from privsgp.algorithms.block import Drawn
    from privsgp.clock import Event


@dataclass(frozen=True)
class Turns:
    """Beside `Block`, whose own tools act on all nodes at once."""

    events: Callable[[int], Iterable[Event]]  # those of step k, in the order in which they happen
    sample: Callable[[Mapping[int, int]], list[Drawn]]  # {node: number}; all other nodes draw nothing
    noise: Callable[[int, int, Tensor], None]  # g += N(0, σ_i² I), in place, for node i's gradient of a number
    average: Callable[[int, int, Tensor], None]  # x_i, x_j ← (x_i + x_j) / 2, in place and at once
    release: Callable[[int, int, Tensor], None]  # pays for what carries that noise, before any of it leaves
