"""How ε and δ are printed: rounded up, so that a printed number never promises more than the computed one."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def up(value: float, digits: int = 4) -> str:
    """Write an ε or a δ with so many digits, rounded up. A number that has no more digits stays as it was typed."""
    if not math.isfinite(value):
        return f"{value:g}"
    return f"{float(Context(digits, ROUND_CEILING).create_decimal(repr(float(value)))):.{digits}g}"


def down(value: float, digits: int = 4) -> str:
    """Write an ε or a δ that is still left, rounded down."""
    return f"{float(Context(digits, ROUND_FLOOR).create_decimal(repr(float(value)))):.{digits}g}"


def bound(epsilon: float | None) -> str:
    """Write an ε, rounded up, or that there is no finite one."""
    return up(epsilon) if epsilon is not None and math.isfinite(epsilon) else "no finite bound"


def one_in(delta: float) -> str:
    """Write a δ as "1 in n", with n rounded down: never rarer than it is."""
    count = int(1 / Decimal(repr(delta)))
    return f"1 in {count:,}"


def span_up(values: Sequence[float], digits: int = 4) -> str:
    """Write one ε or δ, or the smallest and the largest, each rounded up."""
    low, high = up(min(values), digits), up(max(values), digits)
    return low if low == high else f"{low} … {high}"


def percent_up(value: float) -> str:
    """Write a bound on a probability in percent, rounded up to one decimal."""
    return f"{min((Decimal(repr(float(value))) * 100).quantize(Decimal('0.1'), ROUND_CEILING), Decimal(100)):.1f} %"


def small(delta: float) -> str:
    """Write a δ."""
    return up(delta).replace("e-0", "e-")


def guess(epsilon: float, delta: float) -> float:
    """Return how often an observer is right at most who must say, at even odds, whether a record took part.

    Guarantee: (e^ε + δ) / (1 + e^ε), by the bound (e^ε − 1 + 2δ) / (e^ε + 1) on total variation.
    Assumes: the run is (ε, δ)-private for the relation that was counted.
    """
    # divided by e^ε: a large ε must not overflow
    return min(1.0, (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)))
