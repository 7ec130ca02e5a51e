"""The paper's Assumptions 1 (columns of P^k sum to one) and 2 (B-strongly connected), and how fast a graph mixes.

How fast it mixes: the constants of the paper's Lemma on C and q, and what the matrices themselves say.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, expm1, inf, lcm, log, log1p
from typing import TYPE_CHECKING

import numpy as np

from privsgp.errors import Refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privsgp.graph.sequences import Edges, Graph

HORIZON = 256
"""Steps looked at when a graph never repeats."""

_ROUNDING = 1e-12


def check(graph: Graph, horizon: int = HORIZON) -> None:
    """Refuse a graph on which push-sum does not reach the average, and name two nodes that have no way.

    *Assumes* that what holds for the first `horizon` steps holds for ever, when the graph has no period.
    """
    steps = graph.period or horizon
    for k in range(steps):
        _check_columns(graph.edges(k), graph.nodes, k)
    reached = _closure(union(graph, 0, steps))
    if not reached.all():
        target = int(np.argmin(reached.all(axis=1)))
        source = int(np.argmin(reached[target]))
        raise Refused(
            f"graph {graph.name!r} is not strongly connected (period or horizon: {steps}): "
            f"node {target} is never reached from node {source}",
            "add a way there (Assumption 2), or choose a graph that has one between any two nodes, like 'exponential'",
        )


def check_symmetric(graph: Graph) -> None:
    """Refuse a graph on which a node does not get from each neighbour the share it gives: Σ_j W_ij = 1 rests on it."""
    matrices = (graph.matrix(k) for k in range(graph.period or 0))
    if graph.period is not None and all((np.abs(P - P.T) <= _ROUNDING).all() for P in matrices):
        return
    raise Refused(
        f"graph.name = {graph.name!r} with {graph.nodes} nodes: not all links go both ways with the same share",
        "take graph.name = 'ring', 'complete' or 'torus', or an algorithm for directed graphs, like 'privsgp-vr'",
    )


def connectivity(graph: Graph, horizon: int = HORIZON) -> tuple[int, int]:
    """The smallest B of Assumption 2 and its Δ.

    That is: every window [lB, (l+1)B) is strongly connected, and Δ is the largest diameter among them.
    *Assumes* that `check` passed.
    """
    for B in range(1, (graph.period or horizon) + 1):
        largest, stop = 0, lcm(B, graph.period) if graph.period else horizon - B + 1
        for start in range(0, stop, B):
            if (across := diameter(union(graph, start, start + B))) is None:
                break
            largest = max(largest, across)
        else:
            return B, largest
    raise ValueError(f"graph {graph.name!r} is not strongly connected")


def union(graph: Graph, start: int, stop: int) -> NDArray[np.bool_]:
    """[i, j] says whether i hears from j in some step of [start, stop), or is j."""
    heard = np.eye(graph.nodes, dtype=bool)
    for k in range(start, stop):
        edges = graph.edges(k)
        sends = edges.share > 0
        heard[edges.target[sends], edges.source[sends]] = True
    return heard


def diameter(heard: NDArray[np.bool_]) -> int | None:
    """The longest of the shortest ways between two nodes; None when some node cannot be reached from another.

    By doubling: `reach[r]` covers ways of up to 2^r edges, so about 2·log2(Δ) products replace Δ of them.
    """
    if len(heard) == 1:
        return 0
    reach = [heard]
    while not reach[-1].all():
        reach.append(_then(reach[-1], reach[-1]))
        if (reach[-1] == reach[-2]).all():
            return None
    short, length = np.eye(len(heard), dtype=bool), 0
    for r in reversed(range(len(reach) - 1)):
        if not (further := _then(short, reach[r])).all():
            short, length = further, length + 2**r
    return length + 1


def _closure(heard: NDArray[np.bool_]) -> NDArray[np.bool_]:
    while not ((further := _then(heard, heard)) == heard).all():
        heard = further
    return heard


def _then(second: NDArray[np.bool_], first: NDArray[np.bool_]) -> NDArray[np.bool_]:
    # float32 goes through BLAS, which the boolean product does not; a sum of ones never rounds to zero.
    product: NDArray[np.float32] = second.astype(np.float32) @ first.astype(np.float32)
    return product > 0


def _check_columns(edges: Edges, nodes: int, k: int) -> None:
    sums = np.bincount(edges.source, weights=edges.share, minlength=nodes)
    kept = np.bincount(edges.source, weights=edges.share * (edges.source == edges.target), minlength=nodes)
    wrong = ~(np.abs(sums - 1) <= _ROUNDING) | ~(kept > 0)
    wrong[edges.source[~(edges.share >= 0)]] = True
    if wrong.any():
        node = int(np.argmax(wrong))
        raise Refused(
            f"node {node} sends shares that sum to {sums[node]:.15g} at step {k} and keeps {kept[node]:g}",
            "let a node's shares be non-negative, sum to 1, and leave it something (Assumption 1)",
        )


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
    """The constants of a graph that the theory needs.

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
    B, across = connectivity(graph, horizon)
    min_share = min(float(edges.share[edges.share > 0].min()) for edges in steps)
    rows = [np.bincount(edges.target, weights=edges.share) for edges in steps]
    out = [np.bincount(edges.source[edges.share > 0]).max() - 1 for edges in steps]
    return Constants(
        period=graph.period,
        B=B,
        diameter=across,
        min_share=min_share,
        lemma=lemma(graph.nodes, across * B, min_share, dim),
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


def table(graph: Graph, dim: int = 1) -> list[tuple[str, str]]:
    """Rows (label, value) on `graph` for a model of `dim` parameters; refuses a graph that fails `check`."""
    of = constants(graph, dim)
    seen = f" (first {of.horizon} steps)" if of.period is None else ""
    exact = ": agreement becomes exact" if of.spectral_gap == 1 else ""
    return [
        ("graph", graph.name),
        ("nodes", str(graph.nodes)),
        ("period", f"{of.period} step{'s' if of.period != 1 else ''}" if of.period else "none: every step differs"),
        ("messages a node sends per step, at most", str(of.max_out_degree)),
        ("doubly stochastic", "yes: push-sum weights stay 1" if of.doubly_stochastic else "no: push-sum at work"),
        ("B: steps until strongly connected", f"{of.B}{seen}"),
        ("Δ: diameter of those steps together", f"{of.diameter}{seen}"),
        ("ε: smallest share", f"{of.min_share:.4g}"),
        ("λ = 1 − nε^(ΔB)", _below_one(of.lemma.lam, of.lemma.log_one_minus_lam)),
        ("q = λ^(1/(ΔB+1))", _below_one(of.lemma.q, of.lemma.log_one_minus_q)),
        (
            f"bound on C (d = {dim})",
            "none: the lemma needs λ > 0" if of.lemma.log_c == inf else _power_of_ten(of.lemma.log_c),
        ),
        ("spectral gap per step", f"{of.spectral_gap:.4f}{exact}{seen}"),
    ]


def _below_one(value: float, log_rest: float) -> str:
    return f"{value:.4g}" if value < 0.999 else f"1 − {_power_of_ten(log_rest)}"


def _power_of_ten(log_value: float) -> str:
    """A number from its natural logarithm, also where it is beyond floating point."""
    exponent, rest = divmod(log_value / log(10), 1)
    digits = round(10**rest, 2)
    return f"{digits:.3g}e{exponent:+03.0f}" if digits < 10 else f"1e{exponent + 1:+03.0f}"
