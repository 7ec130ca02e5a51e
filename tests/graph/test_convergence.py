from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import irregular, named

from privsgp.errors import Refused
from privsgp.graph import Edges, constants, make
from privsgp.graph.assumptions import lemma
from privsgp.graph.sequences import Cyclic


def test_sixteen_nodes_of_the_paper():
    of = constants(make("exponential", 16), dim=100)
    assert (of.period, of.B, of.diameter, of.min_share) == (4, 4, 4, 0.5)
    assert (of.doubly_stochastic, of.max_out_degree) == (True, 1)
    lam = 1 - 16 * 0.5**16
    assert of.lemma.lam == pytest.approx(lam, rel=1e-14)
    assert of.lemma.q == pytest.approx(lam ** (1 / 17), rel=1e-14)
    assert math.isclose(of.lemma.C, 2 * 10 * 2**16 / lam ** (18 / 17), rel_tol=1e-12)
    assert of.spectral_gap == 1


@pytest.mark.parametrize("nodes", [3, 8, 21])
def test_spectral_gap_of_the_ring(nodes):
    second = 1 / 3 + 2 / 3 * math.cos(2 * math.pi / nodes)
    assert constants(make("ring", nodes)).spectral_gap == pytest.approx(1 - abs(second), abs=1e-12)


@given(graph=named() | irregular())
def test_lambda_is_never_negative_and_the_gap_is_positive(graph):
    of = constants(graph, horizon=128)
    assert 0 <= of.lemma.lam < 1
    assert 0 <= of.lemma.q < 1
    assert 0 < of.spectral_gap <= 1


@given(nodes=st.integers(2, 60), dim=st.integers(1, 10**7))
def test_where_lambda_is_zero_the_lemma_says_nothing(nodes, dim):
    of = constants(make("complete", nodes), dim).lemma
    assert (of.lam, of.q, of.C) == (0, 0, math.inf)


@given(nodes=st.integers(2, 50), span=st.integers(6, 30), dim=st.integers(1, 1000))
def test_logarithms_are_those_of_the_values(nodes, span, dim):
    of = lemma(nodes, span, 0.5, dim)
    assert math.exp(of.log_c) == pytest.approx(of.C, rel=1e-9)
    assert math.exp(of.log_one_minus_lam) == pytest.approx(1 - of.lam, abs=1e-15)
    assert math.exp(of.log_one_minus_q) == pytest.approx(1 - of.q, abs=1e-15)


def test_nothing_overflows():
    of = lemma(1000, 10**6, 0.5, 10**7)
    assert (of.lam, of.q, of.C) == (1, 1, math.inf)
    assert of.log_one_minus_q == pytest.approx(math.log(1000) - 10**6 * math.log(2) - math.log(10**6 + 1))
    assert of.log_c == pytest.approx(math.log(2) + math.log(10**7) / 2 + 10**6 * math.log(2))


def test_logarithm_of_one_minus_q_is_smooth_where_it_changes_formula():
    span = int(600 / math.log(2))
    above, below = (lemma(2, s, 0.5, 1).log_one_minus_q + math.log(s + 1) for s in (span, span + 3))
    assert above - below == pytest.approx(3 * math.log(2), rel=1e-9)


def test_a_graph_without_period_has_the_constants_of_its_first_steps():
    of = constants(make("random", 12, seed=3), horizon=100)
    assert (of.period, of.horizon, of.doubly_stochastic) == (None, 100, False)
    assert of.B > 1


def test_contraction_of_a_random_graph_is_that_of_its_products():
    graph = make("random", 12, seed=3)
    product = np.eye(12) - 1 / 12
    for k in range(60):
        product = graph.matrix(k) @ product
    rate = np.linalg.norm(product, 2) ** (1 / 60)
    assert constants(graph, horizon=60).spectral_gap == pytest.approx(1 - rate, abs=0.03)


def test_a_long_period_that_mixes_slowly_is_not_taken_for_exact():
    ring = make("ring-directed", 8).phases
    long = constants(Cyclic("long", 8, ring * 400))
    assert long.spectral_gap == pytest.approx(constants(make("ring-directed", 8)).spectral_gap, rel=0.05)


def test_a_graph_that_fails_the_assumptions_has_no_constants():
    apart = Cyclic("apart", 2, (Edges(np.arange(2), np.arange(2), np.ones(2)),))
    with pytest.raises(Refused, match="node 0 is never reached from node 1"):
        constants(apart)
