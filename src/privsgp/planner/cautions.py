"""What a careful colleague would say about a plan before it is carried out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.planner.theorems import Budget

REACHED = 1e9  # steps that no run takes: how many more they are tells nobody anything
HEAVY = 0.9  # leaving a node out is worth a word when the average's noise falls below this share


def below_theorem(steps: float, log_least: float) -> list[str]:
    """K below K̂(C, q): Theorem 1 says nothing here."""
    if math.log(steps) >= log_least:
        return []
    least = f"K̂ = {math.exp(log_least):.2g}" if log_least < math.log(REACHED) else "K̂, which no run reaches"
    return [f"K = {steps:.0f} is below {least}: Theorem 1 says nothing here; its bound only compares plans"]


def outside_theorem_3(steps: float, samples: Sequence[int], budgets: Sequence[Budget]) -> list[str]:
    """ε_i ≥ c₁K/J_i²: the paper leaves c₁ open, so say how large it would have to be."""
    factor = max(epsilon * j**2 / steps for (epsilon, _), j in zip(budgets, samples, strict=True))
    if factor < 1:
        return []
    return [
        (
            f"Theorem 3 holds for ε_i < c₁K/J² only, with a c₁ that the paper does not give; here c₁ would have to "
            f"exceed {factor:.3g}: the published noise is nominal"
        )
    ]


def heavy_nodes(sigmas: Sequence[float], budgets: Sequence[Budget]) -> list[str]:
    """A node whose noise drags all others: what leaving it out, or giving nodes weights ∝ 1/σ², would give."""
    n, total = len(sigmas), math.fsum(s**2 for s in sigmas)
    if n < 2 or not total:
        return []
    worst = max(range(n), key=lambda i: sigmas[i])
    without = math.sqrt((total - sigmas[worst] ** 2) / total) * n / (n - 1)
    if without >= HEAVY:
        return []
    weighted = n / math.sqrt(math.fsum(1 / s**2 for s in sigmas) * total) if min(sigmas) else 0.0
    return [
        (
            f"node {worst} (ε = {budgets[worst][0]:g}) brings {sigmas[worst] ** 2 / total:.0%} of the average's noise: "
            f"without it the noise is {without:.2f} times as large, with algorithm.weights = 'noise' {weighted:.2f} "
            f"times"
        )
    ]


def careless_delta(samples: Sequence[int], budgets: Sequence[Budget]) -> list[str]:
    """δ_i ≥ 1/J_i would allow to publish a sample outright."""
    bad = [i for i, ((_, delta), j) in enumerate(zip(budgets, samples, strict=True)) if delta * j >= 1]
    return [f"δ of node {bad[0]} is not below 1/J = {1 / samples[bad[0]]:.2g}: it should be, by far"] if bad else []


def large_table(needed: int, memory: int) -> list[str]:
    """The table does not fit."""
    if needed <= memory:
        return []
    return [
        (
            f"the table needs {needed / 2**30:.1f} GiB and this machine has {memory / 2**30:.1f} GiB: take privsgp, "
            'table = "factored", or spread the nodes over machines'
        )
    ]


def more_steps_help(steps: int, most: int) -> list[str]:
    """K was cut at the end of what a plan looks at."""
    if steps < most:
        return []
    return [f"K was cut at {most}: more steps would still help, a larger batch more"]
