"""Mixing of all nodes in one process: P^k x and P^k w, for any graph and any size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privsgp import graph
from privsgp.transport import in_process as mix
from privsgp.transport.in_process import InProcess

NAMES = ["exponential", "exponential-static", "ring", "ring-directed", "complete", "random"]


def _random(nodes, d, dtype=torch.float64):
    generator = torch.Generator().manual_seed(nodes * 1000 + d)
    x = torch.randn(nodes, d, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.rand(nodes, generator=generator, dtype=torch.float64) + 0.5


@given(name=st.sampled_from(NAMES), nodes=st.integers(1, 9), k=st.integers(0, 5), d=st.integers(1, 40))
@settings(deadline=None)
def test_it_is_the_product_with_the_matrix(name, nodes, k, d):
    network = graph.make(name, nodes, seed=3, degree=min(2, max(1, nodes - 1)))
    x, w = _random(nodes, d)
    mixed, weights = InProcess(network, x).mix(k, x, w)
    P = network.matrix(k)
    np.testing.assert_allclose(mixed, P @ x.numpy(), atol=1e-12)
    np.testing.assert_allclose(weights, P @ w.numpy(), atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_pieces_that_fit_the_cache_change_no_bit(name, monkeypatch):
    network = graph.make(name, 7, seed=1, degree=2)
    x, w = _random(7, 100, torch.float32)
    whole, _ = InProcess(network, x).mix(2, x, w)
    monkeypatch.setattr(mix, "_PIECE", 200)
    pieces, _ = InProcess(network, x).mix(2, x, w)
    assert torch.equal(whole, pieces)


def test_an_answer_is_not_overwritten_by_later_ones():
    network = graph.make("exponential", 6)
    (x, w), (y, _) = _random(6, 50), _random(6, 50)
    mixing, y = InProcess(network, x), y + 1
    answers = [mixing.mix(k, value, w)[0] for k in range(3) for value in (x, y)]
    for k in range(3):
        np.testing.assert_allclose(answers[2 * k], network.matrix(k) @ x.numpy(), atol=1e-12)
        np.testing.assert_allclose(answers[2 * k + 1], network.matrix(k) @ y.numpy(), atol=1e-12)


def test_mass_is_conserved_where_weights_differ():
    network = graph.make("random", 8, seed=5, degree=3)
    x, w = _random(8, 30)
    total, weight = x.sum(0), w.sum()
    mixing = InProcess(network, x)
    for k in range(20):
        x, w = mixing.mix(k, x, w)
    torch.testing.assert_close(x.sum(0), total)
    torch.testing.assert_close(w.sum(), weight)
