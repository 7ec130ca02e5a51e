"""The statistics of an audit: what can be concluded, and how surely, from what an adversary saw of canaries.

A canary is a record of the auditor's own, present or absent by a coin. Every message gives one score per canary, which
is N(0, 1) where the canary is absent. Given everything before it, a present canary's score obeys

    P(event) ≤ e^ε Q(event) + δ(ε)    and    Q(event) ≤ e^ε P(event) + δ(ε)      for every ε,

with the certified curve δ(ε) of *one* release. So the number of scores in an event is dominated by a binomial one,
however the adversary reacted to what it saw, and exact binomial tails are valid. That compares with the whole curve
(Nasr et al. 2023; Mahloujifar et al. 2024), not with one (ε, δ). Releases compose only if their noise is independent
and their coins are too: `correlation_p` and `coins_p` test both.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from privsgp.accounting.curve import Curve

    Scores = NDArray[np.floating[Any]]

THRESHOLDS = np.array([0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0])
EPSILONS = np.concatenate(([0.0], np.geomspace(1e-3, 12.0, 60)))
FACTORS = [2 ** (k / 8) for k in range(-8, 25)]  # of σ: half of it to eight times as much
GROUPS = 16  # of a node's records
MOST_COMPARED = 10_000  # messages whose noise is compared one by one
TINY = 1e-300


@dataclass(frozen=True, eq=False)
class TradeOff:
    """The trade-off that a curve δ(ε) of one release allows: pairs (ε, δ) that all hold."""

    epsilon: NDArray[np.float64]
    delta: NDArray[np.float64]

    @classmethod
    def of(cls, curve: Curve) -> TradeOff:
        """Read a curve at a few dozen ε; each holds by itself, so no other is needed for validity."""
        return cls(EPSILONS, np.array([curve.delta(float(e)) for e in EPSILONS]))

    def most(self, probability: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how probable an event can at most be with the canary, if it has this probability without (or v.v.)."""
        q, e, d = probability[..., None], self.epsilon, self.delta
        here = np.exp(e) * q + d
        complement = 1 - np.exp(-e) * (1 - q - d)
        most: NDArray[np.float64] = np.clip(np.minimum(here, complement).min(-1), probability, 1.0)
        return most


def noise_p(scores: Scores) -> float:
    """Return a p-value against "the scores of absent canaries are N(0, 1)".

    One-sided: too much noise hides more, not less. Tested are the scale, and by Kolmogorov and Smirnov's test the shape
    (bounded or light-tailed noise).
    """
    if not scores.size:
        return 1.0
    scale = stats.chi2.cdf(np.square(scores, dtype=np.float64).sum(), scores.size)
    shape = stats.kstest(np.abs(scores).ravel(), stats.halfnorm.cdf, alternative="greater").pvalue
    return bonferroni(scale, shape)


