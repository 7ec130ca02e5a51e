"""What a budget costs in noise, for many K and many budgets, from a handful of certified values.

A plan looks at dozens of K and at every node's budget; certifying each takes seconds. ln σ is a smooth, nearly straight
function of ln ε and of ln K, so a few certified values with straight lines between them are within a percent. A plan
may do that because it promises nothing: training calibrates and certifies every σ_i it uses.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from privsgp.accounting import accountant
from privsgp.accounting.calibration import gaussian_shift, relative_noise
from privsgp.accounting.curve import Gaussian

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from privsgp.accounting.mechanisms import Mechanism, Relation
    from privsgp.planner.theorems import Budget

NEAR = 0.02  # |ln(ε / certified ε)| that a Gaussian's slope, −1, may bridge
SPAN = 0.7  # ln ε between two certified values that a straight line may join
Point = tuple[float, float]  # (ln certified ε, ln σ)


@dataclass
class Price:
    """σ of one node by K and ε; `releases` tells how many releases K steps are counted as (spare ones included)."""

    mechanism: Mechanism
    delta: float
    relation: Relation = "zero-out"
    releases: Callable[[int], int] = lambda steps: steps
    _points: dict[int, list[Point]] = field(default_factory=dict, repr=False)

    def sigma(self, steps: int, epsilon: float) -> float:
        """Return the noise for this K and ε, within a percent of the certified one.

        Guarantee: none; `privacy.calibration.sigma` gives one.
        Assumes: as `privacy.accountant.epsilon`.
        """
        points, target = self._points.setdefault(steps, []), math.log(epsilon)
        while True:
            log_sigma, close = _read(points, target)
            if close:
                return math.exp(log_sigma)
            at = log_sigma if points else self._start(steps, epsilon)
            found = self._certified(steps, at)
            insort(points, (found, at))

    def along(self, steps: float, epsilon: float) -> float:
        """Return the noise for any K from that of the powers of 4: ln(σ/√K) is joined by straight lines in ln K."""
        low = 4 ** int(math.log(max(steps, 1), 4) + 1e-9)
        ends = [math.log(self.sigma(K, epsilon) / math.sqrt(K)) for K in (low, 4 * low)]
        return math.sqrt(steps) * math.exp(ends[0] + (ends[1] - ends[0]) * math.log(max(steps, 1) / low, 4))

    def _start(self, steps: int, epsilon: float) -> float:
        """Return a first guess of ln σ: the Gaussians' where nothing is known, else that of a neighbouring K.

        σ grows like √K where it is near the Gaussians', and hardly at all where a single drawn sample decides.
        """
        known = [K for K, points in self._points.items() if points]
        if not known:
            return self._gaussian(steps, epsilon)
        nearest = min(known, key=lambda K: abs(math.log(K / steps)))
        there = _read(self._points[nearest], math.log(epsilon))[0]
        return there + math.log(steps / nearest) / 2 * math.exp(min(self._gaussian(nearest, epsilon) - there, 0.0))

    def _gaussian(self, steps: int, epsilon: float) -> float:
        """Return ln σ of plain Gaussians that shift by G/J: what sampled releases tend to when there are many."""
        shift = math.sqrt(self.releases(steps)) * self.mechanism.radius / self.mechanism.samples
        return math.log(shift / gaussian_shift(epsilon, self.delta))

    def _certified(self, steps: int, log_sigma: float) -> float:
        noisy = self.mechanism.with_sigma(math.exp(log_sigma))
        found = accountant.epsilon(noisy, self.releases(steps), self.delta, self.relation).epsilon
        return math.log(min(max(found, 1e-9), 1e9))


def _read(points: Sequence[Point], target: float) -> tuple[float, bool]:
    """Return ln σ for ln ε = `target` and whether it can be relied on; else it is where to certify next."""
    if not points:
        return 0.0, False
    nearest = min(points, key=lambda point: abs(point[0] - target))
    if abs(nearest[0] - target) < NEAR:
        return nearest[1] + nearest[0] - target, True
    if len(points) == 1:
        return nearest[1] + _bounded(1.02 * (nearest[0] - target)), False
    right = min(max(bisect_left(points, (target,)), 1), len(points) - 1)
    (e0, s0), (e1, s1) = points[right - 1], points[right]
    if e0 <= target <= e1:
        return s0 + (s1 - s0) * (target - e0) / (e1 - e0), e1 - e0 < SPAN
    slope = (s1 - s0) / max(e1 - e0, NEAR)
    beyond = math.copysign(SPAN / 2, target - e0)  # so that neighbouring targets lie between certified values
    return nearest[1] + _bounded(slope * (target - nearest[0] + beyond)), False


def _bounded(step: float) -> float:
    return min(max(step, -0.7), 0.7)


def common_budget(
    budgets: Sequence[Budget], J: Sequence[float], delta: float, weights: Sequence[float] | None = None
) -> float:
    """Return the ε that, given to every node with J̄ samples, brings as much noise into the average as these budgets do.

    The average's variance is proportional to Σ_i p_i² σ_i²: to the mean of σ_i² where all nodes count alike.
    """
    n = len(J)
    parts = zip(weights or [1 / n] * n, relative_noise(budgets, J), strict=True)
    variance = n * math.fsum((p * noise) ** 2 for p, noise in parts)
    return Gaussian(1 / (sum(J) / n * math.sqrt(variance))).epsilon(delta)
