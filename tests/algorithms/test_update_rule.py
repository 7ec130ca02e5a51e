"""What is made of a noised direction: momentum and weights; and what that does to the average model."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privsgp.algorithms import UpdateRule
from privsgp.algorithms.update_rule import node_weights

G = torch.tensor([[3.0, 4.0], [0.0, -2.0]], dtype=torch.float64)


def test_momentum_is_a_running_mean_of_directions():
    update_rule = UpdateRule(G, momentum=0.75)
    seen = [update_rule(g.clone()) for g in (G, 2 * G, -G)]
    v = torch.zeros_like(G)
    for g, got in zip((G, 2 * G, -G), seen, strict=True):
        v = 0.75 * v + 0.25 * g
        torch.testing.assert_close(got, v)
    torch.testing.assert_close(update_rule.arrays()["velocity"], v)


def test_weights_scale_each_node():
    torch.testing.assert_close(UpdateRule(G, scale=[0.5, 1.5])(G.clone()), G * torch.tensor([[0.5], [1.5]]))


NODES = st.lists(st.tuples(st.integers(1, 10**6), st.floats(1e-3, 1e3)), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(NODES, st.tuples(st.integers(1, 10**6), st.floats(1e-3, 1e4)))
def test_noise_of_the_average_never_rises_when_a_node_joins(nodes, another):
    def variance(network):
        weights = node_weights("noise", *zip(*network, strict=True))
        return sum((p * sigma) ** 2 for p, (_, sigma) in zip(weights, network, strict=True))

    assert variance([*nodes, another]) <= variance(nodes) * (1 + 1e-12)
    assert variance(nodes) <= sum(sigma**2 for _, sigma in nodes) / len(nodes) ** 2 * (1 + 1e-9)


@settings(max_examples=30, deadline=None)
@given(NODES)
def test_weights_are_shares(nodes):
    samples, sigmas = zip(*nodes, strict=True)
    for kind in ("samples", "noise", [1.0 + i for i in range(len(nodes))]):
        weights = node_weights(kind, samples, sigmas)
        assert abs(sum(weights) - 1) < 1e-9
        assert min(weights) > 0
    assert node_weights("equal", samples, sigmas) is None
    assert abs(node_weights("samples", samples, sigmas)[0] * sum(samples) - samples[0]) < 1e-6 * samples[0]
