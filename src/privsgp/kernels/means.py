"""SAGA's estimate, and the table's mean moved on, in one pass over memory, as a Triton kernel.

The same in torch stands in `algorithms.saga`. Import this module only where there are CUDA and Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 1024


@triton.jit
def _corrected(mean, c, b, J, g, d, BLOCK: tl.constexpr):
    i = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at, inside = i * d + column, column < d
    before, change = tl.load(mean + at, inside), tl.load(c + at, inside)
    size = tl.load(b + i).to(change.dtype)
    # "/" of float32 would be off by two units in the last place
    share = tl.div_rn(change, size) if change.dtype == tl.float32 else change / size
    tl.store(g + at, before.to(change.dtype) + share, inside)
    tl.store(mean + at, before + change.to(tl.float64) / tl.load(J + i).to(tl.float64), inside)


def corrected(mean: Tensor, c: Tensor, b: Tensor, J: Tensor) -> Tensor:
    """Return c / b + mean, and then mean ← mean + c / J in float64; c is [m, d], b and J are [m, 1]."""
    g = torch.empty_like(c)
    _corrected[triton.cdiv(c.shape[1], _BLOCK), c.shape[0]](mean, c, b, J, g, c.shape[1], BLOCK=_BLOCK)
    return g
