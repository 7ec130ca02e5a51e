"""Products of stacks of matrices, one a node, whose bits do not depend on which nodes are stacked together.

The same run must give the same model for every distribution of its nodes over processes. On a CPU, MKL uses another
order of summation for a stack of one than for a stack of several. It uses yet another one for a matrix that does not
begin at a multiple of 16 bytes, which depends on its place in the stack.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from privsgp.devices import device_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.autograd.function import FunctionCtx

    Run = Callable[[Tensor], Tensor]
    Back = Callable[..., Tensor]

_ALIGNMENT = 64


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a @ b (+ bias) for stacks of matrices, each with the same bits wherever and among how many it stands.

    On a CPU the result is one contiguous array, so that torch hands the whole stack to MKL; else it would multiply one
    pair after the other, each over all threads, and the bits would depend on their number.
    """
    if not device_of(a).in_host_memory:
        return torch.bmm(a, b) if bias is None else torch.baddbmm(bias, a, b)
    if a.shape[0] == 1:
        pair = product(a.expand(2, -1, -1), b.expand(2, -1, -1), None if bias is None else bias.expand(2, -1, -1))
        return pair[:1]
    rows, unit = a.shape[1], _ALIGNMENT // a.element_size()
    more = -rows % (unit // math.gcd(b.shape[2], unit))  # rows that let the next result begin where it should
    a, b = _aligned(pad(a, (0, 0, 0, more)) if more else a), _aligned(b)
    out = torch.bmm(a, b) if bias is None else torch.baddbmm(bias, a, b)
    return out[:, :rows]


def aligned_rows(like: Tensor, columns: int) -> Tensor:
    """Return memory [m, columns] for as many rows as `like` has; on a CPU each begins at a multiple of 64 bytes."""
    return _room(like, 1, columns)[:, 0] if device_of(like).in_host_memory else like.new_empty(like.shape[0], columns)


def _aligned(stack: Tensor) -> Tensor:
    """Return the stack itself if all its matrices begin at a multiple of 64 bytes, else a copy that is so."""
    if stack.stride(2) != 1 and stack.stride(1) == 1:
        return _aligned(stack.transpose(1, 2)).transpose(1, 2)
    if stack.data_ptr() % _ALIGNMENT == 0 and stack.stride(0) * stack.element_size() % _ALIGNMENT == 0:
        return stack
    return _room(stack, *stack.shape[1:]).copy_(stack)


def _room(like: Tensor, rows: int, columns: int) -> Tensor:
    """Return memory for as many matrices as `like` has, each beginning at a multiple of 64 bytes."""
    unit = _ALIGNMENT // like.element_size()
    m, size = like.shape[0], rows * columns
    return like.new_empty(m, -(-size // unit) * unit)[:, :size].view(m, rows, columns)


@contextmanager
def no_tf32(v: Tensor) -> Iterator[None]:
    """Multiply matrices such as v in float32 proper.

    On a CPU they are so anyway. There threads take nodes of their own, and what is set here is set for all of them: the
    last one to leave could set what another one had found.
    """
    if device_of(v).in_host_memory:
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


class Through(torch.autograd.Function):
    """run(a), with the gradient back(δ, *kept) for `a` alone: a layer's parameters have one for each sample."""

    @staticmethod
    def forward(ctx: FunctionCtx, a: Tensor, run: Run, back: Back, *kept: Tensor) -> Tensor:
        """Run the layer; torch refuses the way back if what is kept has changed meanwhile."""
        ctx.save_for_backward(*kept)
        ctx.back = back  # type: ignore[attr-defined]
        return run(a)

    @staticmethod
    def backward(ctx: FunctionCtx, delta: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient by the layer's input."""
        kept = ctx.saved_tensors  # type: ignore[attr-defined]
        return ctx.back(delta, *kept), None, None, *[None] * len(kept)  # type: ignore[attr-defined]
