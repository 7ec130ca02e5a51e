"""A link that survives loss: every message carries the sum of all that was ever sent over it.

The sender's end keeps the running sum s of its shares (P_ij x_j, P_ij w_j), the receiver's end the sum g that has
arrived, both in float64. A message is s; who gets it adds s − g and sets g = s. So the next message makes up for any
that were lost, one that comes twice adds nothing, and one that is older than the newest is ignored: what was received
plus what is on its way, s − g, is always what was sent.

`grown` is the sender's end and `gathered` the receiver's, in parts that stay in the processor's cache.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    Sums = NDArray[np.float64]

_PIECE = 1 << 13  # numbers that are computed on at a time: of more, BLAS gives an inner product to several threads


def grown(before: Sums, x: NDArray[np.floating], w: float, share: float) -> Sums:
    """Return a link's running sums after a step: those before it, and a share of its x and w."""
    after = np.empty(len(x) + 1)
    for piece in pieces(len(x)):
        np.multiply(x[piece], share, out=after[piece], dtype=np.float64)
        after[piece] += before[piece]
    after[-1] = before[-1] + w * share
    return after


class Increment(NamedTuple):
    """A message's weight Δw, the norm of its model Δx/Δw, and the distance of that model from the receiver's x/w."""

    weight: float
    norm: float
    distance: float


_LEAST = 2.0**-500  # stands for a weight that was rounded to 0


def gathered(
    x: NDArray[np.floating], w: float, kept: float, taken: Sequence[tuple[Sums, Sums]]
) -> tuple[NDArray[np.floating], float, list[Increment]]:
    """Return x and w of a node that keeps a share and adds the content of messages: sums minus the sums before.

    Each message is measured while its numbers are in the processor's cache.
    """
    mixed, total = np.empty_like(x), w * kept
    weights = [float(now[-1] - before[-1]) for now, before in taken]
    held, news, own = np.empty(_PIECE), np.empty(_PIECE), np.empty(_PIECE)
    squares, products, square = np.zeros(len(taken)), np.zeros(len(taken)), 0.0
    for piece in pieces(len(x)):
        size = len(x[piece])
        np.multiply(x[piece], kept, out=held[:size], dtype=np.float64)
        np.copyto(own[:size], x[piece])
        square += float(own[:size] @ own[:size])
        for at, (now, before) in enumerate(taken):
            new = np.subtract(now[piece], before[piece], out=news[:size])
            held[:size] += new
            squares[at] += new @ new
            products[at] += new @ own[:size]
        mixed[piece] = held[:size]
    for weight in weights:
        total += weight
    found = zip(weights, squares.tolist(), products.tolist(), strict=True)
    return mixed, float(total), [_measured(*one, square, w) for one in found]


def _measured(weight: float, new_new: float, new_own: float, own_own: float, w: float) -> Increment:
    """Measure a message by inner products of Δx and the receiver's x, whatever the weights: no square overflows."""
    weight = weight or _LEAST
    norm, own = math.sqrt(new_new) / weight, math.sqrt(own_own) / w
    scale = max(norm, own) or 1.0
    if not math.isfinite(scale):
        return Increment(weight, norm, math.inf)
    square = (norm / scale) ** 2 - 2 * (new_own / weight / scale) / w / scale + (own / scale) ** 2
    return Increment(weight, norm, scale * math.sqrt(max(0.0, square)))


def pieces(length: int) -> Iterator[slice]:
    """Yield what is computed on at a time: what does not leave the processor's cache."""
    for at in range(0, length, _PIECE):
        yield slice(at, min(at + _PIECE, length))
