"""The paper's Assumptions 1 (columns of P^k sum to one) and 2 (B-strongly connected), checked on a given graph."""

from __future__ import annotations

from math import lcm
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
