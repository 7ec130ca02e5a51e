"""The second reading of a mechanism: its Rényi curve, from its own numbers.

It shares with the first (`accountant`) what a mechanism *is*, and no step of the way from there to a number: which
shift a sample causes, how often, under which relation, and when sampling counts, are worked out here once more. (For
SAGA both rest on the lemma of `saga.py` that bounds a piece of the path, which brute force tests.)

It is independent of the privacy-loss distributions: closed forms and quadrature, no grid of losses, no FFT. Values are
*cumulants* (α − 1) D_α of one release at ORDERS, the larger of the two directions; they add up over releases. They are
convex in α, so chords between orders are upper bounds too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement, pairwise, product
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from privsgp.accounting.compound import Anchored, Composed, PersonLevel, Shared, Summed, Wrapper
from privsgp.accounting.mechanisms import Gaussian, Saga, SampledMean
from privsgp.accounting.saga import Geometry
from privsgp.errors import Refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privsgp.accounting.mechanisms import Mechanism, Relation

    Cumulants = NDArray[np.float64]
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


def in_pairs(mechanism: Mechanism, relation: Relation) -> bool:
    """Whether replace-one is two zero-outs in a row: for SAGA under secret coins, where nothing else is proved."""
    if len(phases := mechanism.phases(1)) > 1:
        return any(in_pairs(one, relation) for one, _ in phases)
    if isinstance(mechanism, Composed):
        return any(in_pairs(inner, relation) for inner, _ in mechanism.parts)
    if isinstance(mechanism, Wrapper):
        return in_pairs(mechanism.base, relation)
    sampled = mechanism.sampling == "poisson" and mechanism.batch < mechanism.samples
    saga = isinstance(mechanism, Saga) and mechanism.difference_scale * mechanism.samples > mechanism.batch
    return saga and sampled and relation == "replace-one"


def in_a_row(mechanism: Mechanism, relation: Relation) -> int:
    """Return how many neighbouring steps make one neighbour; more than one where nothing better is proved.

    For a person at several sites that share noise it is one after the other, if coins matter. The Rényi sum over their
    patterns is used for up to three sites, a person taken out, and no table of SAGA that remembers coins.
    """
    pairs = 2 if in_pairs(mechanism, relation) else 1
    if not isinstance(mechanism, PersonLevel) or mechanism.apart:
        return pairs
    bases = [one for one, _ in mechanism.base.phases(1)]
    proved = relation == "zero-out" and mechanism.sites <= 3 and all(one.weighted is None for one in bases)
    return pairs if proved or not any(map(_by_coins, bases)) else pairs * mechanism.sites


def _by_coins(mechanism: Mechanism) -> bool:
    """Whether drawing a sample rarely is counted as hiding it."""
    if isinstance(mechanism, Wrapper):
        return _by_coins(mechanism.base)
    if isinstance(mechanism, Anchored):
        return mechanism.sampling == "poisson"
    still = isinstance(mechanism, Saga) and mechanism.difference_scale * mechanism.samples <= mechanism.batch
    secret = mechanism.sampling == "poisson" and mechanism.batch < mechanism.samples
    return secret and not still and not isinstance(mechanism, Gaussian)


def renyi(mechanism: Mechanism, steps: int, relation: Relation) -> Renyi:
    """Return the Rényi curve of `steps` releases, that of one zero-out or site where these are counted `in_a_row`."""
    sides = 2 if relation == "replace-one" and not in_pairs(mechanism, relation) else 1
    person = mechanism.person
    several = person is not None and not person.apart and in_a_row(mechanism, relation) < person.sites
    person = person if several else None
    return Renyi(_added([_all(one, count, sides, person=person) for one, count in mechanism.phases(steps)]))


def _all(
    mechanism: Mechanism, steps: int, sides: int, noise: float = 1.0, person: PersonLevel | None = None
) -> Cumulants:
    """Return the cumulants of a tree; all noise in it is multiplied by `noise`. `person` has sites that share noise."""
    if not steps:
        return 0 * ORDERS  # 0 · ∞ is none
    if isinstance(mechanism, Wrapper):
        often, louder = _changed(mechanism)
        return _all(mechanism.base, often * steps, sides, noise * louder, person)
    if isinstance(mechanism, Anchored):
        return _anchored(mechanism, steps, sides, noise, person)
    if isinstance(mechanism, Composed):
        return _added([_all(inner, steps * count, sides, noise, person) for inner, count in mechanism.parts])
    if mechanism.sigma == 0 or math.isinf(mechanism.clip):
        return np.full(ORDERS.shape, math.inf)
    sites = (1, 0.0) if person is None else (person.sites, person.correlation)
    return np.asarray(steps * _one(mechanism.with_sigma(noise * mechanism.sigma), sides, *sites))


def _changed(wrapper: Wrapper) -> tuple[int, float]:
    """Return by how much a wrapper multiplies the number of its base's releases, and their noise."""
    match wrapper:
        case Shared():
            return 1, 1.0
        case Summed():  # variances of independent noise add up
            return 1, math.sqrt(wrapper.nodes)
        case PersonLevel(apart=True):  # s sites, each with noise of its own
            return wrapper.sites, 1.0
        case PersonLevel():  # all sites of a person at once, or one after the other
            return 1, 1.0
    raise Refused(f"no Rényi bound is known for {type(wrapper).__name__}", "take one of docs/proofs/saga.md")


