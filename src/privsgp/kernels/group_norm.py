"""GroupNorm of many models in one pass over memory, as three Triton kernels.

A program holds one whole group of one sample, so its mean and variance cost no further reading. The way back and the
gradients by scale and shift compute them from the input again, and the forward pass keeps only the input.
`gradient.norm` has the same in torch. Import this module only where there are CUDA and Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

MOST = 1 << 14  # numbers of a group that a program can hold


@triton.jit
def _place(channels, size, GROUPS: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr):
    # The addresses of this program: its sample, the channels of its group, and all of their positions.
    sample = tl.program_id(0) // GROUPS
    each = channels // GROUPS
    row = tl.arange(0, BC)
    channel = (tl.program_id(0) % GROUPS) * each + row
    column = tl.arange(0, BS)[None, :]
    inside = (row < each)[:, None] & (column < size)
    return sample, channel, row < each, sample.to(tl.int64) * channels * size + channel[:, None] * size + column, inside


@triton.jit
def _normal(x, at, inside, count, EPS: tl.constexpr):
    value = tl.load(x + at, inside, other=0.0)
    mean = tl.sum(value) / count
    centred = tl.where(inside, value - mean, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(centred * centred) / count + EPS)
    return centred * inverse, inverse


@triton.jit
def _forward(
    x, scale, shift, y, channels, size, count, after, models,
    EPS: tl.constexpr, GROUPS: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    sample, channel, own, at, inside = _place(channels, size, GROUPS, BC, BS)
    normal, _ = _normal(x, at, inside, count, EPS)
    of = (sample // after) % models * channels + channel
    a = tl.load(scale + of, own, other=0.0)[:, None]
    b = tl.load(shift + of, own, other=0.0)[:, None]
    tl.store(y + at, normal * a + b, inside)


@triton.jit
def _backward(
    x, delta, scale, out, channels, size, count, after, models,
    EPS: tl.constexpr, GROUPS: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    sample, channel, own, at, inside = _place(channels, size, GROUPS, BC, BS)
    normal, inverse = _normal(x, at, inside, count, EPS)
    a = tl.load(scale + (sample // after) % models * channels + channel, own, other=0.0)[:, None]
    d = tl.load(delta + at, inside, other=0.0) * a
    along = tl.sum(d * normal) / count
    tl.store(out + at, inverse * (d - tl.sum(d) / count - normal * along), inside)


@triton.jit
def _affine(
    x, delta, out, channels, size, count, EPS: tl.constexpr, GROUPS: tl.constexpr, BC: tl.constexpr, BS: tl.constexpr
):
    sample, channel, own, at, inside = _place(channels, size, GROUPS, BC, BS)
    normal, _ = _normal(x, at, inside, count, EPS)
    d = tl.load(delta + at, inside, other=0.0)
    to = out + sample.to(tl.int64) * 2 * channels + channel
    tl.store(to, tl.sum(d * normal, 1), own)
    tl.store(to + channels, tl.sum(d, 1), own)


def forward(x: Tensor, scale: Tensor, shift: Tensor, groups: int, eps: float, after: int) -> Tensor:
    """Return γ x̂ + β for x [rows, C, …], contiguous, with γ and β [m, C]; row r is of model (r // after) % m."""
    y = x.new_empty(x.shape)
    _forward[_grid(x, groups)](x, scale, shift, y, *_sizes(x, groups), after, len(scale), eps, **_block(x, groups))
    return y


def backward(x: Tensor, delta: Tensor, scale: Tensor, groups: int, eps: float, after: int) -> Tensor:
    """Return the gradient by x."""
    out = x.new_empty(x.shape)
    _backward[_grid(x, groups)](x, delta, scale, out, *_sizes(x, groups), after, len(scale), eps, **_block(x, groups))
    return out


def affine(x: Tensor, delta: Tensor, groups: int, eps: float) -> Tensor:
    """Return each row's gradients by γ and β, [rows, 2, C]."""
    out = x.new_empty(x.shape[0], 2, x.shape[1])
    _affine[_grid(x, groups)](x, delta, out, *_sizes(x, groups), eps, **_block(x, groups))
    return out


def _grid(x: Tensor, groups: int) -> tuple[int]:
    return (x.shape[0] * groups,)


def _sizes(x: Tensor, groups: int) -> tuple[int, int, int]:
    channels, size = x.shape[1], x[0, 0].numel()
    return channels, size, channels // groups * size


def _block(x: Tensor, groups: int) -> dict[str, int]:
    rows, columns = triton.next_power_of_2(x.shape[1] // groups), triton.next_power_of_2(x[0, 0].numel())
    return {"GROUPS": groups, "BC": rows, "BS": columns, "num_warps": max(1, min(8, rows * columns // 256))}
