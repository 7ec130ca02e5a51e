"""The effect of pairwise noise: σ_eff of every node against the worst coalition, and its inverse.

Node i adds ξ_i = a_i + Σ_j ± s_i u_ij with a_i ~ N(0, D_i) its own and u_ij = u_ji standard normals that only i and j
know; the one adds what the other subtracts. An observer with all secrets of a coalition, who sees every message, sees
of an honest node i at most g_i + N(0, σ_eff,i²), where 1/σ_eff,i² = (S_H⁻¹)_ii and S_H = diag(D_H) + s² L_H is the
covariance of the others (docs/proofs/pairwise.md). Variances here are those of n p_i ξ_i, what a node with weight p_i
takes a step with: these are what has to cancel. Nothing here is random, and nothing is private.

Every σ_eff is computed twice and rounded down: as the conductance of a network of resistors (closed form), and as the
variance that is left of ξ_i when the other honest nodes' noise is known (Cholesky).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import linalg

from privsgp.accounting.accountant import Disagreement
from privsgp.accounting.sampler_cost import LARGEST_PAIR
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from privsgp.accounting.compound import Shared
    from privsgp.accounting.mechanisms import Mechanism

    Array = npt.NDArray[np.float64]

DOWN = 1e-9  # by which a computed σ_eff is rounded down, relatively
_AGREE = 1e-10  # how far two computations of one variance may lie apart, for each unit of the matrix's condition
_DENSE = 256  # honest nodes up to which every distinct node is checked by Cholesky; beyond, the extreme ones
_POINTS = 12  # of a trust curve


@dataclass(frozen=True)
class PairwiseCovariance:
    """The covariance of all nodes' noise: variances of n p_i ξ_i, `own` D_i of each node and `pair` s² of each pair.

    Every node shares noise with every other one.
    """

    own: tuple[float, ...]
    pair: float
    weights: tuple[float, ...] | None = None  # p_i; None: all alike

    def __post_init__(self) -> None:
        values = (*self.own, self.pair)
        if not all(0 <= v < math.inf for v in values):
            raise Refused(f"a variance of {self.own}, {self.pair} is negative or not finite", "give finite variances")

    @property
    def nodes(self) -> int:
        """The number n of nodes."""
        return len(self.own)

    @property
    def steps(self) -> list[float]:
        """By how much each node's step is multiplied: n p_i."""
        return [1.0] * self.nodes if self.weights is None else [self.nodes * p for p in self.weights]

    @property
    def own_sigma(self) -> list[float]:
        """The standard deviation of each node's own noise, as it is added to its gradient."""
        return [math.sqrt(D) / step for D, step in zip(self.own, self.steps, strict=True)]

    @property
    def pair_sigma(self) -> list[float]:
        """The standard deviation, at each node, of what it shares with one partner."""
        return [math.sqrt(self.pair) / step for step in self.steps]

    @property
    def message_sigma(self) -> list[float]:
        """The standard deviation of all noise in each node's message."""
        k = self.nodes - 1
        return [math.sqrt(D + k * self.pair) / step for D, step in zip(self.own, self.steps, strict=True)]

    @property
    def average_sigma(self) -> float:
        """The standard deviation of the noise in the (weighted) average of all nodes' steps: the nodes' own is left."""
        return math.sqrt(math.fsum(self.own)) / self.nodes

    def remaining(self, needed: Sequence[float]) -> float:
        """Return the average's noise beside what it would be if each node added, on its own, what it needs."""
        n = self.nodes
        parts = zip(self.weights or [1 / n] * n, needed, strict=True)
        return self.average_sigma / math.sqrt(math.fsum((p * sigma) ** 2 for p, sigma in parts))

    def among(self, honest: Sequence[int]) -> Array:
        """Return S_H: the covariance of some nodes' noise without what they share with all others."""
        own = np.array([self.own[i] for i in honest])
        covariance: Array = np.diag(own + len(own) * self.pair) - self.pair
        return covariance

    def effective(self, honest: int) -> list[float]:
        """Return σ_eff of every node before the worst coalition of all but `honest` nodes, itself one of these.

        Guarantee: for every set H of at least `honest` nodes that follow the protocol, (S_H⁻¹)_ii ≤ 1/σ_eff,i² for
        each i in H, so that what a coalition of all others sees of i is post-processing of g_i + N(0, σ_eff,i² I).
        Assumes: the honest nodes' noise is ideal, fresh at every release, and theirs alone.
        """
        if not 1 <= honest <= self.nodes:
            raise Refused(f"honest = {honest} is not in 1 … {self.nodes}", "count the node itself and some others")
        variances = _worst(self, honest)
        return [math.sqrt(v) * (1 - DOWN) / step for v, step in zip(variances, self.steps, strict=True)]

    def correlation(self, honest: int, shifts: Sequence[float]) -> float:
        """Return a bound on M_ij / max(μ_i, μ_j)² for a person who moves the messages of nodes i ≠ j by `shifts`.

        Guarantee: for a person at up to three nodes, all honest, and every set H ⊇ S of at least `honest` of them, the
        matrix M_ij = Δ_i Δ_j (S_H⁻¹)_ij is at most, entry by entry, μ² on its diagonal and a μ² elsewhere, where a is
        what is returned and μ the largest shift of these nodes in units of their σ_eff.
        """
        order = np.argsort(self.own, kind="stable")
        own, n = np.array(self.own)[order], self.nodes
        moved = (np.array(self.steps) * shifts)[order]
        mu = (np.array(shifts) / self.effective(honest))[order]
        i, j = np.triu_indices(n, 1)
        found = 0.0
        for h in range(max(honest, 2), min(max(honest, 3), n) + 1):
            e = 1 / np.maximum(own + h * self.pair, 1e-300)
            first = np.append(0.0, np.cumsum(e))
            # With the h − 2 others that have the least noise of their own:
            others = np.where(
                i >= h - 2, first[h - 2], np.where(j >= h - 1, first[h - 1] - e[i], first[h] - e[i] - e[j])
            )
            shown = moved[i] * moved[j] * e[i] * e[j] * self.pair / (1 - self.pair * (e[i] + e[j] + others))
            found = max(found, float((shown / np.maximum(mu[i], mu[j]) ** 2).max()))
        return min(found * (1 + DOWN) ** 2, 1.0)

    def refuse_large_pairs(self) -> None:
        """Refuse pairs that share more noise, beside a node's own, than is counted of what their sampler costs."""
        least = min(self.own)
        if self.pair > LARGEST_PAIR**2 * least:
            what = f"pairs share noise of σ = {self.pair**0.5:g}, and a node's own noise has σ = {least**0.5:g}"
            raise Refused(what, f"take a smaller privacy.pair_ratio: the ratio may be at most {LARGEST_PAIR:g}")

    def scaled(self, factor: float) -> PairwiseCovariance:
        """Return the same with all variances multiplied: every σ_eff² is then multiplied as well."""
        own = tuple(factor * D for D in self.own)
        return PairwiseCovariance(own, factor * self.pair, self.weights)

    def to_json(self, honest: int) -> dict[str, Any]:
        """Return plain values; one number where all nodes are alike."""
        values = {
            "sigma_effective": self.effective(honest), "own_sigma": self.own_sigma, "pair_sigma": self.pair_sigma,
            "message_sigma": self.message_sigma,
        }  # fmt: skip
        short = {key: one[0] if len(set(one)) == 1 else one for key, one in values.items()}
        return short | {"average_sigma": self.average_sigma}


