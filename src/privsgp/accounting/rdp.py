"""The second opinion: Rényi divergences of one release, and what they say about a run.

Independent of the privacy-loss distributions: closed forms and quadrature, no grid of losses, no FFT. Values are
*cumulants* (α − 1) D_α of one release at ORDERS, the larger of the two directions; they add up over releases. They are
convex in α, so chords between orders are upper bounds too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations_with_replacement, pairwise, product
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from privsgp.accounting.saga import Geometry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Gram = tuple[float, float, float]

ORDERS = np.array([*range(2, 33), *(2**n * m for n in range(3, 13) for m in (5, 6, 7, 8))], dtype=np.float64)
_FINE = np.unique(
    np.concatenate((1 + np.geomspace(1e-3, 1, 40), np.linspace(2, 32, 241), np.geomspace(32, 2**15, 120)))
)
_PIECES = 16  # of either half of SAGA's path
_POINTS = 1201  # of a quadrature
_CELLS = 120_000  # of a quadrature in several dimensions
_FEW = (*range(2, 9), 10, 12, 14, 16, 20, 24, 32, 48, 64, 128, 256, 1024)  # orders of such a quadrature


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
    if rate == 1.0 or math.isinf(mu * mu):
        return plain
    if replace:
        return np.asarray(np.minimum(_replaced(rate, mu), plain))
    forward = np.array([_moment(int(order), rate, 0.0, mu**2, 0.0) for order in ORDERS])
    return np.asarray(np.minimum(np.maximum(forward, _backward(rate, 0.0, mu)), plain))


def together(rate: float, mu: float, sites: int, correlation: float) -> NDArray[np.float64]:
    """Return the cumulants of a release at several sites that share noise, each with a coin and the shift μ.

    P = Σ_c p_c N(M^½ c, I) over the 2^s patterns c of coins, with μ² on the diagonal of M and a μ² elsewhere. E_Q of
    (P/Q)^α is a sum of Gaussian integrals for an integer α, so that the trapezoidal rule errs by e^{−54}. The other
    direction has a log-concave integrand. Where either grid would have too many points, coins count as known.
    """
    whole = gaussian(mu * math.sqrt(sites + sites * (sites - 1) * correlation))
    few = [max(_patterns(rate, mu, sites, correlation, power) for power in (a, 1 - a)) for a in _FEW]
    known = np.minimum(few, np.interp(_FEW, ORDERS, whole))
    return np.asarray(np.minimum(whole, np.interp(ORDERS, _FEW, known, right=math.inf)))


def _patterns(rate: float, mu: float, sites: int, correlation: float, power: float) -> float:
    """Return log E_Q[(P/Q)^power] by the trapezoidal rule in as many dimensions as sites, infinite if that is long."""
    values, vectors = np.linalg.eigh((1 - correlation) * np.eye(sites) + correlation)
    root = mu * (vectors * np.sqrt(values.clip(min=0))) @ vectors.T
    far = float(root.sum(0).max())
    step = 0.6 if power > 0 else min(0.6, 0.6 / math.sqrt(1 - power * far**2 / 4))
    axis = np.arange(-12.0, 12.0 + far * max(power, 1.0), step)
    if math.comb(axis.size + sites - 1, sites) > _CELLS:
        return math.inf
    # Sites are alike: of points that differ by a permutation one is enough.
    at = axis[np.array(list(combinations_with_replacement(range(axis.size), sites)))]
    repeats = np.sum(
        [special.gammaln(1 + (at == at[:, [i]]).sum(1)) / (at == at[:, [i]]).sum(1) for i in range(sites)], 0
    )
    coins = np.array(list(product((0.0, 1.0), repeat=sites)))
    shifts = coins @ root
    exponent = at @ shifts.T - (shifts**2).sum(1) / 2
    log_weight = (coins * math.log(rate) + (1 - coins) * math.log1p(-rate)).sum(1)
    loss = np.log1p(np.expm1(np.minimum(exponent, 1.0)) @ np.exp(log_weight))
    loss = np.where(exponent.max(1) < 1, loss, special.logsumexp(exponent + log_weight, axis=1))
    weight = math.lgamma(sites + 1) - repeats + sites * math.log(step / math.sqrt(2 * math.pi)) - (at**2).sum(1) / 2
    value = _logsum((power * loss + weight)[None])
    return float(_not_lost(value, np.array([[power]]), loss[None], weight[None])[0] * (1 + 1e-6))


def saga(rate: float, reach: float, shift: float, scale: float = 1.0) -> NDArray[np.float64]:
    """Return the cumulants of one SAGA release, the worst over its geometry.

    `shift` is G/(Jσ), `reach` is R = C/G ≤ 2, and `scale` the weight θ of a difference, above the rate q.

    P‖Q: the closed form is a sum of exponentials linear in the Gram matrix, hence convex along each straight half of
    the path: its maximum is at E2, the corner or E1. Q‖P: quadrature on shapes above each piece of the path (saga.py).
    """
    ends = [_moments(rate, gram) for gram in _ends(rate, reach, shift, scale)]
    geometry, places = Geometry(rate, reach, shift, scale), np.linspace(0.0, 2.0, 2 * _PIECES + 1)
    pieces = [_backward_piece(geometry, *piece) for piece in pairwise(places.tolist())]
    return np.asarray(np.max(ends + pieces, axis=0))


def _ends(rate: float, reach: float, shift: float, scale: float) -> list[Gram]:
    """Return |s0|², |s1|² and ⟨s0, s1⟩ for s0 = τt and s1 = τ(t + θc/q), at three pairs (t, c) of vectors in the plane.

    t = (1, 0) with c = 0 (E2); with |c| = R and |t + c| = 1 (the corner); t and c parallel with |t + c| = 1 (E1).
    """
    corner = -(reach**2) / 2, reach * math.sqrt(max(1 - reach**2 / 4, 0.0))
    pairs = ((1.0, (0.0, 0.0)), (1.0, corner), (1 - reach, (reach, 0.0)))
    grams = []
    for t, c in pairs:
        drawn = shift * (t + scale * c[0] / rate), shift * scale * c[1] / rate
        grams.append(((shift * t) ** 2, drawn[0] ** 2 + drawn[1] ** 2, shift * t * drawn[0]))
    return grams


def _moments(rate: float, gram: Gram) -> NDArray[np.float64]:
    """Return log E_Q[(P/Q)^α] of one pair."""
    return np.array([_moment(int(order), rate, *gram) for order in ORDERS])


def _moment(a: int, rate: float, undrawn: float, drawn: float, inner: float) -> float:
    """Return log E_Q[(P/Q)^a] for an integer a: a sum over how many of a factors are drawn (privacy.md)."""
    j = np.arange(a + 1.0)
    weight = special.gammaln(a + 1) - special.gammaln(j + 1) - special.gammaln(a - j + 1)
    weight += (a - j) * math.log1p(-rate) + j * math.log(rate)
    pairs = ((a - j) * (a - j - 1) * undrawn + j * (j - 1) * drawn + 2 * j * (a - j) * inner) / 2
    # The weights sum to 1, so this is log(1 + Σ weight (e^pairs − 1)): small divergences are not lost in the 1.
    up = pairs > 0
    more = float(_logsum(weight[up] + pairs[up] + np.log(-np.expm1(-pairs[up])))) if up.any() else -math.inf
    less = float(np.exp(weight[~up]) @ np.expm1(pairs[~up]))
    return (more if more > 30 else math.log1p(math.exp(more) + less)) * (1 + 1e-9)


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
    m = first + _log_mixture(rate, second - first)
    weight = -(y**2) / 2 + np.log(step / math.sqrt(2 * math.pi))
    value = _logsum((1 - order) * m + weight)
    if drawn < 4:  # else P reaches beyond the grid
        value = _not_lost(value, 1 - order, m, weight)
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
    other = _log_mixture(rate, -mu * y - mu**2 / 2)
    ratio = _log_mixture(rate, mu * y - mu**2 / 2) - other
    weight = other - y**2 / 2 + np.log(step / math.sqrt(2 * math.pi))
    value = _not_lost(_logsum(order * ratio + weight), order, ratio, weight)
    return np.where(step[:, 0] < 0.4 / np.sqrt(1 + ORDERS * mu**2), value, math.inf)


def _log_mixture(rate: float, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log(1 − q + q e^x), to full precision where it is small."""
    small = np.log1p(rate * np.expm1(np.minimum(x, 1.0)))
    return np.where(x < 1, small, np.logaddexp(math.log1p(-rate), math.log(rate) + x))


