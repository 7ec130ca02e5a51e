"""The paper's Assumptions 1 (columns of P^k sum to one) and 2 (B-strongly connected)."""

from __future__ import annotations

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
    from scipy.sparse.csgraph import shortest_path

    steps = graph.period or horizon
    for k in range(steps):
        _check_columns(graph.edges(k), graph.nodes, k)
    reached = np.isfinite(shortest_path(union(graph, 0, steps), unweighted=True))
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


def union(graph: Graph, start: int, stop: int) -> NDArray[np.bool_]:
    """[i, j] says whether i hears from j in some step of [start, stop), or is j."""
    heard = np.eye(graph.nodes, dtype=bool)
    for k in range(start, stop):
        edges = graph.edges(k)
        sends = edges.share > 0
        heard[edges.target[sends], edges.source[sends]] = True
    return heard


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
