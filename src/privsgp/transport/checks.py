"""Whether what arrives can be a model. Messages are noised: a look at them reveals nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from privsgp.errors import Diverged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def wild(rows: Tensor) -> int | None:
    """Return the first row that can be no model: a number in it is not finite, or so large that its square is not."""
    most = math.sqrt(torch.finfo(rows.dtype).max)
    low, high = torch.aminmax(rows)
    if bool(torch.maximum(-low, high) <= most):  # not so where one is not a number
        return None
    return int((rows.abs().amax(1) <= most).logical_not().nonzero()[0])


def refuse_wild(k: int, rows: Tensor, nodes: Sequence[int], whose: str = "") -> None:
    """End the run where a node's row can be no model."""
    row = wild(rows)
    if row is not None:
        finite = bool(rows[row].isfinite().all())
        how = f"holds {float(rows[row].abs().max()):.1g}, too large for a model," if finite else "is not finite"
        raise Diverged(k, f"the message of node {nodes[row]}{whose} {how}")