def _not_lost(
    value: NDArray[np.float64], power: NDArray[np.float64], loss: NDArray[np.float64], weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return log E[e^{p·loss}], computed anew where it is small, as log(1 + E[e^{p·loss} − 1 − p (e^loss − 1)]).

    E[e^loss] = 1 for a likelihood ratio, so the sum is complete and its terms are positive or 0.
    """
    lost = value < 1e-8  # a sum of a thousand terms near 1 is good to 1e-13
    if not lost.any():
        return value
    power, loss, weight = power[lost], np.broadcast_to(loss, weight.shape)[lost], weight[lost]
    # The terms of small losses nearly cancel, and those of large ones need not fit into a double one by one.
    series = power * (power - 1) / 2 * loss**2 * (1 + (power + 1) * loss / 3)
    near, far = abs(power * loss) < 1e-4, abs(power * loss) > 1
    tame = np.where(far, 0.0, loss)
    inside = np.where(near, series, np.expm1(power * tame) - power * np.expm1(tame))
    beyond = np.exp(power * loss + weight) - (1 - power) * np.exp(weight) - power * np.exp(loss + weight)
    terms = np.where(far, beyond, np.exp(weight) * inside)
    precise = value.copy()
    precise[lost] = np.log1p(terms.sum(axis=-1)) * (1 + 1e-6)
    return precise


def _logsum(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithm of a sum of exponentials over the last axis."""
    top = terms.max(axis=-1, keepdims=True)
    return np.asarray(np.squeeze(top, -1) + np.log(np.exp(terms - top).sum(axis=-1)))