@lru_cache(maxsize=64)
def _one(mechanism: Mechanism, sides: int, sites: int, correlation: float) -> Cumulants:
    """Return the cumulants of one release: G/J of a mean over all records, G/b of a drawn one.

    Of a person at several sites with shared noise, μ² Σ_ij M_ij is μ² (s² a + s (1 − a)) without coins.
    """
    secret = mechanism.sampling == "poisson" and mechanism.batch < mechanism.samples
    g = mechanism.clip * (1 + mechanism.kappa) / mechanism.sigma
    if sites > 1 and secret and isinstance(mechanism, SampledMean):
        return together(mechanism.batch / mechanism.samples, g / mechanism.batch, sites, correlation)
    g *= math.sqrt(sites * sites * correlation + sites * (1 - correlation))
    if isinstance(mechanism, Gaussian):
        return gaussian(sides * g / mechanism.samples)
    if isinstance(mechanism, SampledMean):
        if not secret:
            return gaussian(sides * g / mechanism.batch)
        return sampled(mechanism.batch / mechanism.samples, g / mechanism.batch, replace=sides == 2)
    assert isinstance(mechanism, Saga)  # noqa: S101
    scale = mechanism.difference_scale
    if scale * mechanism.samples <= mechanism.batch:  # t/J + θc/b lies between t/J and (t + c)/J
        return gaussian(sides * g / mechanism.samples)
    assert sites == 1 or not secret  # noqa: S101 - `in_a_row`
    return _saga(mechanism, g, sides)


def _saga(mechanism: Saga, g: float, sides: int) -> Cumulants:
    """Return the cumulants of one release of SAGA with a weight above the rate; `g` is G/σ."""
    secret, scale = mechanism.batch < mechanism.samples and mechanism.sampling == "poisson", mechanism.difference_scale
    reach = 2.0 if mechanism.difference_clip is None else min(mechanism.difference_clip / mechanism.clip, 2.0)
    plain = gaussian(sides * g * (scale * reach / mechanism.batch + (1 - reach) / mechanism.samples))
    if not secret:
        return plain
    return np.minimum(saga(mechanism.batch / mechanism.samples, reach, g / mechanism.samples, scale), plain)


def _anchored(mechanism: Anchored, steps: int, sides: int, noise: float, person: PersonLevel | None) -> Cumulants:
    """Add up anchors and differences of the longest run without repeats, and each repeat as either kind."""
    again = min(steps, mechanism.spare)
    made = steps - again
    anchors = 0 if not made else 1 if mechanism.period is None else math.ceil(made / mechanism.period)
    kinds = ((anchors + again, mechanism.anchor), (made - anchors + again, mechanism.difference))
    return _added([_all(kind, count, sides, noise, person) for count, kind in kinds])


def _added(parts: list[Cumulants]) -> Cumulants:
    return np.asarray(np.sum([np.zeros_like(ORDERS), *parts], axis=0))


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
    direction has a log-concave integrand. If either grid would have too many points, coins count as known.
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
    geometry, points = Geometry(rate, reach, shift, scale), np.linspace(0.0, 2.0, 2 * _PIECES + 1)
    pieces = [_backward_piece(geometry, *piece) for piece in pairwise(points.tolist())]
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