def correlation_p(noise: Scores, *, same_step: bool = True) -> list[float]:
    """Return each node's p-value against "its noise is independent of all other noise", from noise [steps, n, s].

    Two tests: one compares any two messages and finds noise that was used twice, however seldom. The other adds up all
    steps, for each lag and each pair of nodes, and finds a small part that is shared each time. With
    `same_step = False` messages of one step may be correlated.

    Guarantee: at most p of the audits of independent N(0, 1) give a value of p or less.
    """
    own = np.sqrt(np.square(noise, dtype=np.float64).mean((0, 2), keepdims=True))
    z = noise / np.maximum(1.0, own)  # more noise than declared is no fault
    spectrum = np.fft.rfft(z, 2 * len(z), axis=0)
    z = z[: max(1, MOST_COMPARED // z.shape[1])]
    unit = (z / np.linalg.norm(z, axis=2, keepdims=True).clip(min=TINY)).astype(np.float32)
    return [
        bonferroni(_pair_p(unit, i, same_step=same_step), _lag_p(spectrum, len(noise), i, same_step=same_step))
        for i in range(z.shape[1])
    ]


def _pair_p(unit: Scores, node: int, *, same_step: bool) -> float:
    """Compare a node's messages, unit vectors [steps, n, s], with all others: a squared cosine has a beta law."""
    steps, _, size = unit.shape
    cosines = np.einsum("ks,ljs->klj", unit[:, node], unit, optimize=True)
    same = np.arange(steps)
    cosines[same, same, node if same_step else slice(None)] = 0
    largest = max(cosines.max(), -cosines.min())
    return float(stats.beta.sf(min(1.0, largest**2), 0.5, (size - 1) / 2)) * cosines.size if size > 1 else 1.0


def _lag_p(spectrum: NDArray[np.complex128], steps: int, node: int, *, same_step: bool) -> float:
    """Look for a lag at which a node's noise resembles any node's, given the Fourier transforms [frequencies, n, s].

    The sum S of N products at one lag is a quadratic form with norm at most 1 and Frobenius norm √(N/2), so that
    P(|S| ≥ t) ≤ 2 exp(−t² / (2N + 4t)).
    """
    products = np.einsum("ks,kjs->kj", spectrum[:, node].conj(), spectrum)
    sums = np.abs(np.fft.irfft(products, 2 * steps, axis=0))  # rows: lags 0, 1, …, then …, −2, −1
    sums[0, node if same_step else slice(None)] = 0
    terms = spectrum.shape[2] * np.abs(steps - np.arange(2 * steps))[:, None]
    return float(2 * sums.size * np.exp(-np.square(sums) / (2 * terms + 4 * sums + TINY)).min())


def group_sizes(drawn: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Count the drawn records [..., J] in groups: record j belongs to group j mod GROUPS."""
    return np.stack([drawn[..., group::GROUPS].sum(-1) for group in range(GROUPS)], -1)


def coins_p(
    sizes: NDArray[np.int64], counts: Sequence[NDArray[np.int64]], rates: Sequence[float], rng: np.random.Generator
) -> list[float]:
    """Return each node's p-value against "each record is drawn at each step by its own coin of the node's rate".

    `sizes` [steps, n, GROUPS] are the `group_sizes` of all steps. `counts[i]` [J_i] are the numbers of steps at which
    each record of node i was drawn. All of these, and their sums, are binomial. Batches and counts are too even if
    records take turns, and too uneven if records or steps share coins.
    """
    trials = [group_sizes(np.ones(len(c), np.bool_)) for c in counts]
    groups = np.stack([_normals(sizes[:, i], trials[i], rates[i], rng) for i in range(len(counts))], 1)
    found = []
    for batches, c, q, apart in zip(sizes.sum(2).T, counts, rates, correlation_p(groups), strict=True):
        often = float(stats.binom.sf(c.sum() - 1, c.size * len(sizes), q))
        spreads = (_spread_p(_normals(batches, c.size, q, rng)), _spread_p(_normals(c, len(sizes), q, rng)))
        found.append(bonferroni(*spreads, often, apart))
    return found


def _spread_p(z: NDArray[np.float64]) -> float:
    """Return a two-sided p-value against "z are independent N(0, 1)", by their sum of squares."""
    below = float(stats.chi2.cdf(np.square(z).sum(), z.size))
    return 2 * min(below, 1 - below)


def _normals(
    counts: NDArray[np.int64], trials: int | NDArray[np.int64], rate: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return numbers that are independent N(0, 1) if the counts are independent and binomial.

    A count becomes a random place within its step of the distribution function.
    """
    step = stats.binom.pmf(counts, trials, rate)
    position = stats.binom.cdf(counts - 1, trials, rate) + rng.random(counts.shape) * step
    z: NDArray[np.float64] = stats.norm.ppf(position.clip(1e-16, 1 - 1e-16))
    return z


def trade_off_p(present: Scores, allowed: TradeOff) -> float:
    """Return a p-value against "a present canary's scores are within the trade-off curve, around N(0, 1)".

    Guarantee: at most p of the audits of a mechanism that keeps to `allowed` give a value of p or less, whatever the
    adversary did between the steps.
    Assumes: without the canary the score would be N(0, 1), given the past; `noise_p` tests that.
    """
    tail = stats.norm.sf(THRESHOLDS)
    inside = np.concatenate((tail, tail, 2 * tail))
    limit = allowed.most(np.concatenate((inside, 1 - inside)))
    return bonferroni(*stats.binom.sf(_counts(present) - 1, present.size, limit))


def least_noise(present: Scores, absent: Scores, allowed: Callable[[float], TradeOff], alpha: float) -> float | None:
    """Return the least multiple of the claimed σ that the scores reject, None if they reject none.

    `allowed(factor)` is the trade-off curve of the mechanism with noise factor · σ. Nothing is assumed about the law of
    the absent canaries' scores but that it does not change from step to step: both rates are bounded by Clopper and
    Pearson's limits.
    """

    def rejected(factor: float) -> bool:
        return _outside(present, absent, allowed(factor), alpha)

    if not present.size or not absent.size or not rejected(FACTORS[-1]):
        return None
    return FACTORS[bisect_left(FACTORS, 1, key=rejected)]  # wherever noise is rejected, more of it is too


def _outside(present: Scores, absent: Scores, allowed: TradeOff, alpha: float) -> bool:
    """Tell whether, at level alpha over all events and both directions, the two rates contradict a trade-off curve."""
    p, q = _counts(present), _counts(absent)
    each = alpha / (2 * p.size)  # an event and its complement are both here: four limits for each pair of them
    upper_q, lower_p = _upper(q, absent.size, each), _lower(p, present.size, each)
    upper_p, lower_q = _upper(p, present.size, each), _lower(q, absent.size, each)
    return bool((lower_p > allowed.most(upper_q)).any() or (lower_q > allowed.most(upper_p)).any())


def _counts(scores: Scores) -> NDArray[np.int64]:
    """Count the scores above t, below −t and in either, for all thresholds; then in the complements."""
    flat, t = scores.ravel(), THRESHOLDS[:, None]
    above, below = (flat > t).sum(1), (flat < -t).sum(1)
    inside = np.concatenate((above, below, above + below))
    return np.concatenate((inside, flat.size - inside))


def _lower(count: NDArray[np.int64], trials: int, alpha: float) -> NDArray[np.float64]:
    return np.where(count > 0, stats.beta.ppf(alpha, np.maximum(count, 1), trials - count + 1), 0.0)


def _upper(count: NDArray[np.int64], trials: int, alpha: float) -> NDArray[np.float64]:
    return np.where(count < trials, stats.beta.isf(alpha, count + 1, np.maximum(trials - count, 1)), 1.0)


def bonferroni(*p: float) -> float:
    """Return one p-value for several that may depend on each other."""
    return float(min(1.0, len(p) * min(p)))
