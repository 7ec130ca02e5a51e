"""Networks of the tests as networkx graphs: any edges, with any shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from privsgp.graph import Edges
from privsgp.graph.sequences import Graph, cyclic, uniform

if TYPE_CHECKING:
    import networkx as nx


def from_networkx(graphs: list[nx.Graph]) -> Graph:
    """Go through the graphs over and over; without an attribute `share` a node divides evenly."""
    return cyclic("networkx", len(graphs[0]), tuple(map(edges_of, graphs)))


def edges_of(graph: nx.Graph) -> Edges:
    sent = [(i, j) for i, j in graph.to_directed().edges if i != j]
    source, target = (np.array([pair[end] for pair in sent], np.int64) for end in (0, 1))
    shares = [graph.edges[edge].get("share") for edge in sent]
    if None in shares or not shares:
        return uniform(len(graph), source, target)
    own = np.arange(len(graph))
    kept = 1.0 - np.bincount(source, shares, len(graph))
    return Edges(np.concatenate([source, own]), np.concatenate([target, own]), np.concatenate([shares, kept]))
