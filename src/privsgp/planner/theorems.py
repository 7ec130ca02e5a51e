"""The paper's second half, one small function per equation: Theorem 1, Corollary 1 and K̂(C, q).

Plain floats in the paper's letters: n nodes with J samples each, d parameters, K steps, G a bound on one sample's
gradient, and `Constants` for the rest. Where a number outgrows floating point its logarithm is returned.

Columns of P sum to one, so mixing never changes Σx: whatever the graph, x̄ moves by −γ Σ p_i (g_i + N_i) (p_i = 1/n
where all nodes count alike), and each coordinate of it collects the variance Σ_k γ_k² Σ_i p_i² σ_i². Curvature then
pulls a little of it back (`response`, measured in a rehearsal).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from privsgp.planner.rehearsal import Rehearsal, RehearsalSpec


Budget = tuple[float, float]  # (ε_i, δ_i)


@dataclass(frozen=True)
class Constants:
    """What the bound knows of a problem: L, F⁰ = f(x⁰) − f*, and the *squared* b² (Assumption 5) and ‖x⁰‖²."""

    smoothness: float
    gap: float
    heterogeneity: float
    norm: float

    def __post_init__(self) -> None:
        if not 0 < self.smoothness < math.inf:
            raise Refused(f"smoothness = {self.smoothness}", "L is a finite number above 0")
        for name in ("gap", "heterogeneity", "norm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise Refused(f"{name} = {getattr(self, name)}", "take a finite number of at least 0")
        if self.start == 0:
            raise Refused("gap = heterogeneity = norm = 0", "there is nothing to learn: give at least one of them")

    @property
    def start(self) -> float:
        """13F⁰ + 6L‖x⁰‖² + 18Lb²: what the bound would be made of without noise."""
        return 13 * self.gap + 6 * self.smoothness * self.norm + 18 * self.smoothness * self.heterogeneity


def bound(constants: Constants, n: int, d: int, K: float, variances: Sequence[float]) -> float:
    """Theorem 1: (13F⁰ + 6L‖x⁰‖² + 18Lb² + 24L (d/n) Σσ_i²) / √(nK)."""
    noise = 24 * constants.smoothness * d * math.fsum(variances) / n
    return (constants.start + noise) / math.sqrt(n * K)


def hardness(budgets: Sequence[Budget], J: Sequence[float]) -> float:
    """Σ_i ln(1/δ_i) / (ε_i J_i)²: what all budgets together ask for. The paper has one J and takes it out."""
    return math.fsum(math.log(1 / delta) / (epsilon * j) ** 2 for (epsilon, delta), j in zip(budgets, J, strict=True))


def best_steps(
    constants: Constants, d: int, G: float, budgets: Sequence[Budget], J: Sequence[float], c2: float
) -> float:
    """Corollary 1: K = (13F⁰ + 6L‖x⁰‖² + 18Lb²) J² n / (216 L d c₂² G² Σ ln(1/δ_i)/ε_i²)."""
    return constants.start * len(budgets) / (216 * constants.smoothness * d * (c2 * G) ** 2 * hardness(budgets, J))


def minimise(value: Callable[[float], float], low: float, high: float, precision: float = 1e-4) -> float:
    """Return where a function with one valley in ln K is smallest, by golden section."""
    ratio = (math.sqrt(5) - 1) / 2
    a, b = math.log(low), math.log(high)
    while b - a > precision:
        left, right = b - ratio * (b - a), a + ratio * (b - a)
        if value(math.exp(left)) <= value(math.exp(right)):
            b = right
        else:
            a = left
    return math.exp((a + b) / 2)


def log_least_steps(L: float, n: int, J: float, log_c: float, log_one_minus_q: float) -> float:
    """Return ln K̂(C, q), below which Theorem 1 says nothing; infinite where the lemma gives no C."""
    c2 = 2 * (log_c - log_one_minus_q)  # ln C²/(1 − q)²
    l2 = 2 * math.log(L)
    terms = (
        math.log(4 * n) + l2 + _log_sum(math.log(J**2 * (1 + J) / n), math.log(12 * (1 + J)) + c2),
        math.log(144) + 3 * math.log(n) + l2 + 2 * c2,
        2 * math.log(4 * (4 * J + 5)) + l2 - math.log(n),
        math.log(4 * (48 * J + 66) * n) + l2 + c2,
        math.log(64 * n / 9) + 4 * math.log(J) + 2 * math.log1p(J) + l2,
    )
    return max(terms)


def _log_sum(a: float, b: float) -> float:
    high, low = max(a, b), min(a, b)
    return high + math.log1p(math.exp(low - high)) if math.isfinite(high) else high


def response(rehearsal: Rehearsal, spec: RehearsalSpec, distance: float) -> float:
    """Return the share of `average_variance` that is left when gradients answer to the noise, from a rehearsal.

    Rehearsals with the same coins, with noise and without: curvature makes it less than 1, and so does everything
    in which noise moves a model less (or more) than it moves a point on a plain.
    """
    return rehearsal.moved(spec, distance) if spec.noise else 1.0
