"""Networks from Python as `graph.name = "given"`: matrices P^k, networkx graphs, or one of these for each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROUNDING = 1e-9


def described(given: Any, names: Sequence[str] | None = None) -> tuple[int, dict[str, Any]]:  # noqa: ANN401 - whatever was brought
    """Return the number of nodes and the section of run.toml.

    Entry [i, j] of a matrix is the share that i receives from j. An edge of networkx has the attribute `share`; without
    it a node divides evenly among its receivers and itself. Its nodes are numbers, or the `names` of sites.
    """
    several = isinstance(given, list | tuple) and bool(given) and (hasattr(given[0], "adj") or np.ndim(given[0]) == 2)
    steps = [_step(one, names) for one in (given if several or getattr(given, "ndim", 2) == 3 else [given])]
    if len({nodes for nodes, _ in steps}) > 1:
        raise Refused(f"graph has steps of {sorted({n for n, _ in steps})} nodes", "give all steps the same nodes")
    return steps[0][0], {"name": "given", "shares": [shares for _, shares in steps]}


def _step(given: Any, names: Sequence[str] | None) -> tuple[int, list[list[float]]]:  # noqa: ANN401 - of networkx, or a matrix
    if hasattr(given, "to_directed"):
        return len(given), _of_networkx(given.to_directed(), names)
    if np.ndim(given) != 2 or np.shape(given)[0] != np.shape(given)[1]:
        remedy = "give a name, a networkx graph, a square matrix of shares, or a list of these"
        raise Refused(f"graph={type(given).__name__} is no network", remedy)
    P = np.asarray(given, np.float64)
    if not (np.abs(P.sum(0) - 1) <= _ROUNDING).all():
        raise Refused("a column of graph=… does not sum to 1", "let P[i, j] be the share that node i receives from j")
    target, source = np.nonzero(P * (1 - np.eye(len(P))))
    return len(P), [[int(j), int(i), float(P[i, j])] for i, j in zip(target, source, strict=True)]


def _of_networkx(graph: Any, names: Sequence[str] | None) -> list[list[float]]:  # noqa: ANN401 - networkx's
    known = range(len(graph)) if set(graph) == set(range(len(graph))) else names or ()
    if set(graph) != set(known):
        raise Refused("the nodes of graph=… are not the sites", "call them 0, 1, 2, …, or by the names of the sites")
    number = {name: i for i, name in enumerate(known)}
    edges = [(u, v, share) for u, v, share in graph.edges(data="share") if u != v]
    missing = [share is None for *_, share in edges]
    if any(missing) and not all(missing):
        raise Refused("some edges of graph=… have a share, and others have none", "give each edge a share, or none")
    out = {u: sum(v != u for v in graph.adj[u]) for u in graph}
    return [[number[u], number[v], float(1 / (out[u] + 1) if share is None else share)] for u, v, share in edges]
