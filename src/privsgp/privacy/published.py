"""The paper's Theorem 3, σ = 3 c₂ G √(K ln(1/δ)) / (J ε), with its unspecified constant made explicit.

A planner, not a guarantee (privacy.md): whatever is nominal here is shown beside what the certified accountant says
about the same run. The default c₂ repeats the paper's ResNet-18 numbers. Plain PrivSGP has G in place of 3G.
"""

from __future__ import annotations

import math

from privsgp.errors import Refused
from privsgp.privacy.mechanism import Mechanism, Saga, SampledMean

C2 = 0.3724


def sigma(mechanism: Mechanism, steps: int, epsilon: float, delta: float, c2: float = C2) -> float:
    """Return the noise the formula asks for; `mechanism.sigma` is not looked at.

    Guarantee: none.
    Assumes: the constant c₂, which the paper does not give.
    """
    if not 0 < epsilon < math.inf:
        raise Refused(f"epsilon = {epsilon}", "take a finite number above 0")
    return _product(mechanism, steps, delta, c2) / epsilon


def epsilon(mechanism: Mechanism, steps: int, delta: float, c2: float = C2) -> float:
    """Return the nominal ε at which the formula asks for the mechanism's noise, `math.inf` without noise.

    Guarantee: none.
    Assumes: the constant c₂, which the paper does not give.
    """
    product = _product(mechanism, steps, delta, c2)
    return product / mechanism.sigma if mechanism.sigma else math.inf


def _product(mechanism: Mechanism, steps: int, delta: float, c2: float) -> float:
    """Return σ ε = 3 c₂ G √(K ln(1/δ)) / J."""
    factors = {Saga: 3.0, SampledMean: 1.0}
    if type(mechanism) not in factors:
        raise Refused(
            f"mechanism = {type(mechanism).__name__}", "the paper has a formula for PrivSGP and PrivSGP-VR only"
        )
    if steps < 0:
        raise Refused(f"steps = {steps}", "the number of steps is at least 0")
    if not 0 < delta < 1:
        raise Refused(f"delta = {delta}", "take 0 < delta < 1")
    if not 0 < c2 < math.inf:
        raise Refused(f"c2 = {c2}", "take a finite number above 0")
    spread = math.sqrt(steps * math.log(1 / delta))
    return factors[type(mechanism)] * c2 * mechanism.clip * spread / mechanism.samples
