"""σ from ε: the smallest noise whose certified ε does not exceed a budget.

Nothing rests on this search: before anything is sent `engine.spec` refuses noise whose certified ε exceeds a budget.

The certified ε falls with σ, nearly as a power of it, so a search that is linear in the logarithms needs a handful of
certified values. The σ returned is one of those values: it is never extrapolated.

The weight θ of differences that costs hardly any noise: what `algorithm.difference_scale = "auto"` stands for.

σ grows with θ, from SAG's at θ = q (a Gaussian that shifts by G/J) to that of the paper's SAGA at θ = 1. The estimate
is the less biased the larger θ is (docs/algorithms.md), so "auto" is the largest θ whose σ exceeds the least by 2 % at
most, or by more where the average has only a part of the noise. It is made of public numbers alone and promises
nothing: what it costs is certified like any other θ.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from functools import lru_cache
from typing import TYPE_CHECKING

from privsgp import plugins
from privsgp.accounting import accountant
from privsgp.accounting.curve import Gaussian, bisect
from privsgp.accounting.mechanisms import Mechanism, Relation, Saga, Unprotected
from privsgp.accounting.sampler_cost import ASIDE, MOST_SUMMED, SHARE, Cost
from privsgp.accounting.shown import up
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

C2 = 0.3724  # of the published formula: repeats the paper's ResNet-18 numbers
_LEAST_MORE = 1.02  # a budget, beside what earlier runs have spent: less than that may be an error of the grid
WITHIN = math.log(1.004)  # the σ returned exceeds the smallest one by at most this much

Point = tuple[float, float]  # ln σ, and ln(certified ε / budget) there


def published(mechanism: Mechanism, steps: int, epsilon: float, delta: float, c2: float, algorithm: str) -> float:
    """Return the noise that the algorithm's paper asks for. Its true ε is still certified."""
    return float(plugins.formula("published").sigma(mechanism, steps, epsilon, delta, c2, algorithm))


def sigma(mechanism: Mechanism, steps: int, epsilon: float, delta: float, relation: Relation = "zero-out") -> float:
    """Return the smallest σ, within 0.5 %, whose certified ε is at most `epsilon`; `mechanism.sigma` is not looked at.

    Guarantee: `accountant.epsilon` of the mechanism with this σ is at most `epsilon`.
    Assumes: as `accountant.epsilon`.
    """
    _check(mechanism, epsilon)
    if not accountant.check(steps, delta, relation):
        return 0.0
    continues = len(mechanism.phases(0)) > 1
    if continues and (before := accountant.epsilon(mechanism, 0, delta, relation).epsilon) >= epsilon / _LEAST_MORE:
        what = f"earlier runs on these records have spent ε = {up(before)} of epsilon = {up(epsilon)}"
        raise Refused(what, "too little is left: take a larger budget for all of them together")

    ideal = mechanism.changed(coordinates=0)

    def certified(value: float) -> float:
        return accountant.epsilon(ideal.with_sigma(value), steps, delta, relation).epsilon

    def rough(value: float) -> float:
        return accountant.rough(ideal.with_sigma(value), steps, delta, relation)

    near = _search(rough, epsilon, gaussian_sigma(mechanism, steps, epsilon, delta), 5 * WITHIN)
    refuse_vast(mechanism.with_sigma(near), steps, delta)  # few samples a step need more than the Gaussian's
    found = _search(certified, epsilon, near, WITHIN)
    return _with_sampler(mechanism, steps, epsilon, delta, relation, found)


def _with_sampler(
    mechanism: Mechanism, steps: int, epsilon: float, delta: float, relation: Relation, found: float
) -> float:
    """Return the σ found for ideal noise, or a little more: enough for what the sampler costs too.

    The search ends slightly below the budget, nearly always by more than the sampler's cost. If the answer is exact
    (without sampling), σ grows by some 10⁻⁵ of itself.
    """
    sigma, more = found, 2.0**-16
    while accountant.epsilon(mechanism.with_sigma(sigma), steps, delta, relation).epsilon > epsilon:
        sigma, more = found * (1 + more), 2 * more
    return sigma


