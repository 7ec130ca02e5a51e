"""One release of a person at several sites that share noise, where each site draws the person by a coin of its own.

With c the coins of s sites, the messages are P = Σ_c p_c N(M^½ c, I_s) against Q = N(0, I_s), where the matrix M has
μ² on its diagonal and a μ² elsewhere (docs/proofs/pairwise.md, "A person at several sites").

The ratio P/Q grows with each coordinate. The space is cut into boxes. In a box the ratio lies between its values at
two corners, and Q and P have masses that normal integrals give. Each box is replaced by two points, at those two
values, with the same masses of Q and of P. That only enlarges E_Q[f(P/Q)] for a convex f, so both hockey sticks of the
points are above those of P and Q.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement, product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from privsgp.accounting.saga import normal_mass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_FAR = 10.0  # σ beyond the farthest mean: there P counts as an infinite loss
_OFF = 2.0**-36  # relative error of sums of some 300,000 masses, each exact to 2⁻⁴²


class _Points(NamedTuple):
    """Points in the order of `excess` = P/Q − 1, and the mass of P that has no Q."""

    excess: Array
    mass: Array  # of Q
    infinite: float


@dataclass(frozen=True)
class Mixture:
    """A release at `sites` sites, each with shift `mu` and a coin of probability `rate`; `correlation` is a.

    Any number of `boxes`, up to a permutation of the sites, is valid. Few are rough and quick.
    """

    rate: float
    mu: float
    sites: int
    correlation: float
    boxes: int = 150_000

    @property
    def farthest(self) -> float:
        """The largest shift: all coins are known, and all sites draw the person."""
        return self.mu * math.sqrt(self.sites + self.sites * (self.sites - 1) * self.correlation)

    def forward(self, epsilon: Array) -> Array:
        """Return an upper bound of H_ε(P‖Q) = E_Q(excess − (e^ε − 1))₊."""
        excess, mass, infinite = _points(self)
        return np.asarray(infinite + _stick(excess[::-1], mass[::-1], np.expm1(epsilon), self.rate))

    def backward(self, epsilon: Array) -> Array:
        """Return an upper bound of H_ε(Q‖P) = e^ε E_Q(−excess − (1 − e^{−ε}))₊."""
        excess, mass, _ = _points(self)
        return np.asarray(np.exp(epsilon) * _stick(-excess, mass, -np.expm1(-epsilon), self.rate))


def _stick(falling: Array, mass: Array, least: Array, rate: float) -> Array:
    """Return Σ mass (x − least)₊ over points x in falling order, and what rounding may add."""
    counted = np.searchsorted(-falling, -least)
    finite = np.where(mass > 0, falling, 0.0)
    sums = np.append(0.0, np.cumsum(mass * finite))[counted]
    masses = np.append(0.0, np.cumsum(mass))[counted]
    return np.asarray(np.maximum(sums - least * masses, 0.0) + _OFF * (np.abs(sums) + (least + rate) * masses))


@lru_cache(maxsize=8)
def _points(release: Mixture) -> _Points:
    """Cut the space into boxes and each box into two points."""
    s, q, a = release.sites, release.rate, release.correlation
    own = release.mu * math.sqrt(1 - a)  # M^½ = own · I + joint · 11ᵀ
    joint = (release.farthest / math.sqrt(s) - own) / s
    edges = _edges(release, own, joint)
    boxes, times = _boxes(edges.size - 1, s)
    base = normal_mass(edges)
    mass = base[boxes].prod(1)
    low, high, mean = np.zeros((3, len(boxes)))
    for coins in product((0, 1), repeat=s):
        drawn = sum(coins)
        if not drawn:
            continue
        shifts = [own * coin + joint * drawn for coin in coins]
        weight = q**drawn * (1 - q) ** (s - drawn)
        ratio, first, last = np.ones((3, len(boxes)))
        for i, shift in enumerate(shifts):
            each = normal_mass(edges - shift) / base
            ratio *= each[boxes[:, i]]
            at = np.exp(np.where(shift > 0, shift * edges - shift**2 / 2, 0.0)) if shift else np.ones(edges.size)
            first *= at[boxes[:, i]]
            last *= at[boxes[:, i] + 1]
        low += weight * (first - 1)
        high += weight * (last - 1)
        mean += weight * (ratio - 1)
    return _split(low, high, mean, mass * times)


def _split(low: Array, high: Array, mean: Array, mass: Array) -> _Points:
    """Replace each box by its two extremes, with the same mean; where one is infinite, by the lower and P alone."""
    open_ = np.isinf(high)
    width = np.where(open_ | (high <= low), 1.0, high - low)
    share = np.where(open_, 0.0, np.clip((mean - low) / width, 0.0, 1.0))
    infinite = float((mass * (mean - low))[open_].clip(min=0.0).sum())
    excess = np.concatenate([low, high[~open_]])
    masses = np.concatenate([mass * (1 - share), (mass * share)[~open_]])
    order = np.argsort(excess, kind="stable")
    return _Points(excess[order], masses[order], infinite)


def _edges(release: Mixture, own: float, joint: float) -> Array:
    """Return where each axis is cut: finely where P or Q has mass, for about as many boxes as asked for."""
    s, top = release.sites, own + release.sites * joint
    count = 2
    while math.comb(count + s, s) <= release.boxes:
        count += 1
    fine = np.linspace(-_FAR, top + _FAR, 20_001)
    means = [0.0, *(own * coin + joint * drawn for drawn in range(1, s + 1) for coin in (0, 1))]
    density = sum(np.exp(-((fine - mean) ** 2) / 16) for mean in means)
    reached = np.cumsum(density)
    inner = np.interp(np.linspace(reached[0], reached[-1], count - 1), reached, fine)
    return np.concatenate([[-math.inf], inner, [math.inf]])


@lru_cache(maxsize=4)
def _boxes(count: int, sites: int) -> tuple[NDArray[np.int64], Array]:
    """Return boxes by their place on each axis, one of those that differ by a permutation, and how many these are."""
    boxes = np.array(list(combinations_with_replacement(range(count), sites)))
    times = np.full(len(boxes), float(math.factorial(boxes.shape[1])))
    run = np.ones(len(boxes))
    for i in range(1, boxes.shape[1]):
        run = np.where(boxes[:, i] == boxes[:, i - 1], run + 1, 1.0)
        times /= run
    return boxes, times
