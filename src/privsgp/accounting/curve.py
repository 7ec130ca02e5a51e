"""Trade-off curves δ(ε) of a whole run: the exact Gaussian one, and the one group privacy makes of another.

A curve answers two questions: how large is δ at this ε, and how large must ε be for this δ. Every answer is an upper
bound of what the adversary gains; "no finite bound" is `math.inf`.

One release of a (Poisson-sampled) Gaussian: its two hockey sticks, by dp-accounting.

Under zero-out the pair is (1−q) N(0, 1) + q N(μ, 1) against N(0, 1). Under replace-one both sides are mixtures, with
shifts μ and −μ: of all admissible pairs of shifts the opposite one is the worst, since the hockey stick grows with
either norm and falls with their inner product (Kahane's formula: (x − e^ε y)₊ has a negative mixed derivative).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from scipy import special

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class Curve(Protocol):
    """A valid bound on the hockey-stick divergence, in both directions, of everything a node reveals."""

    def delta(self, epsilon: float) -> float:
        """Return an upper bound on δ at this ε ≥ 0."""

    def epsilon(self, delta: float) -> float:
        """Return an ε ≥ 0 that is enough for this δ, `math.inf` if none is known."""


def gaussian_delta(epsilon: NDArray[np.float64], mu: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the hockey stick of N(μ, 1) against N(0, 1) at any real ε: Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)."""
    missed, guessed = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return np.asarray(np.maximum(special.ndtr(missed) - np.exp(epsilon + special.log_ndtr(guessed)), 0.0))


@dataclass(frozen=True)
class Gaussian:
    """K Gaussian releases together: one, shifted by `mu` = √K · sensitivity / σ. Exact (Dong, Roth and Su 2022)."""

    mu: float

    def delta(self, epsilon: float) -> float:
        """Return δ at this ε."""
        if self.mu == 0 or math.isinf(self.mu):
            return float(self.mu > 0)
        if math.isinf(epsilon):
            return 0.0
        if self.mu > 1e4:  # where the second term is lost to rounding, the first is a bound
            return float(special.ndtr(self.mu / 2 - epsilon / self.mu))
        return min(float(gaussian_delta(np.array(epsilon), self.mu)), 1.0)

    def epsilon(self, delta: float) -> float:
        """Return the least ε for this δ, rounded up."""
        # P(loss > ε) ≤ δ is enough, and needs no search.
        enough = max(self.mu * (self.mu / 2 - special.ndtri(delta)), 0.0) if self.mu else 0.0
        return bisect(lambda e: self.delta(e) <= delta, float(enough))


@dataclass(frozen=True)
class Group:
    """Neighbouring steps in a row: (ε, δ) for one zeroed sample is (2ε, (1 + e^ε) δ) for one replaced sample.

    t `times` in a row it is (tε, (1 + e^ε + … + e^((t − 1) ε)) δ). `tail` is some δ more of a zeroed sample, at every
    ε: what tails of computed noise may show.
    """

    single: Curve
    tail: float = 0.0
    times: int = 2

    def delta(self, epsilon: float) -> float:
        """Return δ at this ε."""
        each = epsilon / self.times
        single = min(self.single.delta(each) + self.tail, 1.0)
        many = math.fsum(math.exp(min(i * each, 700.0)) for i in range(self.times))
        return min(single * many, 1.0) if single > 0 else 0.0

    def epsilon(self, delta: float) -> float:
        """Return a sufficient ε for this δ."""
        # Less than t times the single curve's ε cannot be enough. Above it, (1 + e^ε) δ'(ε) need not be monotone where
        # δ' is only a bound, but any ε that meets the condition is valid: take the first one found.
        t = self.times
        lower = upper = t * self.single.epsilon(delta / t - self.tail) if delta > t * self.tail else math.inf
        while upper < 1400 and self.delta(upper) > delta:
            lower, upper = upper, 1.05 * upper + 1e-3
        if upper >= 1400:
            return math.inf
        return bisect(lambda e: self.delta(e) <= delta, upper, lower)


def bisect(enough: Callable[[float], bool], upper: float, lower: float = 0.0) -> float:
    """Return the least value in [lower, upper] that is `enough`, rounded up; `upper` is known to be."""
    if math.isinf(upper) or enough(lower):
        return upper if math.isinf(upper) else lower
    while upper - lower > 1e-9 * upper + 1e-300:
        middle = (lower + upper) / 2
        lower, upper = (lower, middle) if enough(middle) else (middle, upper)
    return upper


SELDOM = 1e-5  # below, the library subtracts numbers that are equal in double precision, and refuses some


@dataclass(frozen=True)
class Sampled:
    """A Gaussian with shift `mu` (in units of σ) for a sample drawn with probability `rate`."""

    rate: float
    mu: float
    replace: bool = False

    def forward(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return H_ε(P‖Q), the sample being present in P."""
        return self._divergence("REPLACE" if self.replace else "REMOVE", epsilon)

    def backward(self, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return H_ε(Q‖P)."""
        return self._divergence("REPLACE" if self.replace else "ADD", epsilon)

    def _seldom(self, adjacency: str, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the zero-out sticks from the Gaussian's: (1 − q + q r − e^ε)₊ = q (r − 1 − (e^ε − 1)/q)₊.

        The other way 1 − e^ε (1 − q + q r) is q e^ε (k − r) with k = 1 − (1 − e^{−ε})/q.
        """
        if adjacency == "REMOVE":
            return self.rate * gaussian_delta(np.log1p(np.expm1(epsilon) / self.rate), self.mu)
        k = np.maximum(1 + np.expm1(-epsilon) / self.rate, 0.0)
        stick = gaussian_delta(-np.log(np.maximum(k, 1e-300)), self.mu)
        return np.asarray(self.rate * np.exp(np.minimum(epsilon, 1.0)) * k * stick)

    def _divergence(self, adjacency: str, epsilon: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.rate < SELDOM and not self.replace:
            return self._seldom(adjacency, epsilon)
        from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss  # a second to import

        kind = AdjacencyType(adjacency)
        loss = GaussianPrivacyLoss(1.0, sensitivity=self.mu, sampling_prob=self.rate, adjacency_type=kind)
        return np.asarray(loss.get_delta_for_epsilon(epsilon), dtype=np.float64)
