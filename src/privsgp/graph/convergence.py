"""How fast a graph mixes: the constants of the paper's Lemma on C and q, and what the matrices themselves say."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, inf, log, log1p
from typing import TYPE_CHECKING

import numpy as np

from privsgp.graph.assumptions import HORIZON, check, connectivity

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privsgp.graph.sequences import Graph

_ROUNDING = 1e-12


@dataclass(frozen=True)
class Lemma:
    """λ = 1 − nε^{ΔB}, q = λ^{1/(ΔB+1)} and the bound 2√d ε^{−ΔB} / λ^{(ΔB+2)/(ΔB+1)} on C.

    λ and q soon round to 1 and C to infinity: the logarithms of 1 − λ, 1 − q and C stay finite. No graph has λ < 0
    (from one node, ΔB steps reach at most ε^{−ΔB}); λ = 0 where one round averages exactly (a complete graph, a lone
    node). The lemma needs λ > 0 and bounds nothing there: q is 0 and C infinite.
    """

    lam: float
    q: float
    C: float
    log_one_minus_lam: float
    log_one_minus_q: float
    log_c: float


@dataclass(frozen=True)
class Constants:
    """What the theory needs to know of a graph.

    `period` is None if it never repeats: then `B`, `diameter`, `lemma` and `spectral_gap` are those of its first
    `horizon` steps, not a proof.
    """

    period: int | None
    B: int
    diameter: int
    min_share: float
    lemma: Lemma
    spectral_gap: float
    doubly_stochastic: bool
    max_out_degree: int
    horizon: int


def constants(graph: Graph, dim: int = 1, horizon: int = HORIZON) -> Constants:
    """The constants of `graph` for a model of `dim` parameters; refuses a graph that fails `check`.

    `min_share` is the paper's ε. `B` is the smallest possible; the lemma holds for any other pair (B, Δ) as well.
    `spectral_gap` is 1 − |second eigenvalue| of one period's product, per step: 1 where agreement becomes exact.
    `max_out_degree` is the most messages a node sends in one step.
    """
    check(graph, horizon)
    steps = [graph.edges(k) for k in range(graph.period or horizon)]
    B, diameter = connectivity(graph, horizon)
    min_share = min(float(edges.share[edges.share > 0].min()) for edges in steps)
    rows = [np.bincount(edges.target, weights=edges.share) for edges in steps]
    out = [np.bincount(edges.source[edges.share > 0]).max() - 1 for edges in steps]
    return Constants(
        period=graph.period,
        B=B,
        diameter=diameter,
        min_share=min_share,
        lemma=lemma(graph.nodes, diameter * B, min_share, dim),
        spectral_gap=1 - (_second_eigenvalue(graph, graph.period) if graph.period else _contraction(graph, horizon)),
        doubly_stochastic=all(bool(np.allclose(row, 1, rtol=0, atol=_ROUNDING)) for row in rows),
        max_out_degree=int(max(out)),
        horizon=len(steps),
    )


def lemma(nodes: int, span: int, min_share: float, dim: int) -> Lemma:
    """λ, q and C of the paper from n, `span` = ΔB, `min_share` = ε and d."""
    gap = log(nodes) + span * log(min_share)
    lam = -expm1(gap)
    if lam < _ROUNDING:
        return Lemma(lam=0.0, q=0.0, C=inf, log_one_minus_lam=0.0, log_one_minus_q=0.0, log_c=inf)
    log_lam = log1p(-exp(gap))
    # 1 − λ^a = −a·ln λ to first order, which is all that is left where 1 − λ underflows.
    log_one_minus_q = log(-expm1(log_lam / (span + 1))) if gap > -600 else gap - log(span + 1)
    log_c = log(2) + log(dim) / 2 - span * log(min_share) - (span + 2) / (span + 1) * log_lam
    C = exp(log_c) if log_c < 700 else inf
    return Lemma(lam, exp(log_lam / (span + 1)), C, gap, log_one_minus_q, log_c)


def _second_eigenvalue(graph: Graph, period: int) -> float:
    """Per step: the `period`-th root of what one period leaves of a disagreement.

    Columns sum to one, so a vector that sums to zero keeps doing so: P − 11ᵀ/n has the eigenvalues of P on those.
    """
    product = np.eye(graph.nodes)
    for k in range(period):
        product = graph.matrix(k) @ product
    second = float(np.abs(np.linalg.eigvals(product - 1 / graph.nodes)).max())
    # Below rounding it is zero, or a long period has only made it small: step by step one can tell.
    return second ** (1 / period) if second > _ROUNDING else _contraction(graph, max(period, HORIZON))


def _contraction(graph: Graph, steps: int) -> float:
    """Per step: the geometric mean of how much a disagreement shrinks, rescaled so that it never underflows."""
    disagreement = _unit(np.random.default_rng(0).standard_normal(graph.nodes))[0]
    total = 0.0
    for k in range(steps):
        disagreement, left = _unit(graph.matrix(k) @ disagreement)
        if left < _ROUNDING:
            return 0.0
        total += log(left)
    return exp(total / steps)


def _unit(vector: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    centred = vector - vector.mean()
    length = float(np.linalg.norm(centred))
    return centred / max(length, _ROUNDING), length
