"""The weight θ of differences that costs hardly any noise: what `algorithm.difference_scale = "auto"` stands for.

σ grows with θ, from SAG's at θ = q (a Gaussian that shifts by G/J) to that of the paper's SAGA at θ = 1. The estimate
is the less biased the larger θ is (docs/algorithms.md), so "auto" is the largest θ whose σ exceeds the least by 2 % at
most. It is made of public numbers alone and promises nothing: what it costs is certified like any other θ.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from privsgp.accounting import accountant, cache, calibration

if TYPE_CHECKING:
    from privsgp.accounting.mechanisms import Relation, Saga

MORE = 1.02  # σ that a larger weight may cost, beside the least


def largest(mechanism: Saga, steps: int, epsilon: float, delta: float, relation: Relation = "zero-out") -> float:
    """Return the largest θ, of two digits, whose σ for this budget is within 2 % of the least; q where none is.

    `mechanism.sigma` and its own θ are not looked at. Guarantee: none is needed, θ is counted like any other.
    """
    noise = MORE * calibration.gaussian_sigma(mechanism, steps, epsilon, delta, sides=_sides(relation))
    return _kept(mechanism, steps, noise, epsilon, delta, relation)


def largest_at(mechanism: Saga, steps: int, delta: float, relation: Relation = "zero-out") -> float:
    """Return the largest θ whose ε at the mechanism's σ is no more than the least one for 2 % less noise."""
    least = dataclasses.replace(mechanism, difference_scale=mechanism.rate, sigma=mechanism.sigma / MORE)
    epsilon = accountant.rough(least, steps, delta, relation)
    return 1.0 if math.isinf(epsilon) else _kept(mechanism, steps, mechanism.sigma, epsilon, delta, relation)


def _sides(relation: Relation) -> int:
    return 2 if relation == "replace-one" else 1


def _kept(m: Saga, steps: int, sigma: float, epsilon: float, delta: float, relation: Relation) -> float:
    """Ask the cache first: the search takes a second, and all that it depends on is in the question."""
    shift = m.radius / (m.samples * sigma)
    question = f"scale {m.rate!r} {m.sampling} {m.difference_clip} {shift!r} {steps} {epsilon!r} {delta!r} {relation}"
    if (kept := cache.recall(question, 1)) is not None and 0 < kept[0] <= 1:
        return kept[0]
    found = _searched(dataclasses.replace(m, sigma=sigma), steps, epsilon, delta, relation)
    cache.keep(question, (found,))
    return found


def _searched(m: Saga, steps: int, epsilon: float, delta: float, relation: Relation) -> float:
    """Bisect the weights of two digits above q: ε grows with θ."""

    def fits(scale: float) -> bool:
        return accountant.rough(dataclasses.replace(m, difference_scale=scale), steps, delta, relation) <= epsilon

    if fits(1.0):
        return 1.0
    known, tried = [scale for scale in _weights(m.rate) if scale > m.rate], 0
    beyond = len(known)
    while tried < beyond:
        middle = (tried + beyond) // 2
        tried, beyond = (middle + 1, beyond) if fits(known[middle]) else (tried, middle)
    return known[tried - 1] if tried else _rounded_down(m.rate)


def _weights(least: float) -> list[float]:
    """Return the numbers of two digits below 1, down to the decade of the least."""
    decades = range(math.floor(math.log10(least)), 0)
    return [digits / 10 ** (1 - decade) for decade in decades for digits in range(10, 100)]


def _rounded_down(rate: float) -> float:
    """Return three digits of q, surely not above it: there both shifts of a sample lie in the ball of radius G/J."""
    unit = 10.0 ** (2 - math.floor(math.log10(rate)))
    return math.floor(rate * (1 - 1e-9) * unit) / unit
