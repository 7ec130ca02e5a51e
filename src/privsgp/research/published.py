"""The calibrations that papers print, each with its constants made explicit, to repeat their figures.

Planners, not guarantees (docs/paper.md): a nominal ε is shown next to the certified ε of the same run.
Only formulas that are known for sure are here; the other algorithms are refused.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from privsgp.accounting import accountant
from privsgp.accounting.calibration import C2
from privsgp.accounting.mechanisms import Mechanism, Saga, SampledMean
from privsgp.accounting.shown import up
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

    Product = Callable[[Mechanism, int, float, float], float]


def sigma(
    mechanism: Mechanism, steps: int, epsilon: float, delta: float, c2: float = C2, algorithm: str = "privsgp-vr"
) -> float:
    """Return the noise the algorithm's paper asks for; `mechanism.sigma` is not looked at.

    Guarantee: none.
    Assumes: what the paper assumes; for PrivSGP(-VR) also the constant c₂, which it does not give.
    """
    if not 0 < epsilon < math.inf:
        raise Refused(f"epsilon = {epsilon} is no finite number above 0", "take a finite number above 0")
    _check(mechanism, steps, delta, c2, algorithm)
    if algorithm == "dp2-sgd" and epsilon > steps:
        raise Refused(f"epsilon = {up(epsilon)} over {steps} steps is more than 1 a step", "take a smaller budget")
    return _PRODUCTS[algorithm](mechanism, steps, delta, c2) / epsilon


def _check(mechanism: Mechanism, steps: int, delta: float, c2: float, algorithm: str) -> None:
    if algorithm not in NAMES or not isinstance(mechanism, SampledMean | Saga):
        what = f"accountant = 'published' has no formula for {algorithm} ({type(mechanism).__name__})"
        raise Refused(what, f"take 'certified', or one of {', '.join(NAMES)}")
    if isinstance(mechanism, Saga) and mechanism.difference_scale != 1:
        what = f"accountant = 'published' does not cover difference_scale = {mechanism.difference_scale:g}"
        raise Refused(what, "take difference_scale = 1: the formula is about the paper's estimator")
    accountant.check(steps, delta, "zero-out")
    if not 0 < c2 < math.inf:
        raise Refused(f"c2 = {c2} is no finite number above 0", "take a finite number above 0")


def _theorem_3(mechanism: Mechanism, steps: int, delta: float, c2: float) -> float:
    """Return PrivSGP-VR's σ ε = 3 c₂ G √(K ln(1/δ)) / J (Theorem 2); plain PrivSGP has G in place of 3G."""
    factor = 3.0 if isinstance(mechanism, Saga) else 1.0
    return factor * c2 * mechanism.clip * math.sqrt(steps * math.log(1 / delta)) / mechanism.samples


def _basic_composition(mechanism: Mechanism, steps: int, delta: float, _c2: float) -> float:
    """Return DP²-SGD's σ ε: ε/K and δ/K a step, σ = Δ √(2 ln(1.25 K/δ)) K/ε with Δ = 2G/b."""
    return 2 * mechanism.clip / mechanism.batch * math.sqrt(2 * math.log(1.25 * max(steps, 1) / delta)) * steps


def _soteriafl(mechanism: Mechanism, steps: int, delta: float, drawn: float, always: float) -> float:
    """Return SoteriaFL's σ ε = √(48 (G_A²/4 + G_B²) K ln(1/δ)) / J: G_A of drawn terms, G_B of those always there."""
    return mechanism.clip * math.sqrt(48 * (drawn**2 / 4 + always**2) * steps * math.log(1 / delta)) / mechanism.samples


_PRODUCTS: dict[str, Product] = {
    "privsgp": _theorem_3,
    "privsgp-vr": _theorem_3,
    "dp2-sgd": _basic_composition,
    "soteriafl-sgd": lambda mechanism, steps, delta, _: _soteriafl(mechanism, steps, delta, 1, 0),
    "soteriafl-svrg": lambda mechanism, steps, delta, _: _soteriafl(mechanism, steps, delta, 2, 1),
    "soteriafl-saga": lambda mechanism, steps, delta, _: _soteriafl(mechanism, steps, delta, 2, 1),
}
NAMES = tuple(_PRODUCTS)
