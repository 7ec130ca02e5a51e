from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from networks import irregular, named


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
