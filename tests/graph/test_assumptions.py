from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from networks import irregular, named

from networkx_graphs import from_networkx
from privsgp.errors import Refused
from privsgp.graph import Edges, check, make
from privsgp.graph.assumptions import connectivity, diameter, union
from privsgp.graph.sequences import Cyclic


def _heard(digraph: nx.DiGraph) -> np.ndarray:
    return nx.to_numpy_array(digraph, nodelist=range(len(digraph))).T + np.eye(len(digraph)) > 0


@given(graph=named() | irregular())
def test_every_network_here_passes(graph):
    check(graph)


def test_a_sink_is_named_with_those_it_cuts_off():
    digraph = nx.DiGraph([(0, 1), (1, 2), (2, 0), (3, 0)])
    with pytest.raises(Refused, match="node 3 is never reached from node 0") as refusal:
        check(from_networkx([digraph]))
    assert refusal.value.what.count("never") == 1


def test_two_islands_are_refused():
    islands = nx.disjoint_union(nx.path_graph(2), nx.path_graph(3))
    with pytest.raises(Refused, match="node 0 is never reached from node 2"):
        check(from_networkx([islands, islands]))


@pytest.mark.parametrize(
    ("share", "says"),
    [
        ([0.5, 0.4, 1.0], "node 0 sends shares that sum to 0.9 at step 0"),
        ([1.5, -0.5, 1.0], "node 0 sends"),
        ([0.5, 0.5, np.nan], "node 1 sends shares that sum to nan"),
        ([0.0, 1.0, 1.0], "node 0 .* keeps 0"),
    ],
)
def test_wrong_columns_are_refused_with_node_and_sum(share, says):
    edges = Edges(np.array([0, 0, 1]), np.array([0, 1, 1]), np.array(share))
    with pytest.raises(Refused, match=says):
        check(Cyclic("mine", 2, (edges,)))


@given(graph=irregular())
def test_b_and_diameter_agree_with_networkx(graph):
    def largest_diameter(B: int) -> int | None:
        unions = [nx.from_numpy_array(union(graph, B * m, B * m + B).T, create_using=nx.DiGraph) for m in range(12)]
        return max(map(nx.diameter, unions)) if all(map(nx.is_strongly_connected, unions)) else None

    B, across = connectivity(graph)
    assert across == largest_diameter(B)
    assert all(largest_diameter(smaller) is None for smaller in range(1, B))


@pytest.mark.parametrize("nodes", range(2, 20))
def test_diameter_of_a_directed_ring(nodes):
    assert diameter(_heard(nx.cycle_graph(nodes, create_using=nx.DiGraph))) == nodes - 1


def test_diameter_where_there_is_none():
    assert diameter(_heard(nx.path_graph(4, create_using=nx.DiGraph))) is None


@pytest.mark.parametrize(("nodes", "B", "across"), [(16, 4, 4), (50, 6, 4), (15, 1, 14), (2, 1, 1)])
def test_the_papers_graph(nodes, B, across):
    assert connectivity(make("exponential", nodes)) == (B, across)
