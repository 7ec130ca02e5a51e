from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import irregular, named

from privsgp.graph import Edges, make
from privsgp.graph.sequences import uniform


@given(graph=named() | irregular(), k=st.integers(0, 1000))
def test_every_node_hands_out_exactly_one(graph, k):
    edges = graph.edges(k)
    for node in range(graph.nodes):
        assert abs(math.fsum(edges.share[edges.source == node]) - 1) <= 1e-15
    assert (edges.share > 0).all()
    assert set(range(graph.nodes)) == set(edges.source[edges.source == edges.target].tolist())


@given(graph=named() | irregular(), k=st.integers(0, 1000))
def test_receivers_sum_in_the_order_of_senders_and_no_pair_comes_twice(graph, k):
    edges = graph.edges(k)
    assert (np.diff(edges.target * graph.nodes + edges.source) > 0).all()


@given(graph=named() | irregular(), k=st.integers(0, 1000), seed=st.integers(0, 100))
def test_mixing_conserves_mass(graph, k, seed):
    x = np.random.default_rng(seed).standard_normal((graph.nodes, 3))
    np.testing.assert_allclose((graph.matrix(k) @ x).sum(0), x.sum(0), rtol=0, atol=1e-12)


def test_edges_sort_themselves_and_cannot_be_changed():
    edges = Edges(np.array([1, 0, 1]), np.array([0, 0, 1]), np.array([0.25, 1.0, 0.75]))
    assert edges.source.tolist() == [0, 1, 1]
    assert edges.share.tolist() == [1.0, 0.25, 0.75]
    with pytest.raises(ValueError, match="read-only"):
        edges.share[0] = 2


def test_a_pair_named_twice_is_one_receiver():
    edges = uniform(3, [0, 0, 0, 1], [1, 1, 2, 1])
    assert edges.share[edges.source == 0].tolist() == pytest.approx([1 / 3] * 3)
    assert edges.share[edges.source == 1].tolist() == [1.0]


@given(graph=named() | irregular())
def test_rounded_shares_neither_lose_nor_make_anything(graph):
    edges = graph.edges(0)
    single = edges.shares(np.float32)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, edges.share, atol=1e-6)
    columns = np.bincount(edges.source, single.astype(np.float64), graph.nodes)
    np.testing.assert_allclose(columns, 1.0, rtol=0, atol=2e-8)
    np.testing.assert_allclose(edges.shares(np.float64), edges.share, rtol=1e-12)


def test_thirds_are_kept_exactly():
    edges = make("ring", 5).edges(0)
    columns = np.bincount(edges.source, edges.shares(np.float32).astype(np.float64), 5)
    assert columns.tolist() == [1.0] * 5
