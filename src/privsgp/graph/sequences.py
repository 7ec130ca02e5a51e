"""A network that changes from step to step: what every graph answers, and the graphs that repeat themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.errors import Refused
from privsgp.graph.edges import Edges, uniform, weighted

if TYPE_CHECKING:
    from collections.abc import Sequence

    import networkx as nx
    from numpy.typing import NDArray


class Graph(ABC):
    """The paper's sequence of directed graphs G^k on `nodes` nodes; `period` is None when it never repeats."""

    name: str
    nodes: int

    @property
    @abstractmethod
    def period(self) -> int | None:
        """Steps after which the sequence starts again."""

    @abstractmethod
    def edges(self, k: int) -> Edges:
        """Who sends which share to whom at step `k`."""

    def matrix(self, k: int) -> NDArray[np.float64]:
        """P^k as a dense matrix: entry [i, j] is the share that i receives from j; columns sum to one."""
        edges = self.edges(k)
        matrix = np.zeros((self.nodes, self.nodes))
        matrix[edges.target, edges.source] = edges.share
        return matrix

    def links(self) -> list[tuple[int, int]]:
        """Every (source, target) that is ever used, sorted, self-loops left out; one that never repeats may use any."""
        if self.period is None:
            return list(permutations(range(self.nodes), 2))
        steps = [self.edges(k) for k in range(self.period)]
        pairs = {pair for e in steps for pair in zip(e.source.tolist(), e.target.tolist(), strict=True)}
        return sorted((j, i) for j, i in pairs if j != i)

    def out_neighbours(self, k: int, i: int) -> tuple[int, ...]:
        """The nodes that `i` sends a message to at step `k`, itself left out."""
        edges = self.edges(k)
        return tuple(int(j) for j in edges.target[edges.source == i] if j != i)


@dataclass(frozen=True, eq=False)
class Cyclic(Graph):
    """A graph that goes through `phases` over and over; a graph that never changes has one phase."""

    name: str
    nodes: int
    phases: tuple[Edges, ...]

    @property
    def period(self) -> int:
        """Steps after which the sequence starts again."""
        return len(self.phases)

    def edges(self, k: int) -> Edges:
        """Who sends which share to whom at step `k`."""
        return self.phases[k % len(self.phases)]


def from_networkx(graphs: Sequence[nx.Graph[Any]], name: str = "networkx") -> Cyclic:
    """Go through `graphs` over and over: step k uses `graphs[k % len(graphs)]`.

    The nodes of every graph are 0 … n−1; an undirected edge is two directed ones; self-loops are implied, those given
    are ignored. Edges with an attribute `share` send that share and the node keeps the rest; without, a node divides
    evenly between its receivers and itself.
    """
    if not graphs:
        raise Refused("graphs is empty", "give at least one networkx graph")
    nodes = len(graphs[0])
    return Cyclic(name, nodes, tuple(_edges_of(graph, step, nodes) for step, graph in enumerate(graphs)))


def _edges_of(graph: nx.Graph[Any], step: int, nodes: int) -> Edges:
    if nodes < 1 or graph.is_multigraph() or set(graph.nodes) != set(range(nodes)):
        raise Refused(
            f"graphs[{step}] is {graph} with nodes {list(graph.nodes)[:5]}…",
            f"give every step the same nodes 0 … {max(nodes - 1, 0)} (networkx.convert_node_labels_to_integers) and at "
            "most one edge from one node to another",
        )
    directed = graph if graph.is_directed() else graph.to_directed()
    sent = [(i, j) for i, j in directed.edges if i != j]
    source, target = [i for i, _ in sent], [j for _, j in sent]
    shares = [directed.edges[edge]["share"] for edge in sent if "share" in directed.edges[edge]]
    if not shares:
        return uniform(nodes, source, target)
    if len(shares) < len(sent):
        raise Refused(f"graphs[{step}] has a share on {len(shares)} of {len(sent)} edges", "give all of them, or none")
    return weighted(nodes, source, target, shares)
