"""Noise drawn ahead is the noise of its step, and nobody else's."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from privsgp.errors import Refused
from privsgp.randomness.noise import Keyed, Secure, add_noise_
from privsgp.randomness.prefetch import PrefetchedNoise
from privsgp.threads import leave_one_core

NODES = range(3, 8)


def _noised(source, step, attempt=0):
    g = torch.zeros(5, 40)
    add_noise_(g, source, NODES, step, sigma=[1.0] * 5, attempt=attempt)
    return g


def test_it_gives_the_bits_of_its_source():
    plain, ahead = Keyed(3), PrefetchedNoise(Keyed(3), NODES)
    for step in range(4):
        ahead.prepare(torch.zeros(5, 40), step + 1, 0)
        assert torch.equal(_noised(ahead, step), _noised(plain, step))
        assert torch.equal(_noised(ahead, step + 1), _noised(plain, step + 1))


def test_another_attempt_is_drawn_afresh():
    ahead = PrefetchedNoise(Keyed(3), NODES)
    ahead.prepare(torch.zeros(5, 40), 1, 0)
    assert torch.equal(_noised(ahead, 1, attempt=1), _noised(Keyed(3), 1, attempt=1))


def test_secret_noise_is_handed_out_once():
    ahead = PrefetchedNoise(Secure(), NODES)
    assert ahead.secret
    ahead.prepare(torch.zeros(5, 40), 1, 0)
    assert _noised(ahead, 1).std() > 0.5
    with pytest.raises(Refused, match="already used"):
        _noised(ahead, 1)


def test_secret_noise_of_some_nodes_is_handed_out_once():
    ahead, out = PrefetchedNoise(Secure(), NODES), torch.empty(2, 40, dtype=torch.float64)
    ahead.prepare(torch.zeros(5, 40), 1, 0)
    ahead.fill_normal(out, NODES[:2], 1)
    with pytest.raises(Refused, match="already used"):
        ahead.fill_normal(out, NODES[:2], 1)
    ahead.fill_normal(out, NODES[2:4], 1)  # the others' is still there


@pytest.mark.parametrize("threads", [1, 2])
def test_noise_drawn_by_a_second_thread_is_that_of_the_source(threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    ahead, like = PrefetchedNoise(Keyed(3), range(2, 5)), torch.empty(3, 1001)
    expected, drawn = torch.empty(3, 1001), torch.empty(3, 1001)
    for begun, step in ((0, 0), (1, 1), (7, 2)):  # the last was begun for another step
        ahead.begin(like, begun, 0)
        ahead.fill_normal(drawn, range(2, 5), step)
        Keyed(3).fill_normal(expected, range(2, 5), step)
        assert torch.equal(drawn, expected)


def test_secret_noise_that_a_second_thread_could_not_draw_is_refused(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    ahead, out = PrefetchedNoise(Secure(), range(2)), torch.empty(2, 9, dtype=torch.float64)
    ahead.begin(out, 4, 0)
    ahead.fill_normal(out, range(2), 4)
    ahead.begin(out, 4, 0)  # used already: the thread is refused, and so is who asks for it
    with pytest.raises(Refused, match="already used"):
        ahead.fill_normal(out, range(2), 4)


def test_a_second_thread_draws_where_torch_leaves_it_the_other_of_two_cores():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ahead = PrefetchedNoise(Keyed(3), NODES)
        with leave_one_core():
            ahead.begin(torch.zeros(5, 40), 1, 0)
            assert ahead._drawing is not None
            assert torch.equal(_noised(ahead, 1), _noised(Keyed(3), 1))
    finally:
        torch.set_num_threads(before)


def test_a_step_that_was_begun_is_not_begun_again(monkeypatch):
    """Secret noise drawn twice would be refused."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    ahead, like = PrefetchedNoise(Secure(), NODES), torch.zeros(5, 40)
    ahead.begin(like, 1, 0)
    ahead.begin(like, 1, 0)
    assert _noised(ahead, 1).std() > 0.5
    ahead.begin(like, 2, 0)
    assert _noised(ahead, 2).std() > 0.5


@pytest.mark.parametrize(("jump", "same"), [(0.0, True), (0.3, True), (3600.0, False), (-3600.0, False)])
def test_noise_drawn_before_the_clocks_parted_is_drawn_again(monkeypatch, jump, same):
    """A machine put back to a snapshot holds the noise of a step that its other life may have sent."""
    ahead, out = PrefetchedNoise(Secure(), NODES), torch.empty(5, 40, dtype=torch.float64)
    ahead.prepare(torch.zeros(5, 40), 1, 0)
    held = torch.from_numpy(ahead._rough.normals.copy()).double()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + jump)
    ahead.fill_normal(out, NODES, 1)
    assert torch.allclose(out.where(~held.isnan(), 0), held.nan_to_num(), rtol=0, atol=2**-16) == same
    with pytest.raises(Refused, match="already used"):
        ahead.fill_normal(out, NODES, 1)


def test_a_simulation_repeats_whatever_the_clocks_say(monkeypatch):
    ahead, out = PrefetchedNoise(Keyed(3), NODES), torch.empty(5, 40)
    ahead.prepare(out, 1, 0)
    held = ahead._normals.clone()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 1e6)
    ahead.fill_normal(out, NODES, 1)
    assert torch.equal(out, held)
