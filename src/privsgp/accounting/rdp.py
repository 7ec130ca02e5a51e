"""The second opinion: Rényi divergences of one release, and what they say about a run.

Independent of the privacy-loss distributions: closed forms and quadrature, no grid of losses, no FFT. Values are
*cumulants* (α − 1) D_α of one release at ORDERS, the larger of the two directions; they add up over releases. They are
convex in α, so chords between orders are upper bounds too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privsgp.accounting.saga import Geometry, Shape

ORDERS = np.array([*range(2, 33), *(2**n * m for n in range(3, 13) for m in (5, 6, 7, 8))], dtype=np.float64)
_FINE = np.unique(
    np.concatenate((1 + np.geomspace(1e-3, 1, 40), np.linspace(2, 32, 241), np.geomspace(32, 2**15, 120)))
)
_PIECES = 16  # of either half of SAGA's path
_POINTS = 1201  # of a quadrature


@dataclass(frozen=True)
class Renyi:
    """The curve that follows from cumulants at ORDERS (Canonne, Kamath and Steinke 2020, Proposition 12)."""

    cumulants: NDArray[np.float64]

    def delta(self, epsilon: float) -> float:
        """Return δ at this ε."""
        log_delta = self._fine() - (_FINE - 1) * (epsilon - np.log1p(-1 / _FINE)) - np.log(_FINE)
        return math.exp(min(float(log_delta.min()), 0.0))

    def epsilon(self, delta: float) -> float:
        """Return a sufficient ε for this δ."""
        enough = (self._fine() - np.log(delta * _FINE)) / (_FINE - 1) + np.log1p(-1 / _FINE)
        return max(float(enough.min()), 0.0)

    def _fine(self) -> NDArray[np.float64]:
        return np.asarray(np.interp(_FINE, np.append(1.0, ORDERS), np.append(0.0, self.cumulants), right=math.inf))


def gaussian(mu: float) -> NDArray[np.float64]:
    """Return the cumulants of N(μ, 1) against N(0, 1): α(α − 1) μ²/2."""
    return np.asarray(ORDERS * (ORDERS - 1) * (mu * mu / 2))


def sampled(rate: float, mu: float, *, replace: bool) -> NDArray[np.float64]:
    """Return the cumulants of a Poisson-sampled Gaussian with shift μ, never above those without sampling."""
    plain = gaussian(2 * mu if replace else mu)
    if rate == 1.0:
        return plain
    if replace:
        return np.asarray(np.minimum(_replaced(rate, mu), plain))
    forward = np.array([_moment(int(order), rate, 0.0, mu**2, 0.0) for order in ORDERS])
    return np.asarray(np.minimum(np.maximum(forward, _backward(rate, 0.0, mu)), plain))


def saga(geometry: Geometry) -> NDArray[np.float64]:
    """Return the cumulants of one SAGA release, the worst over its geometry.

    P‖Q: the closed form is a sum of exponentials linear in the shape, hence convex along each straight half of the
    path: its maximum is at E2, the corner or E1. Q‖P: quadrature on shapes above each piece of the path (saga.py).
    """
    ends = [_moments(geometry, geometry.shape(place)) for place in (0.0, 1.0, 2.0)]
    places = np.linspace(0.0, 2.0, 2 * _PIECES + 1)
    pieces = [_backward_piece(geometry, *piece) for piece in pairwise(places.tolist())]
    return np.asarray(np.max(ends + pieces, axis=0))


def _moments(geometry: Geometry, shape: Shape) -> NDArray[np.float64]:
    """Return log E_Q[(P/Q)^α] of the pair of one shape."""
    undrawn, drawn, across = geometry.shifts(shape)
    gram = undrawn**2 + across**2, drawn**2 + across**2, undrawn * drawn + across**2
    return np.array([_moment(int(order), geometry.rate, *gram) for order in ORDERS])


def _moment(a: int, rate: float, undrawn: float, drawn: float, inner: float) -> float:
    """Return log E_Q[(P/Q)^a] for an integer a: a sum over how many of a factors are drawn (privacy.md)."""
    j = np.arange(a + 1.0)
    weight = special.gammaln(a + 1) - special.gammaln(j + 1) - special.gammaln(a - j + 1)
    weight += (a - j) * math.log1p(-rate) + j * math.log(rate)
    pairs = (a - j) * (a - j - 1) * undrawn + j * (j - 1) * drawn + 2 * j * (a - j) * inner
    return float(_logsum(weight + pairs / 2))


def _backward_piece(geometry: Geometry, start: float, stop: float) -> NDArray[np.float64]:
    """Return an upper bound of log E_Q[(P/Q)^{1−α}] on a piece of the path."""
    spread = geometry.shift * math.sqrt(geometry.shape(stop).c2) / geometry.rate
    undrawn, drawn, across = geometry.shifts(geometry.above(start, stop, -min(max(spread, 1e-6), 0.5)))
    return _backward(geometry.rate, undrawn, drawn) + gaussian(across)


def _backward(rate: float, undrawn: float, drawn: float) -> NDArray[np.float64]:
    """Return log E_Q[m^{1−α}] of the mixture m along c: quadrature, or a closed bound where the grid is too coarse."""
    order = ORDERS[:, None]
    # m^{1−α} is largest where m is small: at most (α − 1) s0 to the left, where s0 > 0.
    lower = -12.0 - (order - 1) * max(undrawn, 0.0)
    step = (12.0 - lower) / (_POINTS - 1)
    y = lower + step * np.arange(_POINTS)
    first, second = undrawn * y - undrawn**2 / 2, drawn * y - drawn**2 / 2
    m = np.logaddexp(math.log1p(-rate) + first, math.log(rate) + second)
    value = _logsum((1 - order) * m - y**2 / 2) + np.log(step[:, 0] / math.sqrt(2 * math.pi))
    narrow = 1 / np.sqrt(1 + (ORDERS - 1) * (drawn - undrawn) ** 2 / 4)
    return np.where(step[:, 0] < 0.4 * narrow, value, _closed(rate, undrawn, drawn))


def _closed(rate: float, undrawn: float, drawn: float) -> NDArray[np.float64]:
    """Bound log E_Q[m^{1−α}]: m is at least its weighted geometric mean, and at least its undrawn part."""
    mean, square = (1 - rate) * undrawn + rate * drawn, (1 - rate) * undrawn**2 + rate * drawn**2
    geometric = (ORDERS - 1) * ((ORDERS - 1) * mean**2 + square) / 2
    return np.minimum(geometric, gaussian(undrawn) - (ORDERS - 1) * math.log1p(-rate))


def _replaced(rate: float, mu: float) -> NDArray[np.float64]:
    """Return log ∫ P^α R^{1−α} for shifts ±μ, infinite where the grid is too coarse to tell."""
    order = ORDERS[:, None]
    step = (24.0 + 2 * order * mu) / (4 * _POINTS)
    y = -12.0 - mu + step * np.arange(4 * _POINTS + 1)
    undrawn = math.log1p(-rate) - y**2 / 2
    present = np.logaddexp(undrawn, math.log(rate) - (y - mu) ** 2 / 2)
    other = np.logaddexp(undrawn, math.log(rate) - (y + mu) ** 2 / 2)
    value = _logsum(order * present + (1 - order) * other) + np.log(step[:, 0] / math.sqrt(2 * math.pi))
    return np.where(step[:, 0] < 0.4 / np.sqrt(1 + ORDERS * mu**2), value, math.inf)


def _logsum(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithm of a sum of exponentials over the last axis."""
    top = terms.max(axis=-1, keepdims=True)
    return np.asarray(np.squeeze(top, -1) + np.log(np.exp(terms - top).sum(axis=-1)))
