"""Searching for shared noise: plans, and the noise that a run proposes.

Nothing here promises anything. A run counts what the noise found is worth by `pairwise.PairwiseCovariance.effective`,
and refuses noise that is worth less than a node needs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import optimize

from privsgp.accounting import accountant
from privsgp.accounting.accountant import Disagreement
from privsgp.accounting.compound import Shared
from privsgp.accounting.pairwise import DOWN, PairwiseCovariance, trust_curve
from privsgp.errors import Refused
from privsgp.files import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from privsgp.accounting.mechanisms import Mechanism, Relation
    from privsgp.accounting.pairwise import Array


@dataclass(frozen=True)
class Sharing:
    """Nodes that are all alike and share noise: what a plan asks about."""

    nodes: int
    honest: int

    def solved(self, sigma: float, ratio: float) -> PairwiseCovariance:
        """Return the noise that is worth σ."""
        return solve([sigma] * self.nodes, self.honest, ratio)

    def counted(self, mechanism: Mechanism, covariance: PairwiseCovariance) -> Shared:
        """Return the mechanism as it is counted with this noise."""
        if mechanism.coordinates:
            covariance.refuse_large_pairs()
        sigma, least = covariance.effective(self.honest)[0], min(covariance.own_sigma)
        return Shared(mechanism.with_sigma(sigma), self.honest, self.nodes - 1, least)

    def summary(
        self,
        covariance: PairwiseCovariance,
        mechanism: Shared,
        steps: int,
        delta: float,
        relation: Relation,
        unit: Callable[[Mechanism], Mechanism],
    ) -> dict[str, Any]:
        """Return what the noise is made of, and ε of a unit of privacy by how many nodes are honest."""

        def epsilon(at: Mechanism) -> float:
            return accountant.epsilon(unit(at), steps, delta, relation).epsilon

        curve = [[h, finite(e)] for h, e in trust_curve(covariance, 0, mechanism, epsilon)]
        shown = {"trust": "honest sites", "nodes": self.nodes, "honest": self.honest}
        return shown | covariance.to_json(self.honest) | {"curve": curve}


def solve(
    needed: Sequence[float], honest: int, ratio: float, weights: Sequence[float] | None = None
) -> PairwiseCovariance:
    """Return pairwise noise with which each node's σ_eff is at least what it needs before n − h colluding nodes.

    `ratio` is ρ: how much noise the honest part of a message carries, D + h s² = ρσ². More of it leaves less noise in
    the average and more in each message. If nodes need different σ_i, the noise of the average is weighed against that
    of messages as ρ does for equal nodes.

    Guarantee: `effective(honest)` of what is returned is at least `needed`, node by node.
    """
    n = len(needed)
    if not all(0 < sigma < math.inf for sigma in needed):
        raise Refused(f"σ = {list(needed)}: a node has no noise, or no finite σ", "give every node a finite σ above 0")
    steps = [1.0] * n if weights is None else [n * p for p in weights]
    needed = [float(sigma) for sigma in needed]
    least = np.array([(step * sigma) ** 2 for step, sigma in zip(steps, needed, strict=True)])
    own, s2 = _equal(float(least.max()), honest, ratio)
    found = PairwiseCovariance((own,) * n, s2, None if weights is None else tuple(weights))
    if least.min() < least.max():
        found = _cheapest(found, least, honest, ratio)
    return _enough(found, needed, honest)


def _equal(variance: float, h: int, ratio: float) -> tuple[float, float]:
    """Return (D, s²) for nodes that need the same σ²: 1/σ² = 1/(hD) + (1 − 1/h)/(D + h s²) with D + h s² = ρσ²."""
    own = variance * ratio / (h * ratio - h + 1)
    return own, (ratio * variance - own) / h


def _cheapest(start: PairwiseCovariance, least: Array, h: int, ratio: float) -> PairwiseCovariance:
    """Return noise for unequal needs that makes mean(D) + μ s² small; for equal needs its least is at ρ.

    All nodes add at least a common D; those that need more than the others then hide add more of their own.
    """
    kappa = (h - 1) / (h * ratio - h + 1) ** 2
    mu = h * kappa / (1 + kappa)

    def given(common: float, s2: float) -> Array:
        F = (h - 1) * common / (common + h * s2)
        need: Array = np.maximum(common, least - h * s2 * F / (1 + F))
        return need

    def price(logs: Array) -> float:
        common, s2 = np.exp(logs)
        return float(given(common, s2).mean() + mu * s2)

    first = np.log([start.own[0], start.pair])
    second = np.log(_equal(float(least.mean()), h, ratio))
    tried = [optimize.minimize(price, x0, method="Nelder-Mead", options={"xatol": 1e-4}) for x0 in (first, second)]
    best = min(tried, key=lambda one: float(one.fun))
    common, s2 = np.exp(best.x)
    cheap = PairwiseCovariance(tuple(given(common, s2).tolist()), float(s2), start.weights)
    return cheap if best.fun < price(first) else start


def _enough(noise: PairwiseCovariance, needed: Sequence[float], honest: int) -> PairwiseCovariance:
    """Multiply all variances by what the worst-off node lacks, or all have too much."""
    for _ in range(8):
        ratios = [need / has for need, has in zip(needed, noise.effective(honest), strict=True)]
        if 1 - 4 * DOWN <= max(ratios) <= 1:
            return noise
        noise = noise.scaled(max(ratios) ** 2 * (1 + 2 * DOWN))
    raise Disagreement(f"noise for σ = {list(needed)} does not settle")