def refuse_vast(mechanism: Mechanism, steps: int, delta: float) -> None:
    """Refuse a run whose sampler would leave no δ, or no finite ε, however much noise it added."""
    if mechanism.coordinates and mechanism.summed_nodes > MOST_SUMMED:
        what = f"no ε is known for sums of {mechanism.summed_nodes} nodes' messages"
        raise Refused(what, f"take {MOST_SUMMED} at most, or trust 'per-node'")
    cost, why = Cost.of(mechanism, steps, 0.0), ""
    if cost.tail > delta / 4 or 3 * cost.variation > ASIDE[-1] * delta:
        why = f"the tail of the sampler alone may cost {cost.tail_at(0.0):.2g}: take a larger δ"
    elif cost.ratio(delta, 10.0 if mechanism.shared else 100.0) > SHARE / 2:
        drawn = f"{mechanism.batch:g} of {mechanism.samples} samples a step"
        why = f"with {drawn}, rounding may cost more than is set aside: take a larger batch"
    if why:
        what = f"{mechanism.coordinates:,} coordinates and {steps:,} releases at δ = {up(delta)}"
        fewer = ", or share noise with fewer nodes" if mechanism.shared else ""
        raise Refused(what, f"{why}, fewer steps, a smaller model{fewer}")


def _search(account: Callable[[float], float], budget: float, start: float, within: float) -> float:
    """Return a σ whose ε is within the budget, while one smaller by e^within is not."""

    def point(log_sigma: float) -> Point:
        return log_sigma, math.log(max(account(math.exp(log_sigma)) / budget, 1e-300))

    def narrowed(log_sigma: float) -> tuple[Point, Point]:
        new = point(log_sigma)
        return (lower, new) if new[1] <= 0 else (new, upper)

    lower, upper = _surround(point, math.log(start), within)
    while (width := upper[0] - lower[0]) > within:
        lower, upper = narrowed(_between(lower, upper, within))
        if upper[0] - lower[0] > max(width / 2, within):
            lower, upper = narrowed((lower[0] + upper[0]) / 2)
    return math.exp(upper[0])


def _check(mechanism: Mechanism, epsilon: float) -> None:
    if not 0 < epsilon < math.inf:
        raise Refused(f"epsilon = {epsilon} is no finite number above 0", "give a budget, for example 3.0")
    if isinstance(mechanism, Unprotected) or math.isinf(mechanism.clip):
        raise Refused(f"clip = {mechanism.clip}: a budget needs clipped gradients", "take a finite clip")


def gaussian_sigma(mechanism: Mechanism, steps: int, epsilon: float, delta: float, *, sides: int = 1) -> float:
    """Return σ of a Gaussian with the shift G/J, what sampled releases tend to when there are many of them."""
    return sides * math.sqrt(steps) * mechanism.radius / (mechanism.samples * gaussian_shift(epsilon, delta))


@lru_cache(maxsize=1024)
def gaussian_shift(epsilon: float, delta: float) -> float:
    """Return μ such that a Gaussian with a shift of μσ is exactly (ε, δ)-private: what K releases may add up to."""
    return 1 / bisect(lambda inverse: Gaussian(1 / inverse).epsilon(delta) <= epsilon, 1e9, 1e-9)


def relative_noise(budgets: Sequence[tuple[float, float]], J: Sequence[float]) -> list[float]:
    """Return σ_i of every node up to a common factor: 1/(J_i μ_i), where many releases add up."""
    return [1 / (j * gaussian_shift(*budget)) for budget, j in zip(budgets, J, strict=True)]


def _surround(point: Callable[[float], Point], start: float, within: float) -> tuple[Point, Point]:
    """Return two points, the first with too little noise, the second with enough."""
    here = point(start)
    upwards = here[1] > 0
    step = min(abs(here[1]), 1.0) + 0.6 * within
    while True:
        there = point(here[0] + (step if upwards else -step))
        if (there[1] > 0) != upwards:
            return (here, there) if upwards else (there, here)
        here, step = there, 2 * step


def _between(lower: Point, upper: Point, within: float) -> float:
    """Return where to look next: a little above where the chord crosses 0, or where the search can end."""
    if not math.isfinite(lower[1]):
        return (lower[0] + upper[0]) / 2
    crossing = lower[0] + (upper[0] - lower[0]) * lower[1] / (lower[1] - upper[1])
    above = crossing + within / 4
    return above if above < upper[0] - within / 4 else max(upper[0] - 0.99 * within, (lower[0] + crossing) / 2)


MORE = 1.02  # σ that a larger weight may cost, beside the least
STEEP = 2.5  # by which power of what sharing leaves: 2 for noise alone; steps grow as it falls, and the lag with them
BRIEF = 0.03  # of a run: a delay that is worth no more noise than where nothing is shared


