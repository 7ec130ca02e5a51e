"""The interface of every transport. A new kind is one more file here.

Algorithms and the trainer know this protocol alone; `Trainer._connect` chooses the kind.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch

from privsgp.errors import Diverged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Transport(Protocol):
    """Moves the parameters x and push-sum weights w of this process's nodes to their out-neighbours.

    Methods that most kinds do not need have a default.
    """

    # Every node is in this process: nothing leaves it before a step is over, and one kernel may do `mix` with the step.
    local: ClassVar[bool]
    message_bytes: int  # of one message from one node to another: its numbers and its weight

    def mix(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return this process's rows of (P^k x, P^k w), or of what arrived of them (Algorithm 1, lines 10 to 13).

        The caller owns what it gets: a kind neither writes to it later nor keeps it.

        Assumes: what is in x is noted in the ledgers, unless the kind is `local`.
        """

    def messages(self, k: int) -> int:
        """Count the messages from this process's nodes to other nodes at step k."""

    def arrays(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold besides x and w; it is read back into the same tensors."""
        return {}

    def gather(self, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return all nodes' x and w where the run has ended: in process 0, and None elsewhere."""
        return x, w


def refuse_wild(k: int, rows: Tensor, nodes: Sequence[int], whose: str = "") -> None:
    """End the run where a row can be no model: a number in it is not finite, or so large that its square is not."""
    most = math.sqrt(torch.finfo(rows.dtype).max)
    low, high = torch.aminmax(rows)
    if not bool(torch.maximum(-low, high) <= most):  # so as well where one is not a number
        row = int((rows.abs().amax(1) <= most).logical_not().nonzero()[0])
        finite = bool(rows[row].isfinite().all())
        how = f"holds {float(rows[row].abs().max()):.1g}, too large for a model," if finite else "is not finite"
        raise Diverged(k, f"the message of node {nodes[row]}{whose} {how}")
