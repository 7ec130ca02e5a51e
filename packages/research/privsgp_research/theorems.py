"""Corollary 1: the K at which Theorem 1's bound is smallest.

Plain floats in the paper's letters: n nodes with J samples each, d parameters, K steps, G a bound on one sample's
gradient, and `Constants` for the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


Budget = tuple[float, float]  # (ε_i, δ_i)


@dataclass(frozen=True)
class Constants:
    """The constants of the bound: L, F⁰ = f(x⁰) − f*, and the *squared* b² (Assumption 5) and ‖x⁰‖²."""

    smoothness: float
    gap: float
    heterogeneity: float
    norm: float

    @property
    def start(self) -> float:
        """13F⁰ + 6L‖x⁰‖² + 18Lb²: what the bound would be made of without noise."""
        return 13 * self.gap + 6 * self.smoothness * self.norm + 18 * self.smoothness * self.heterogeneity


def hardness(budgets: Sequence[Budget], J: Sequence[float]) -> float:
    """Σ_i ln(1/δ_i) / (ε_i J_i)²: what all budgets together ask for. The paper has one J and takes it out."""
    return math.fsum(math.log(1 / delta) / (epsilon * j) ** 2 for (epsilon, delta), j in zip(budgets, J, strict=True))


def best_steps(
    constants: Constants, d: int, G: float, budgets: Sequence[Budget], J: Sequence[float], c2: float
) -> float:
    """Corollary 1: K = (13F⁰ + 6L‖x⁰‖² + 18Lb²) J² n / (216 L d c₂² G² Σ ln(1/δ_i)/ε_i²)."""
    return constants.start * len(budgets) / (216 * constants.smoothness * d * (c2 * G) ** 2 * hardness(budgets, J))
