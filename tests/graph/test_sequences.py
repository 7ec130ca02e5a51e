from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import irregular, named

from privsgp.errors import Refused
from privsgp.graph import from_networkx


@given(graph=named() | irregular(), k=st.integers(0, 100))
def test_matrix_is_the_edges(graph, k):
    matrix, edges = graph.matrix(k), graph.edges(k)
    rebuilt = np.zeros_like(matrix)
    for source, target, share in zip(edges.source, edges.target, edges.share, strict=True):
        rebuilt[target, source] += share
    np.testing.assert_array_equal(matrix, rebuilt)


@given(graph=named() | irregular(), k=st.integers(0, 100))
def test_neighbours_are_the_non_zero_entries_off_the_diagonal(graph, k):
    heard = graph.matrix(k) > 0
    np.fill_diagonal(heard, val=False)
    for i in range(graph.nodes):
        assert graph.out_neighbours(k, i) == tuple(np.flatnonzero(heard[:, i]))


@given(graph=irregular())
def test_push_sum_reaches_the_average(graph):
    period = np.eye(graph.nodes)
    for k in range(graph.period):
        period = graph.matrix(k) @ period
    many = np.linalg.matrix_power(period, 4096)
    x = np.arange(1.0, graph.nodes + 1)
    np.testing.assert_allclose((many @ x) / (many @ np.ones(graph.nodes)), x.mean(), rtol=1e-9)


@given(graph=irregular(), k=st.integers(0, 20))
def test_a_cycle_repeats(graph, k):
    assert graph.edges(k) is graph.edges(k + graph.period)


def test_networkx_graphs_divide_evenly_undirected_edges_go_both_ways():
    graph = from_networkx([nx.path_graph(3), nx.DiGraph([(0, 1), (0, 2), (0, 0)])])
    np.testing.assert_allclose(graph.matrix(0), [[1 / 2, 1 / 3, 0], [1 / 2, 1 / 3, 1 / 2], [0, 1 / 3, 1 / 2]])
    np.testing.assert_allclose(graph.matrix(1), [[1 / 3, 0, 0], [1 / 3, 1, 0], [1 / 3, 0, 1]])


def test_networkx_edges_may_carry_their_share():
    digraph = nx.DiGraph()
    digraph.add_edge(0, 1, share=0.2)
    digraph.add_edge(1, 0, share=0.9)
    np.testing.assert_allclose(from_networkx([digraph]).matrix(5), [[0.8, 0.9], [0.2, 0.1]])


def test_shares_on_some_edges_only_are_refused():
    digraph = nx.DiGraph([(1, 0)])
    digraph.add_edge(0, 1, share=0.2)
    with pytest.raises(Refused, match=r"graphs\[0\] has a share on 1 of 2 edges"):
        from_networkx([digraph])


@pytest.mark.parametrize(
    "graphs",
    [
        [nx.DiGraph()],
        [nx.DiGraph([("a", "b")])],
        [nx.path_graph(3), nx.path_graph(4)],
        [nx.MultiDiGraph([(0, 1), (0, 1)])],
    ],
)
def test_graphs_without_the_same_nodes_from_zero_on_are_refused(graphs):
    with pytest.raises(Refused, match=rf"graphs\[{len(graphs) - 1}\]"):
        from_networkx(graphs)


def test_no_graphs_at_all_are_refused():
    with pytest.raises(Refused, match="empty"):
        from_networkx([])
