"""Lines 8 to 14 of Algorithm 1 for all nodes in one pass over memory, as two Triton kernels.

`push` is for any graph. A program makes one node's new x, w and z on a stretch of columns. For each of the few nodes
that it hears from it draws that node's noise, takes its step and adds its share; a message is thus computed once for
each receiver and never written down. That is cheaper than to write and read it: noise costs arithmetic.

`walk` is for a graph in which everybody hears from one other node and all w stay 1. A program walks along a cycle of
such nodes with one message in hand: each message is made once, x is read once and written once, in place.
Import this module only where there are CUDA and Triton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from privsgp.kernels.philox import quarter

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 512


@triton.jit
def _box_muller(u, v):
    # Words come as uint32; see `philox` for the formula.
    radius = tl.sqrt(-2.0 * tl.log(u.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10))
    angle = v.to(tl.float32) * 1.4629180792671596e-09
    return radius * tl.cos(angle), radius * tl.sin(angle)


@triton.jit
def _normals(key, place, node, step, attempt):
    zero = place * 0
    a, b, c, d = tl.philox(key, place, zero + node, zero + step, zero + attempt)
    n0, n1 = _box_muller(a, b)
    n2, n3 = _box_muller(c, d)
    return n0, n1, n2, n3


@triton.jit(do_not_specialize=["step", "attempt"])
def _push(
    x, g, w, sigma, source, share, key,
    x_out, z_out, w_out,
    d, q, step, attempt, gamma,
    DEGREE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < q
    seed = tl.load(key)
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
        spread = tl.load(sigma + j)
        n0, n1, n2, n3 = _normals(seed, place, j.to(tl.int32), step, attempt)
        at = j * d
        x0 += p * (tl.load(x + at + c0, m0) - gamma * (tl.load(g + at + c0, m0) + spread * n0))
        x1 += p * (tl.load(x + at + c1, m1) - gamma * (tl.load(g + at + c1, m1) + spread * n1))
        x2 += p * (tl.load(x + at + c2, m2) - gamma * (tl.load(g + at + c2, m2) + spread * n2))
        x3 += p * (tl.load(x + at + c3, m3) - gamma * (tl.load(g + at + c3, m3) + spread * n3))
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


@triton.jit
def _message(x, g, sigma, key, j, place, d, q, step, attempt, gamma):
    inside = place < q
    n0, n1, n2, n3 = _normals(key, place, j.to(tl.int32), step, attempt)
    spread, x, g = tl.load(sigma + j), x + j * d + place, g + j * d + place
    m0, m1, m2, m3 = inside, inside & (place + q < d), inside & (place + 2 * q < d), inside & (place + 3 * q < d)
    m0 = m0 & (place < d)
    y0 = tl.load(x, m0) - gamma * (tl.load(g, m0) + spread * n0)
    y1 = tl.load(x + q, m1) - gamma * (tl.load(g + q, m1) + spread * n1)
    y2 = tl.load(x + 2 * q, m2) - gamma * (tl.load(g + 2 * q, m2) + spread * n2)
    y3 = tl.load(x + 3 * q, m3) - gamma * (tl.load(g + 3 * q, m3) + spread * n3)
    return y0, y1, y2, y3


@triton.jit
def _keep(x, j, place, d, q, own, heard, y0, y1, y2, y3, p0, p1, p2, p3):
    a, b, x, inside = tl.load(own + j), tl.load(heard + j), x + j * d + place, place < q
    tl.store(x, a * y0 + b * p0, inside & (place < d))
    tl.store(x + q, a * y1 + b * p1, inside & (place + q < d))
    tl.store(x + 2 * q, a * y2 + b * p2, inside & (place + 2 * q < d))
    tl.store(x + 3 * q, a * y3 + b * p3, inside & (place + 3 * q < d))


@triton.jit(do_not_specialize=["step", "attempt"])
def _walk(
    x, g, sigma, order, own, heard, key,
    d, q, step, attempt, gamma,
    LENGTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    cycle = order + tl.program_id(0) * LENGTH
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    seed = tl.load(key)
    first = tl.load(cycle)
    f0, f1, f2, f3 = _message(x, g, sigma, seed, first, place, d, q, step, attempt, gamma)
    p0, p1, p2, p3 = f0, f1, f2, f3
    for r in range(1, LENGTH):
        j = tl.load(cycle + r)
        y0, y1, y2, y3 = _message(x, g, sigma, seed, j, place, d, q, step, attempt, gamma)
        _keep(x, j, place, d, q, own, heard, y0, y1, y2, y3, p0, p1, p2, p3)
        p0, p1, p2, p3 = y0, y1, y2, y3
    _keep(x, first, place, d, q, own, heard, f0, f1, f2, f3, p0, p1, p2, p3)


@triton.jit(do_not_specialize=["step", "attempt"])
def _fill(out, nodes, key, d, q, step, attempt, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < q
    normals = _normals(tl.load(key), place, tl.load(nodes + row).to(tl.int32), step, attempt)
    for t in tl.static_range(4):
        column = place + t * q
        tl.store(out + row.to(tl.int64) * d + column, normals[t], inside & (column < d))


def push(
    x: Tensor, g: Tensor, w: Tensor, *, out: tuple[Tensor, Tensor, Tensor],
    sigma: Tensor, source: Tensor, share: Tensor, key: Tensor, step: int, attempt: int, gamma: float,
) -> None:  # fmt: skip
    """Write (x, w, z) of the next step to `out`, none of which may be x or w.

    x, g [n, d] are float32 and contiguous, w [n] is float64; node i hears from source[i, r] (int64) the share[i, r].
    `key` holds Philox's key, one int64.
    """
    n, d = x.shape
    q = quarter(d)
    grid = n, triton.cdiv(q, _BLOCK)
    x_out, w_out, z_out = out
    _push[grid](
        x, g, w, sigma, source, share, key, x_out, z_out, w_out, d, q, step, attempt, gamma,
        DEGREE=source.shape[1], BLOCK=_BLOCK,
    )  # fmt: skip


def walk(
    x: Tensor, g: Tensor, *, sigma: Tensor, order: Tensor, own: Tensor, heard: Tensor, key: Tensor,
    step: int, attempt: int, gamma: float,
) -> None:  # fmt: skip
    """Make x that of the next step, in place, where all w are 1 and stay so; z is x.

    x, g [n, d] are float32 and contiguous; node order[c, r] (int64) hears from order[c, r − 1], and the first of a
    cycle from the last. Node i keeps the share own[i] of its own message and adds the share heard[i] of the other.
    """
    d, q = x.shape[1], quarter(x.shape[1])
    cycles, length = order.shape
    _walk[cycles, triton.cdiv(q, _BLOCK)](
        x, g, sigma, order, own, heard, key, d, q, step, attempt, gamma, LENGTH=length, BLOCK=_BLOCK
    )


def fill_normal(out: Tensor, nodes: Tensor, key: Tensor, step: int, attempt: int) -> None:
    """Do what `philox.fill_normal` does, on the device, without a host synchronisation."""
    m, d = out.shape
    q = quarter(d)
    _fill[m, triton.cdiv(q, _BLOCK)](out, nodes, key, d, q, step, attempt, BLOCK=_BLOCK)
