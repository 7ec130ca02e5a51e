"""Noise that pairs share: it cancels, has the covariance that is counted, and no pair's numbers serve two messages."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from privsgp.accounting.compound import Anchored, Shared
from privsgp.accounting.mechanisms import SampledMean
from privsgp.accounting.sharing import solve
from privsgp.errors import Refused
from privsgp.randomness import pairwise, snapshot
from privsgp.randomness.noise import Keyed, Secure, Streams
from privsgp.randomness.pair_streams import PairStreams
from privsgp.randomness.pairwise import PairwiseNoise

NODES, HONEST, D = 6, 4, 5000


def noise(needed=(1.0,) * NODES, weights=None) -> PairwiseNoise:
    return PairwiseNoise(solve(needed, HONEST, 2.0, weights), HONEST)


def of_nodes(made: PairwiseNoise, source, nodes=range(NODES)):
    k = made.covariance.nodes - 1
    mechanisms = [
        Shared(SampledMean(sigma=made.covariance.effective(HONEST)[i], clip=1.0, batch=2, samples=9), HONEST, k)
        for i in nodes
    ]
    return made.of_nodes(nodes, mechanisms, source)


def drawn(node_noise, nodes=range(NODES), step=0, dtype=torch.float64) -> torch.Tensor:
    g = torch.zeros(len(nodes), D, dtype=dtype)
    node_noise.add_(g, nodes, step)
    return g


def own_alone(made: PairwiseNoise, source, step=0) -> torch.Tensor:
    out = torch.empty(NODES, D, dtype=torch.float64)
    source.fill_normal(out, range(NODES), step)
    return out * torch.tensor(made.covariance.own_sigma, dtype=torch.float64)[:, None]


@pytest.mark.parametrize("together", [False, True])
def test_only_own_noise_is_left_in_the_sum(monkeypatch, together):
    monkeypatch.setattr(pairwise, "_LONG", 0 if together else 1 << 60)
    made = noise()
    total = drawn(of_nodes(made, Keyed(3))).sum(0)
    assert torch.allclose(total, own_alone(made, Keyed(3)).sum(0), rtol=0, atol=1e-11)


def test_weighted_steps_cancel_as_well():
    weights = [0.1, 0.1, 0.2, 0.2, 0.2, 0.2]
    made = noise((1.0, 2.0, 1.0, 3.0, 1.0, 1.0), weights)
    steps = torch.tensor(made.covariance.steps, dtype=torch.float64)
    total = steps @ drawn(of_nodes(made, Keyed(3)))
    assert torch.allclose(total, steps @ own_alone(made, Keyed(3)), rtol=0, atol=1e-11)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("source", [Keyed, Secure])
def test_its_covariance_is_the_one_that_is_counted(monkeypatch, source, together):
    monkeypatch.setattr(pairwise, "_LONG", 0 if together else 1 << 60)
    made = noise((1.0, 1.0, 2.0, 1.0, 1.0, 1.0))
    added = of_nodes(made, Keyed(1) if source is Keyed else Secure())
    samples = torch.cat([drawn(added, step=k) for k in range(10)], 1).numpy()
    c = made.covariance
    wanted = c.among(range(NODES))
    assert np.allclose(np.cov(samples), wanted, atol=0.03 * wanted.max())


def test_a_simulation_has_the_same_noise_in_however_many_processes():
    for long in (False, True):
        made, width = noise(), pairwise._LONG
        try:
            pairwise._LONG = 0 if long else 1 << 60
            whole = drawn(of_nodes(made, Keyed(3)), dtype=torch.float32)
            parts = [drawn(of_nodes(made, Keyed(3), r), r, dtype=torch.float32) for r in (range(2), range(2, 6))]
        finally:
            pairwise._LONG = width
        assert torch.equal(whole, torch.cat(parts))


def test_secret_noise_ends_on_the_grid_of_own_noise():
    made = noise()
    added = drawn(of_nodes(made, Secure()))
    grid = 2.0 ** (round(np.log2(made.covariance.own_sigma[0])) - 4)
    assert torch.equal((added / grid).round() * grid, added)


def test_the_numbers_of_a_pair_serve_one_message():
    streams = PairStreams({7: b"k" * 32})
    out = torch.empty(1, 5, dtype=torch.float64)
    streams.fill_normal(out, [7], 3)
    for step in (3, 2, 0):
        with pytest.raises(Refused, match="already used"):
            streams.fill_normal(out, [7], step)


@pytest.mark.parametrize("long", [0, 1 << 60])
def test_where_all_are_here_a_step_is_not_made_twice(monkeypatch, long):
    monkeypatch.setattr(pairwise, "_LONG", long)
    added = of_nodes(noise(), Secure())
    drawn(added, step=1)
    with pytest.raises(Refused, match="already used"):
        drawn(added, step=1)


def test_both_ends_make_the_same_words_and_another_counter_makes_others():
    one, other = (PairStreams({7: b"k" * 32}) for _ in range(2))
    a, b, c = (torch.empty(1, 9, dtype=torch.float64) for _ in range(3))
    one.fill_normal(a, [7], 3)
    other.fill_normal(b, [7], 3)
    other.fill_normal(c, [7], 4)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


def test_memory_that_may_be_an_old_one_gives_no_numbers(monkeypatch):
    streams = PairStreams({7: b"k" * 32})
    moved = time.time() + 100
    monkeypatch.setattr("privsgp.randomness.snapshot.time.time", lambda: moved)
    with pytest.raises(Refused, match="snapshot"):
        streams.fill_normal(torch.empty(1, 5, dtype=torch.float64), [7], 3)


def test_keys_are_shown_to_nobody():
    streams = PairStreams({7: b"secret key of two sites, 32 byte"})
    assert "secret" not in repr(streams).lower().replace("keys hidden", "")
    for way in (pickle.dumps, copy.deepcopy):
        with pytest.raises(Refused):
            way(streams)


def test_noise_that_is_worth_less_than_is_counted_is_refused():
    made = noise()
    counted = Shared(SampledMean(sigma=1.1, clip=1.0, batch=2, samples=9), HONEST, NODES - 1)
    with pytest.raises(Refused, match="its pairwise noise has"):
        made.of_nodes(range(1), [counted], Keyed(1))
    with pytest.raises(Refused, match="its pairwise noise has"):
        made.of_nodes(range(1), [dataclasses.replace(counted.with_sigma(0.5), honest=2)], Keyed(1))


def test_a_pairs_noise_far_above_own_noise_was_not_counted_and_is_refused():
    with pytest.raises(Refused, match="pair_ratio"):
        PairwiseNoise(solve([1.0] * NODES, HONEST, 200.0), HONEST)


def test_without_a_way_to_exchange_keys_nothing_is_shared_with_nodes_elsewhere():
    with pytest.raises(Refused, match="without a protected way to exchange keys"):
        of_nodes(noise(), Secure(), range(2))
    of_nodes(noise(), Keyed(1), range(2))  # a simulation's follow from its seed


def test_nodes_of_a_process_make_a_step_together():
    with pytest.raises(Refused, match=r"of nodes .2. alone"):
        drawn(of_nodes(noise(), Keyed(1)), [2])


PARTS = range(2), range(2, 6)


def in_groups(node_noise, step=0) -> torch.Tensor:
    node_noise.begin(step, torch.empty(NODES, D, dtype=torch.float64))
    with ThreadPoolExecutor(2) as pool:
        return torch.cat(list(pool.map(lambda nodes: drawn(node_noise, nodes, step), PARTS)))


@pytest.mark.parametrize("long", [0, 1 << 60])
def test_threads_that_take_some_nodes_each_add_what_cancels_and_is_used_once(monkeypatch, long):
    monkeypatch.setattr(pairwise, "_LONG", long)
    made = noise((1.0, 1.0, 2.0, 1.0, 1.0, 1.0))
    added, c = of_nodes(made, Secure()), made.covariance
    samples = torch.cat([in_groups(added, step=k) for k in range(10)], 1).numpy()
    wanted = c.among(range(NODES))
    assert np.allclose(np.cov(samples), wanted, atol=0.03 * wanted.max())
    grid = 2.0 ** (np.round(np.log2(c.own_sigma)) - 4)[:, None]
    assert np.array_equal(np.round(samples / grid) * grid, samples)
    with pytest.raises(Refused, match="alone"):
        drawn(added, PARTS[1], step=9)  # they have had theirs
    with pytest.raises(Refused, match="already used"):
        added.begin(9, torch.empty(NODES, D))


def test_groups_have_the_numbers_of_all_at_once():
    assert torch.equal(in_groups(of_nodes(noise(), Keyed(3)), 4), drawn(of_nodes(noise(), Keyed(3)), step=4))


def test_of_secret_noise_nothing_is_rounded_before_it_is_complete(monkeypatch):
    """A gradient in float32 is added in float64, and its sum is on the grid: it has the bits of one in float64."""
    made = noise()
    monkeypatch.setattr(Secure, "claim", lambda _, purpose, nodes, *__: (list(nodes), once(purpose)))
    found = []
    for dtype in (torch.float32, torch.float64):
        g = torch.full((NODES, D), 1.1, dtype=torch.float32).to(dtype)
        of_nodes(made, Secure()).add_(g, range(NODES), 0)
        found.append(g.double())
    assert torch.equal(*found)


def once(purpose: str) -> Streams:
    return Streams({purpose: b"k" * 32})


@pytest.mark.parametrize(("nodes", "together"), [(2, False), (3, False), (4, True)])
def test_sums_of_few_pairs_are_not_drawn_at_once(monkeypatch, nodes, together):
    """What a node adds is then longer than k numbers can be, which is what is counted (21 k λ is twice that)."""
    monkeypatch.setattr(pairwise, "_LONG", 0)
    made = PairwiseNoise(solve([1.0] * nodes, 2, 2.0), 2)
    mechanisms = [
        Shared(SampledMean(sigma=s, clip=1.0, batch=2, samples=9), 2, nodes - 1) for s in made.covariance.effective(2)
    ]
    assert made.of_nodes(range(nodes), mechanisms, Secure()).together(D) is together


def test_shared_noise_of_an_old_memory_is_not_used(monkeypatch):
    """A copy of the memory between draw and message would send another message under the same noise."""
    node_noise = of_nodes(noise(), Secure())
    node_noise.begin(0, torch.zeros(NODES, D))
    now = snapshot.clock_offset()
    monkeypatch.setattr(snapshot, "clock_offset", lambda: now + 3600)
    with pytest.raises(Refused, match="may come from a snapshot"):
        drawn(node_noise)


def test_releases_that_differ_in_noise_share_none():
    """Pairs add the same noise at every step, and anchors would be counted with more."""
    made = noise()
    anchored = Anchored(sigma=0.1, clip=1.0, batch=2, samples=9, period=5, anchor_noise=4.0)
    mechanisms = [Shared(anchored, HONEST, made.covariance.nodes - 1)] * NODES
    with pytest.raises(Refused, match="the same at every step"):
        made.of_nodes(range(NODES), mechanisms, Secure(), None)
