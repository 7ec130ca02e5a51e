"""Σ_j Σ_p δ_jp ⊗ a_jp for all models at once: the weight gradients of many convolutions, as one Triton kernel.

A program multiplies a tile of one model's [out, in · kernel] gradient out, going through a share of the (sample,
position) pairs; what position p sees of the input is read where it lies, so that no patch is ever made. The shares are
summed in a fixed order. `gradient.positions` has the same by a grouped convolution. Import this module only where there
are CUDA and Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_PROGRAMS = 512  # enough to fill a large GPU a few times over
_TILE = {"BM": 128, "BN": 64, "BK": 32, "num_warps": 4, "num_stages": 3}  # the fastest of those tried on an H200

_EXACT = {"BM": 64, "BN": 64, "num_warps": 4, "num_stages": 3}  # a tile in float64 takes twice the registers


@triton.jit
def _sums(
    delta, a, out, samples, outputs, columns, d_model, d_sample, a_model, a_sample, share,
    POSITIONS: tl.constexpr, WIDTH: tl.constexpr, IN_HEIGHT: tl.constexpr, IN_WIDTH: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    DH: tl.constexpr, DW: tl.constexpr, PRECISION: tl.constexpr, EXACT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    # A part is `share` samples where EXACT, each with a tile of its own, so that the others' bits do not depend on it;
    # else it is one tile of `share` (sample, position) pairs.
    model, part = tl.program_id(2).to(tl.int64), tl.program_id(1)
    wide = tl.cdiv(columns, BN)
    o = (tl.program_id(0) // wide) * BM + tl.arange(0, BM)
    n = (tl.program_id(0) % wide) * BN + tl.arange(0, BN)
    channel, place = n // (KH * KW), n % (KH * KW)
    below, right = (place // KW) * DH - PH, (place % KW) * DW - PW
    delta += model * d_model + o[:, None] * POSITIONS
    a += model * a_model + (channel * (IN_HEIGHT * IN_WIDTH) + below * IN_WIDTH + right)[:, None]
    first = part * share
    last = min(first + share, samples if EXACT else samples * POSITIONS)
    total = tl.zeros([BM, BN], tl.float64 if EXACT else tl.float32)
    for group in range(first if EXACT else 0, last if EXACT else 1):
        tile = tl.zeros([BM, BN], tl.float32)
        end = POSITIONS if EXACT else last
        for start in range(0 if EXACT else first, end, BK):
            q = tl.multiple_of(start, BK) + tl.arange(0, BK)
            sample, p = (group if EXACT else q // POSITIONS), (q if EXACT else q % POSITIONS)
            y, x = (p // WIDTH) * SH, (p % WIDTH) * SW
            real = (q < end)[None, :]
            d = tl.load(delta + (sample * d_sample + p)[None, :], real & (o < outputs)[:, None], other=0.0)
            row, column = y[None, :] + below[:, None], x[None, :] + right[:, None]
            seen = (row >= 0) & (row < IN_HEIGHT) & (column >= 0) & (column < IN_WIDTH) & real & (n < columns)[:, None]
            v = tl.load(a + (sample * a_sample + y * IN_WIDTH + x)[None, :], seen, other=0.0)
            tile = tl.dot(d, tl.trans(v), tile, input_precision=PRECISION)
        total += tile.to(total.dtype)
    out += (part * tl.num_programs(2) + model) * outputs * columns
    tl.store(out + o[:, None] * columns + n[None, :], total, (o < outputs)[:, None] & (n < columns)[None, :])


def exact_sums(delta: Tensor, a: Tensor, window: Sequence[tuple[int, ...]]) -> Tensor:
    """Return what `weight_sums` does with each sample multiplied out in float32 by itself, and added in float64."""
    positions = delta[0, 0, 0].numel()
    tile = _EXACT | {"BK": 16 if positions <= 16 else 32}
    parts = max(1, min(_PROGRAMS // (delta.shape[1] * _tiles(delta, a, window, tile)), len(delta) // 4))
    return _added(_launched(delta, a, window, tile, triton.cdiv(len(delta), parts), parts, exact=True))


def weight_sums(delta: Tensor, a: Tensor, window: Sequence[tuple[int, ...]]) -> Tensor:
    """Return Σ_j Σ_p δ_jp ⊗ a_jp, [m, weights], from δ [b, m, out, h', w'] and a [b, m, in, h, w], in float32.

    The last three axes are contiguous. `window` is kernel, stride, padding and dilation.
    """
    total = len(delta) * delta[0, 0, 0].numel()
    parts = max(1, min(_PROGRAMS // (delta.shape[1] * _tiles(delta, a, window, _TILE)), total // (8 * _TILE["BK"])))
    share = triton.cdiv(triton.cdiv(total, parts), _TILE["BK"]) * _TILE["BK"]
    return _added(_launched(delta, a, window, _TILE, share, parts))


def sample_gradients(delta: Tensor, a: Tensor, window: Sequence[tuple[int, ...]]) -> Tensor:
    """Return Σ_p δ_p ⊗ a_p of each sample, [samples, weights], from δ [samples, out, h', w'] and a [samples, in, h, w].

    Assumes: positions come in thirty-twos, so that no product spans two samples.
    """
    return _launched(delta[:, None], a[:, None], window, _TILE, delta[0, 0].numel(), len(delta))[:, 0]


def _launched(
    delta: Tensor, a: Tensor, window: Sequence[tuple[int, ...]], tile: dict[str, int], share: int, parts: int,
    *, exact: bool = False,
) -> Tensor:  # fmt: skip
    """Return the sums over each share, [parts, m, weights]."""
    b, m, outputs, height, width = delta.shape
    (KH, KW), (SH, SW), (PH, PW), (DH, DW) = window
    columns = a.shape[2] * KH * KW
    out = torch.empty(parts, m, outputs * columns, device=delta.device, dtype=torch.float64 if exact else torch.float32)
    _sums[_tiles(delta, a, window, tile), parts, m](
        delta, a, out, b, outputs, columns,
        delta.stride(1), delta.stride(0), a.stride(1), a.stride(0), share,
        POSITIONS=height * width, WIDTH=width, IN_HEIGHT=a.shape[3], IN_WIDTH=a.shape[4],
        KH=KH, KW=KW, SH=SH, SW=SW, PH=PH, PW=PW, DH=DH, DW=DW,
        PRECISION="tf32" if torch.backends.cudnn.allow_tf32 else "ieee", EXACT=exact, **tile,
    )  # fmt: skip
    return out


def _tiles(delta: Tensor, a: Tensor, window: Sequence[tuple[int, ...]], tile: dict[str, int]) -> int:
    columns = a.shape[2] * window[0][0] * window[0][1]
    return -(-delta.shape[2] // tile["BM"]) * -(-columns // tile["BN"])


def _added(parts: Tensor) -> Tensor:
    """Add up the shares."""
    return parts[0] if len(parts) == 1 else parts.sum(0)