def affordable(mechanism: Saga, steps: float, remaining: float = 1.0) -> float:
    """Return how much σ a larger θ may cost: 2 %, and more where a sample is drawn less than once in the run.

    There the table stays what it was at x⁰, and its lag costs more than noise (docs/algorithms.md). `remaining` is what
    sharing leaves of the noise in the average, which may grow by the more; of two digits, so that machines which round
    differently agree.
    """
    alone, fraction = max(MORE, 1 / (mechanism.rate * steps)), float(f"{min(remaining, 1.0):.2g}")
    return alone if fraction == 1 else math.sqrt(1 + (alone**2 - 1) / fraction**STEEP)


@lru_cache(maxsize=1024)  # a plan asks for the same numbers again and again
def rough_sigma(mechanism: Mechanism, steps: int, epsilon: float, delta: float, relation: Relation) -> float:
    """Return about the σ that a budget needs, within 1 %, for a plan: nothing is certified."""

    def rough(value: float) -> float:
        return accountant.rough(mechanism.with_sigma(value), steps, delta, relation)

    least = gaussian_sigma(mechanism, steps, epsilon, delta, sides=_sides(relation))
    return _search(rough, epsilon, least, 2 * WITHIN)


def largest(
    mechanism: Saga, steps: int, epsilon: float, delta: float, relation: Relation = "zero-out", remaining: float = 1.0
) -> float:
    """Return the largest θ, of two digits, whose σ for this budget is `affordable` beside the least; q where none is.

    `mechanism.sigma` and its own θ are not looked at. Guarantee: none is needed, θ is counted like any other.
    """
    least = gaussian_sigma(mechanism, steps, epsilon, delta, sides=_sides(relation))

    def within(factor: float) -> float:
        return _searched(dataclasses.replace(mechanism, sigma=factor * least), steps, epsilon, delta, relation)

    return _weight(mechanism, steps, remaining, within)


def largest_at(
    mechanism: Saga, steps: int, delta: float, relation: Relation = "zero-out", remaining: float = 1.0
) -> float:
    """Return the largest θ whose ε at the mechanism's σ is no more than the least one for so much less noise."""

    def within(factor: float) -> float:
        least = dataclasses.replace(mechanism, difference_scale=mechanism.rate, sigma=mechanism.sigma / factor)
        epsilon = accountant.rough(least, steps, delta, relation)
        return 1.0 if math.isinf(epsilon) else _searched(mechanism, steps, epsilon, delta, relation)

    return _weight(mechanism, steps, remaining, within)


def _weight(mechanism: Saga, steps: int, remaining: float, within: Callable[[float], float]) -> float:
    """Return θ by what σ may cost; where noise is shared, none beyond which the delay (1 − θ)/q is brief in the run."""
    alone, shared = affordable(mechanism, steps), affordable(mechanism, steps, remaining)
    scale = within(alone)
    brief = round(1 - BRIEF * mechanism.rate * steps, 2)
    return scale if shared == alone or brief <= scale else min(within(shared), brief)


def _sides(relation: Relation) -> int:
    return 2 if relation == "replace-one" else 1


@lru_cache(maxsize=1024)  # one command asks several times, and the search takes a second
def _searched(m: Saga, steps: int, epsilon: float, delta: float, relation: Relation) -> float:
    """Bisect the weights of two digits above q: ε grows with θ."""

    def fits(scale: float) -> bool:
        return accountant.rough(dataclasses.replace(m, difference_scale=scale), steps, delta, relation) <= epsilon

    if fits(1.0):
        return 1.0
    known = [scale for scale in _weights(m.rate) if scale > m.rate]
    fitting = bisect_left(known, 1, key=lambda scale: not fits(scale))
    if fitting:
        return known[fitting - 1]
    # three digits of q, surely not above it: there both shifts of a sample lie in the ball of radius G/J
    unit = 10.0 ** (2 - math.floor(math.log10(m.rate)))
    return math.floor(m.rate * (1 - 1e-9) * unit) / unit


def _weights(least: float) -> list[float]:
    """Return the numbers of two digits below 1, down to the decade of the least."""
    decades = range(math.floor(math.log10(least)), 0)
    return [digits / 10 ** (1 - decade) for decade in decades for digits in range(10, 100)]
