"""ChaCha20 (RFC 8439) as a random-access table of standard normals in float64, as a Triton kernel.

A block of the key stream, numbered (place, node, step, 0), has eight 64-bit words, which make four pairs of
normals: those of the columns p, p + E, … p + 7E of a row of d, with E = 32 ⌈d / 256⌉, so that neighbouring threads
touch neighbouring memory. The words are those that `cryptography` gives under the same key and nonce; what is made of
them is in `randomness.noise`. Import this module only where there are CUDA and Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 128


@triton.jit
def _turned(x, BITS: tl.constexpr):
    return (x << BITS) | (x >> (32 - BITS))


@triton.jit
def _quarter_round(a, b, c, d):
    a += b
    d = _turned(d ^ a, 16)
    c += d
    b = _turned(b ^ c, 12)
    a += b
    d = _turned(d ^ a, 8)
    c += d
    b = _turned(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _word(key, index: tl.constexpr, zero):
    return tl.load(key + index).to(tl.uint32, bitcast=True) + zero


@triton.jit
def _normals(low_u, high_u, low_v, high_v):
    # See `box_muller`: u = |word + f| / 2⁶³ and θ = π word / 2⁶³ of signed words; f has θ's eleven lowest bits.
    u = (low_u.to(tl.uint64) | (high_u.to(tl.uint64) << 32)).to(tl.int64, bitcast=True).to(tl.float64)
    v = (low_v.to(tl.uint64) | (high_v.to(tl.uint64) << 32)).to(tl.int64, bitcast=True).to(tl.float64)
    u += ((low_v & 2047).to(tl.float64) - 1023.5) * 0.00048828125
    radius = tl.sqrt(-2.0 * tl.log(tl.abs(u) * 1.0842021724855044e-19))
    angle = v * 3.4061215800865545e-19
    return radius * tl.cos(angle), radius * tl.sin(angle)


@triton.jit
def _eight(nodes, key, row, place, step):
    # The eight normals of the blocks numbered (place, node, step, 0), whose words are of 32 bits.
    zero = place.to(tl.uint32, bitcast=True) * 0
    k0, k1, k2, k3 = _word(key, 0, zero), _word(key, 1, zero), _word(key, 2, zero), _word(key, 3, zero)
    k4, k5, k6, k7 = _word(key, 4, zero), _word(key, 5, zero), _word(key, 6, zero), _word(key, 7, zero)
    n0, n1 = place.to(tl.uint32, bitcast=True), zero + tl.load(nodes + row).to(tl.uint32)
    n2, n3 = zero + step.to(tl.uint32), zero
    i0, i1, i2, i3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    x0, x1, x2, x3, x4, x5, x6, x7 = i0, i1, i2, i3, k0, k1, k2, k3
    x8, x9, xa, xb, xc, xd, xe, xf = k4, k5, k6, k7, n0, n1, n2, n3
    for _ in range(10):
        x0, x4, x8, xc = _quarter_round(x0, x4, x8, xc)
        x1, x5, x9, xd = _quarter_round(x1, x5, x9, xd)
        x2, x6, xa, xe = _quarter_round(x2, x6, xa, xe)
        x3, x7, xb, xf = _quarter_round(x3, x7, xb, xf)
        x0, x5, xa, xf = _quarter_round(x0, x5, xa, xf)
        x1, x6, xb, xc = _quarter_round(x1, x6, xb, xc)
        x2, x7, x8, xd = _quarter_round(x2, x7, x8, xd)
        x3, x4, x9, xe = _quarter_round(x3, x4, x9, xe)
    a0, a1 = _normals(x0 + i0, x1 + i1, x2 + i2, x3 + i3)
    b0, b1 = _normals(x4 + k0, x5 + k1, x6 + k2, x7 + k3)
    c0, c1 = _normals(x8 + k4, x9 + k5, xa + k6, xb + k7)
    d0, d1 = _normals(xc + n0, xd + n1, xe + n2, xf + n3)
    return a0, a1, b0, b1, c0, c1, d0, d1


@triton.jit(do_not_specialize=["step"])
def _fill(out, nodes, key, d, eighth, step, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    drawn = _eight(nodes, key, row, place, step)
    for t in tl.static_range(8):
        column = place + t * eighth
        tl.store(out + row.to(tl.int64) * d + column, drawn[t], (place < eighth) & (column < d))


@triton.jit(do_not_specialize=["step"])
def _step(x, g, nodes, levels, key, d, eighth, step, gamma, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    drawn = _eight(nodes, key, row, place, step)
    sigma, grid, inverse = tl.load(levels + 3 * row), tl.load(levels + 3 * row + 1), tl.load(levels + 3 * row + 2)
    for t in tl.static_range(8):
        column = place + t * eighth
        at, inside = row.to(tl.int64) * d + column, (place < eighth) & (column < d)
        y = (tl.load(g + at, inside, other=0.0) + sigma * drawn[t]) * inverse  # the spacing is a power of two
        # to the next whole number, halves to even, as torch.round: adding 1.5 · 2⁵² leaves no bit behind the point
        cell = tl.where(
            tl.abs(y) < 2251799813685248.0, (y + 6755399441055744.0) - 6755399441055744.0, tl.floor(y + 0.5)
        )
        before = tl.load(x + at, inside, other=0.0)
        tl.store(x + at, before - gamma * (cell * grid).to(tl.float32), inside)


def eighth(columns: int) -> int:
    """Return E, the number of blocks that a row of so many columns takes."""
    return 32 * -(-columns // 256)


def fill_normal(out: Tensor, nodes: Tensor, key: Tensor, step: int) -> None:
    """Fill row r of `out` [m, d], float64 and contiguous, with the normals of node `nodes[r]`; `key` is eight int32.

    Assumes: node and step are below 2³², a row is shorter than 2³⁰, and there are fewer than 2¹⁶.
    """
    m, d = out.shape
    with torch.cuda.device_of(out):  # else it would run beside what reads it
        _fill[triton.cdiv(eighth(d), _BLOCK), m](out, nodes, key, d, eighth(d), step, BLOCK=_BLOCK)


def step(x: Tensor, g: Tensor, nodes: Tensor, levels: Tensor, key: Tensor, step: int, gamma: float) -> None:
    """Take γ times g + σ N, rounded to its grid, from x [m, d] in place (Algorithm 1, lines 8 and 9).

    x is float32, g float64; `levels` [m, 3] has each row's σ, the spacing of its grid and one over that. Assumes: as
    `fill_normal`.
    """
    m, d = x.shape
    with torch.cuda.device_of(x):
        _step[triton.cdiv(eighth(d), _BLOCK), m](x, g, nodes, levels, key, d, eighth(d), step, gamma, BLOCK=_BLOCK)
