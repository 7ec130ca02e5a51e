"""What is done to the numbers of each sample, in one pass over memory, as Triton kernels.

A sample's numbers lie side by side; a block is [models, samples, numbers] with any two strides in front. The same in
torch stands in `gradients.per_sample` and `gradients.table`, of SAGA's estimate (`corrected`) in
`algorithms.saga`. Import this module only where there are CUDA and Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor


_BLOCK, _LONG = 1024, 16384


@triton.jit
def _sample(samples):
    # Which model's and which sample's numbers are this program's; 64 bits, because a table is long.
    index = tl.program_id(0).to(tl.int64)
    return index // samples, index % samples


@triton.jit
def _squares(v, out, samples, size, v0, v1, parts, LONG: tl.constexpr, BLOCK: tl.constexpr):
    i, j = _sample(samples)
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, LONG, BLOCK):
        at = tl.program_id(1) * LONG + start + tl.arange(0, BLOCK)
        value = tl.load(v + i * v0 + j * v1 + at, at < size, other=0.0).to(tl.float64)
        total += value * value
    tl.store(out + (i * samples + j) * parts + tl.program_id(1), tl.sum(total))


@triton.jit
def _scaled(v, factor, out, samples, size, v0, v1, o0, o1, f0, f1, BLOCK: tl.constexpr):
    i, j = _sample(samples)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(v + i * v0 + j * v1 + at, at < size, other=0.0)
    f = tl.load(factor + i * f0 + j * f1).to(value.dtype)
    tl.store(out + i * o0 + j * o1 + at, tl.where(f == 0, 0.0, value * f), at < size)


@triton.jit
def _rounded(v, out, samples, size, v0, v1, o0, o1, BLOCK: tl.constexpr):
    i, j = _sample(samples)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(v + i * v0 + j * v1 + at, at < size, other=0.0)
    tl.store(out + i * o0 + j * o1 + at, value.to(tl.bfloat16).to(value.dtype), at < size)


@triton.jit
def _take(table, rows, factor, out, samples, size, t0, t1, o0, o1, f0, f1, SCALED: tl.constexpr, BLOCK: tl.constexpr):
    i, j = _sample(samples)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + i * samples + j)
    value = tl.load(table + i * t0 + row * t1 + at, at < size, other=0.0).to(out.dtype.element_ty)
    if SCALED:
        value *= tl.load(factor + i * f0 + j * f1).to(value.dtype)
    tl.store(out + i * o0 + j * o1 + at, value, at < size)


@triton.jit
def _put(table, rows, factor, v, samples, size, t0, t1, v0, v1, f0, f1, BLOCK: tl.constexpr):
    i, j = _sample(samples)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + i * samples + j)
    value = tl.load(v + i * v0 + j * v1 + at, at < size, other=0.0)
    value = tl.where(tl.load(factor + i * f0 + j * f1) == 0, 0.0, value)
    tl.store(table + i * t0 + row * t1 + at, value.to(table.dtype.element_ty), at < size)


def squared_sums(v: Tensor) -> Tensor:
    """Return Σ v² of every sample, [m, b], squared and summed in float64, for v [m, b, numbers]."""
    m, b, size = v.shape
    parts, stretch = triton.cdiv(size, _LONG), min(_LONG, triton.next_power_of_2(size))
    out = torch.empty(m, b, parts, dtype=torch.float64, device=v.device)
    _squares[m * b, parts](v, out, b, size, *v.stride()[:2], parts, LONG=stretch, BLOCK=_fits(size))
    return out.sum(-1)


def scaled(v: Tensor, factor: Tensor) -> Tensor:
    """Return factor · v for v [m, b, numbers] and factor [m, b], with 0 · anything = 0; it lies as v does."""
    out = torch.empty_like(v)
    _scaled[_grid(v)](v, factor, out, *_sizes(v), *_ahead(v, out, factor), BLOCK=_fits(v.shape[2]))
    return out


def rounded(v: Tensor) -> Tensor:
    """Return v [m, b, numbers] as bfloat16 has it, in v's own precision; it lies as v does."""
    out = torch.empty_like(v)
    _rounded[_grid(v)](v, out, *_sizes(v), *_ahead(v, out), BLOCK=_fits(v.shape[2]))
    return out


def take(table: Tensor, rows: Tensor, out: Tensor, factor: Tensor | None = None) -> None:
    """out[i, j] ← table[i, rows[i, j]], times factor[i, j]; the table is [m, rows, numbers], rows are contiguous."""
    f = out if factor is None else factor
    _take[_grid(out)](
        table, rows, f, out, *_sizes(out), *_ahead(table, out, f), SCALED=factor is not None, BLOCK=_fits(out.shape[2])
    )


def put(table: Tensor, rows: Tensor, v: Tensor, factor: Tensor) -> None:
    """table[i, rows[i, j]] ← v[i, j], or 0 where factor[i, j] is 0; equal rows must get equal numbers."""
    _put[_grid(v)](table, rows, factor, v, *_sizes(v), *_ahead(table, v, factor), BLOCK=_fits(v.shape[2]))


def _grid(v: Tensor) -> tuple[int, int]:
    return v.shape[0] * v.shape[1], triton.cdiv(v.shape[2], _fits(v.shape[2]))


def _sizes(v: Tensor) -> tuple[int, int]:
    return v.shape[1], v.shape[2]


def _ahead(*tensors: Tensor) -> list[int]:
    """Return the two strides that lead to a sample."""
    return [stride for t in tensors for stride in t.stride()[:2]]


def _fits(size: int) -> int:
    """Return how many numbers a program takes at once."""
    return min(_BLOCK, int(triton.next_power_of_2(size)))


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
