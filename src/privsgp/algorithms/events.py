"""The events of a step. An algorithm's step is a generator: it yields these, and returns the new `State`.

The algorithm computes; a driver records, sends and waits (`privsgp.engine.drive`). Nothing of a node leaves by any
other way, so whoever reads a step sees each of its messages:

    yield Release(x)                    x carries the noise of the step and is now paid for
    x, w = yield Exchange(x, s.w)       lines 10 to 13 of Algorithm 1
    mean = yield ToServer(m, size)      a server averages, and sends the mean back
    yield Meet(i, j, x)                 two nodes send each other their models, and both take the mean
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.algorithms.block import State


class Release(NamedTuple):
    """The messages [m, d] that carry the noise of this step; the driver records them before any of them leaves.

    If nodes act one at a time, `message` [d] is one node's, and carries the noise of its gradient of that number.
    """

    message: Tensor
    node: int | None = None
    number: int = 0


class Exchange(NamedTuple):
    """Send shares of x [m, d] and w [m] to the out-neighbours. The answer is (P^k x, P^k w), which the step owns.

    A step may exchange several times. None of the answers is overwritten later.
    """

    x: Tensor
    w: Tensor


class ToServer(NamedTuple):
    """Send messages [m, d] of `size` bytes each to a server. The answer is their mean [d]."""

    messages: Tensor
    size: int


class Meet(NamedTuple):
    """Let nodes i and j send each other their rows of x. Both become (x_i + x_j) / 2, in place."""

    i: int
    j: int
    x: Tensor


class Pushed(NamedTuple):
    """A kernel of this step has exchanged the messages that were released: the driver counts their bytes."""


Event = Release | Exchange | ToServer | Meet | Pushed
Step = Generator[Event, Any, "State"]