def _worst(noise: PairwiseCovariance, h: int) -> list[float]:
    """Return σ_eff² before the h − 1 others with the smallest D_j, which are the worst.

    The current that flows from node i, held at 1 volt, through conductances s² between nodes and D_j to the ground:
    σ_eff² = D_i + h s² F/(1 + F), F = Σ_{j≠i} D_j/(D_j + h s²). It grows with every D_j.
    """
    own, s2 = np.array(noise.own), noise.pair
    if s2 == 0 or h == 1:
        return list(noise.own)
    order = np.argsort(own, kind="stable")
    share = own / (own + h * s2)
    least = set(order[: h - 1].tolist())
    first = math.fsum(share[order[: h - 1]])
    found = []
    for i, D in enumerate(noise.own):
        F = first - share[i] + share[order[h - 1]] if i in least else first
        found.append(D + h * s2 * F / (1 + F))
    for i in _distinct(noise.own, h):
        worst = [i, *(int(j) for j in order[:h] if j != i)][:h]
        _agree(found[i], conditional(noise, worst), (own.max() + h * s2) / max(own[worst].min(), 1e-300))
    return found


def conditional(noise: PairwiseCovariance, honest: Sequence[int]) -> float:
    """Return the variance of the noise of the first of these honest nodes that is left when the others' is known."""
    S = noise.among(honest)
    if len(S) == 1:
        return float(S[0, 0])
    return float(S[0, 0] - S[0, 1:] @ linalg.cho_solve(linalg.cho_factor(S[1:, 1:]), S[1:, 0]))


def _distinct(own: Sequence[float], h: int) -> list[int]:
    """Return one node for each D; of many honest nodes, those with the least and the most alone: a check is cubic."""
    first: dict[float, int] = {}
    for i, D in enumerate(own):
        first.setdefault(D, i)
    nodes = [first[D] for D in sorted(first)]
    return nodes if h <= _DENSE else sorted({nodes[0], nodes[-1]})


def _agree(first: float, second: float, condition: float) -> None:
    if not abs(first - second) <= _AGREE * max(1.0, condition) * first:
        raise Disagreement(f"σ_eff² = {first!r} in closed form, and {second!r} by Cholesky")


def looked_at(nodes: int, honest: int) -> list[int]:
    """Return the numbers of honest nodes for which a trust curve gives ε: all, or of many a dozen."""
    if nodes <= _POINTS:
        return list(range(1, nodes + 1))
    spaced = (1 + round(k * (nodes - 1) / (_POINTS - 1)) for k in range(_POINTS))
    return sorted({2, honest, *spaced})


def trust_curve(
    covariance: PairwiseCovariance, node: int, shared: Shared, epsilon: Callable[[Mechanism], float]
) -> list[tuple[int, float]]:
    """Return (h, ε) of a node: what its messages reveal where only h nodes, itself included, are honest.

    Guarantee: each ε is as `epsilon` certifies it, for all sets of h honest nodes at once.
    """

    def at(h: int) -> Mechanism:
        return replace(shared.with_sigma(covariance.effective(h)[node]), honest=h)

    return [(h, epsilon(at(h))) for h in looked_at(covariance.nodes, shared.honest)]
