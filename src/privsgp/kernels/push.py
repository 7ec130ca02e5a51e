"""Lines 8 to 14 of Algorithm 1 for all nodes in one pass over memory, as a Triton kernel.

A program makes one node's new x, w and z on a stretch of columns. For each of the few nodes that it hears from it draws
that node's noise, takes its step and adds its share; a message is thus computed once for each receiver and never
written down. That is cheaper than to write and read it: noise costs arithmetic. Import this module only where there are
CUDA and Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 512


def quarter(columns: int) -> int:
    """Return Q, the number of draws of a row of d columns. One gives the normals of p, p + Q, p + 2Q and p + 3Q.

    Philox4x32-10 (Salmon and others, 2011) has the counter (place, node, step, 0), and its key comes from the
    seed. Neighbouring threads touch neighbouring memory.
    """
    return 32 * -(-columns // 128)


@triton.jit
def _box_muller(u, v):
    # Words come as uint32; (word + ½) / 2³² keeps all bits where u is small.
    radius = tl.sqrt(-2.0 * tl.log(u.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10))
    angle = v.to(tl.float32) * 1.4629180792671596e-09
    return radius * tl.cos(angle), radius * tl.sin(angle)


@triton.jit
def _normals(key, place, node, step):
    zero = place * 0
    a, b, c, d = tl.philox(key, place, zero + node, zero + step, zero)
    n0, n1 = _box_muller(a, b)
    n2, n3 = _box_muller(c, d)
    return n0, n1, n2, n3


@triton.jit(do_not_specialize=["step"])
def _push(
    x, g, w, sigma, source, share, key,
    x_out, z_out, w_out,
    d, q, step, gamma,
    MADE: tl.constexpr, DEGREE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # MADE: x holds the messages already, and neither noise nor g is looked at.
    i = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < q
    c0, c1, c2, c3 = place, place + q, place + 2 * q, place + 3 * q
    m0, m1, m2, m3 = inside & (c0 < d), inside & (c1 < d), inside & (c2 < d), inside & (c3 < d)
    x0 = tl.zeros([BLOCK], tl.float32)
    x1 = tl.zeros([BLOCK], tl.float32)
    x2 = tl.zeros([BLOCK], tl.float32)
    x3 = tl.zeros([BLOCK], tl.float32)
    weight = tl.zeros([], tl.float64)
    for r in tl.static_range(DEGREE):
        j = tl.load(source + i * DEGREE + r)
        p = tl.load(share + i * DEGREE + r)
        weight += p.to(tl.float64) * tl.load(w + j)
        at = j * d
        s0, s1, s2, s3 = (
            tl.load(x + at + c0, m0), tl.load(x + at + c1, m1), tl.load(x + at + c2, m2), tl.load(x + at + c3, m3),
        )  # fmt: skip
        if not MADE:
            spread = tl.load(sigma + j)
            n0, n1, n2, n3 = _normals(tl.load(key), place, j.to(tl.int32), step)
            s0 -= gamma * (tl.load(g + at + c0, m0) + spread * n0)
            s1 -= gamma * (tl.load(g + at + c1, m1) + spread * n1)
            s2 -= gamma * (tl.load(g + at + c2, m2) + spread * n2)
            s3 -= gamma * (tl.load(g + at + c3, m3) + spread * n3)
        x0 += p * s0
        x1 += p * s1
        x2 += p * s2
        x3 += p * s3
    if tl.program_id(1) == 0:
        tl.store(w_out + i, weight)
    inverse = (1.0 / weight).to(tl.float32)
    to = i.to(tl.int64) * d
    tl.store(x_out + to + c0, x0, m0)
    tl.store(x_out + to + c1, x1, m1)
    tl.store(x_out + to + c2, x2, m2)
    tl.store(x_out + to + c3, x3, m3)
    tl.store(z_out + to + c0, x0 * inverse, m0)
    tl.store(z_out + to + c1, x1 * inverse, m1)
    tl.store(z_out + to + c2, x2 * inverse, m2)
    tl.store(z_out + to + c3, x3 * inverse, m3)


@triton.jit(do_not_specialize=["step"])
def _fill(out, nodes, key, d, q, step, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < q
    normals = _normals(tl.load(key), place, tl.load(nodes + row).to(tl.int32), step)
    for t in tl.static_range(4):
        column = place + t * q
        tl.store(out + row.to(tl.int64) * d + column, normals[t], inside & (column < d))


def push(
    x: Tensor, g: Tensor, w: Tensor, *, out: tuple[Tensor, Tensor, Tensor],
    sigma: Tensor, source: Tensor, share: Tensor, key: Tensor, step: int, gamma: float,
) -> None:  # fmt: skip
    """Write (x, w, z) of the next step to `out`, none of which may be x or w.

    x, g [n, d] are float32 and contiguous, w [n] is float64; node i hears from source[i, r] (int64) the share[i, r].
    `key` holds Philox's key, one int64.
    """
    _launched(x, g, w, sigma, source, share, key, *out, step, gamma, made=False)


def mix(x: Tensor, w: Tensor, *, out: tuple[Tensor, Tensor, Tensor], source: Tensor, share: Tensor) -> None:
    """Write what `push` does for messages x that are there already: lines 10 to 14."""
    _launched(x, x, w, w, source, share, source, *out, 0, 0.0, made=True)


def _launched(
    x: Tensor, g: Tensor, w: Tensor, sigma: Tensor, source: Tensor, share: Tensor, key: Tensor,
    x_out: Tensor, w_out: Tensor, z_out: Tensor, step: int, gamma: float, *, made: bool,
) -> None:  # fmt: skip
    n, d = x.shape
    q = quarter(d)
    _push[n, triton.cdiv(q, _BLOCK)](
        x, g, w, sigma, source, share, key, x_out, z_out, w_out, d, q, step, gamma,
        MADE=made, DEGREE=source.shape[1], BLOCK=_BLOCK,
    )  # fmt: skip


def fill_normal(out: Tensor, nodes: Tensor, key: Tensor, step: int) -> None:
    """Fill row r of `out` [m, d] with the standard normals of node `nodes[r]`, without a host synchronisation."""
    m, d = out.shape
    q = quarter(d)
    _fill[m, triton.cdiv(q, _BLOCK)](out, nodes, key, d, q, step, BLOCK=_BLOCK)
