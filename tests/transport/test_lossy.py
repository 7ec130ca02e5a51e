"""Robust push-sum: whatever the network loses, delays or cuts off, nothing is lost for good."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from networkx_graphs import from_networkx
from privsgp import graph as graphs
from privsgp.transport.in_process import InProcess
from privsgp.transport.lossy import Faults, LossyNetwork

EXPONENTIAL = graphs.make("exponential", 16)


def _values(nodes=16, dim=3, seed=0):
    return torch.randn(nodes, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 5


def _in_flight(mix, k):
    """Return Σ_links (s − g) of x and of w after step k."""
    total = (mix.sums[k % len(mix.sums)] - mix.arrived).sum(0)
    return total[:-1], total[-1]


def _held(mix, k, x, w):
    """Return Σx and Σw over nodes and links."""
    flying = _in_flight(mix, k)
    return x.sum(0) + flying[0], w.sum() + flying[1]


def _mixed(network, start, faults, steps):
    mix, x, w = LossyNetwork(network, start, faults), start.clone(), torch.ones(len(start), dtype=torch.float64)
    for k in range(steps):
        x, w = mix.mix(k, x, w)
    return mix, x, w


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_node_that_is_down_does_not_move_whatever_its_step_writes_to_x(dtype):
    start = _values().to(dtype)
    mix, w = LossyNetwork(EXPONENTIAL, start, Faults(crashes=((3, 1, 2),))), torch.ones(16, dtype=torch.float64)
    x, w = mix.mix(0, start, w)
    held = x[3].clone()
    x, w = mix.mix(1, x.add_(100), w)
    torch.testing.assert_close(x[3], held, rtol=0, atol=1e-6)


def test_thirty_percent_loss_does_not_move_the_average():
    start = _values()
    x, w, mix = start.clone(), torch.ones(16, dtype=torch.float64), LossyNetwork(EXPONENTIAL, start, Faults(drop=0.3))
    for k in range(200):
        x, w = mix.mix(k, x, w)
        mass, weight = _held(mix, k, x, w)
        torch.testing.assert_close(mass, start.sum(0), rtol=1e-12, atol=0)
        assert weight.item() == pytest.approx(16, rel=1e-12)
    spread = start.sub(start.mean(0)).abs().max()
    assert (x / w[:, None] - start.mean(0)).abs().max() < 1e-6 * spread
    assert mix.report()["lost"] == pytest.approx(0.3 * 3200, rel=0.1)


def test_plain_push_sum_agrees_on_something_else():
    """For contrast: drop messages, and z is percents of the spread away from the average, on all nodes alike."""
    start, faults = _values(), Faults(drop=0.3)
    x, w = start.clone(), torch.ones(16, dtype=torch.float64)
    for k in range(200):
        edges = EXPONENTIAL.edges(k)
        away = edges.source != edges.target
        P = EXPONENTIAL.matrix(k)
        lost = faults.weather(k, int(away.sum()))[0]
        P[edges.target[away][lost], edges.source[away][lost]] = 0
        x, w = torch.from_numpy(P) @ x, torch.from_numpy(P) @ w
    z = x / w[:, None]
    spread = start.sub(start.mean(0)).abs().max()
    assert (z - z.mean(0)).abs().max() < 1e-6 * spread
    assert (z - start.mean(0)).abs().max() > 0.01 * spread


@st.composite
def networks(draw):
    n = draw(st.integers(2, 5))
    phases = draw(st.integers(1, 3))
    made = []
    for _ in range(phases):
        g = nx.DiGraph()
        g.add_nodes_from(range(n))
        pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda e: e[0] != e[1])
        g.add_edges_from(draw(st.lists(pairs, max_size=2 * n)))
        made.append(g)
    nx.add_cycle(made[0], range(n))  # connected at least there
    return from_networkx(made)


@settings(max_examples=8)
@given(networks(), st.floats(0, 0.6), st.integers(0, 4), st.integers(0, 2**64), st.booleans())
def test_nodes_and_links_conserve_mass_and_reach_the_average(network, drop, delay, seed, crash):
    n = network.nodes
    outages = ((n - 1, 5, 30),) if crash else ()
    start = _values(n, 2, seed % 1000)
    x, w = start.clone(), torch.ones(n, dtype=torch.float64)
    mix = LossyNetwork(network, start, Faults(drop, delay, outages, staleness=12, seed=seed))
    for k in range(60):
        x, w = mix.mix(k, x, w)
        mass, weight = _held(mix, k, x, w)
        torch.testing.assert_close(mass, start.sum(0), rtol=1e-11, atol=0)
        assert weight.item() == pytest.approx(n, rel=1e-11)
        assert (w > 0).all()
    for k in range(60, 500):
        x, w = mix.mix(k, x, w)
    assert (x / w[:, None] - start.mean(0)).abs().max() < 1e-3 * start.sub(start.mean(0)).abs().max() + 1e-9


def test_without_faults_it_is_plain_push_sum():
    network, start = graphs.make("random", 9, seed=4, degree=2), _values(9)
    mix, plain = LossyNetwork(network, start, Faults(drop=0.0)), InProcess(network, start)
    a = b = (start, torch.ones(9, dtype=torch.float64))
    for k in range(30):
        a, b = mix.mix(k, *a), plain.mix(k, *b)
        for ours, theirs in zip(a, b, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_node_that_is_down_stands_still_and_is_made_good_after():
    start = _values()
    faults = Faults(drop=0.2, delay=2, crashes=((3, 20, 50),))
    mix, x, w = LossyNetwork(EXPONENTIAL, start, faults), start.clone(), torch.ones(16, dtype=torch.float64)
    for k in range(300):
        moved = x.clone()
        moved[3] += 1000 * (20 <= k < 50)  # what a node that is down would have computed does not count
        before = x[3].clone(), w[3].clone()
        x, w = mix.mix(k, moved, w)
        if 20 <= k < 50:
            assert torch.equal(x[3], before[0])
            assert torch.equal(w[3], before[1])
    assert (x / w[:, None] - start.mean(0)).abs().max() < 1e-6


@pytest.mark.parametrize("delay", [0, 3])
def test_the_others_agree_on_what_is_left_when_a_node_leaves(delay):
    start = _values()
    faults = Faults(drop=0.3, delay=delay, leaves=((5, 6),))
    mix, x, w = LossyNetwork(EXPONENTIAL, start, faults), start.clone(), torch.ones(16, dtype=torch.float64)
    for k in range(6):
        x, w = mix.mix(k, x, w)
    flying = _in_flight(mix, 5)
    rest = (x.sum(0) - x[5] + flying[0]) / (w.sum() - w[5] + flying[1])
    for k in range(6, 300):
        x, w = mix.mix(k, x, w)
    others = [i for i in range(16) if i != 5]
    assert (x[others] / w[others, None] - rest).abs().max() < 1e-6
    assert (rest - start.mean(0)).abs().max() > 1e-3
    assert not x[5].any()
    assert w[5] == 0
    assert mix.report()["left"] == [[5, 6]]


def test_a_link_is_never_silent_for_longer_than_the_limit():
    start, faults = _values(), Faults(drop=0.9, staleness=8)
    mix, x, w = LossyNetwork(EXPONENTIAL, start, faults), start.clone(), torch.ones(16, dtype=torch.float64)
    for k in range(100):
        x, w = mix.mix(k, x, w)
        assert (k - mix.newest).max() <= 8 + EXPONENTIAL.period
    assert mix.report()["waited_for"] > 100


def test_the_weather_is_public_and_repeats_itself():
    for faults, same in ((Faults(0.5, 3, seed=1), True), (Faults(0.5, 3, seed=2), False)):
        lost, late = faults.weather(7, 100)
        again = Faults(0.5, 3, seed=1).weather(7, 100)
        assert (np.array_equal(lost, again[0]) and np.array_equal(late, again[1])) is same


def test_it_goes_on_from_its_arrays():
    """What a checkpoint keeps is all there is."""
    start, faults = _values(), Faults(0.4, 3, ((2, 10, 25),), ((7, 28),))
    _, whole, weights = _mixed(EXPONENTIAL, start, faults, 60)
    first, x, w = _mixed(EXPONENTIAL, start, faults, 20)
    kept = {name: value.clone() for name, value in first.arrays().items()}
    second = LossyNetwork(EXPONENTIAL, start, faults)
    for name, value in second.arrays().items():
        value.copy_(kept[name])
    for k in range(20, 60):
        x, w = second.mix(k, x, w)
    assert torch.equal(x, whole)
    assert torch.equal(w, weights)
