"""The list of events: who acts when, how often, and with whom."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsgp import graph
from privsgp.clock import Times, schedule
from privsgp.errors import Refused

NODES, STEPS = 6, 8


def _events(name="ring", steps=STEPS, message=0.0, **times):
    return schedule(Times(NODES, **times), graph.make(name, NODES), steps, message)


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(["ring", "complete", "torus"]), st.integers(0, 2**64), st.floats(0, 3), st.floats(1, 50))
def test_every_node_goes_round_its_own_circle(name, seed, message, slowdown):
    times = Times(NODES, spread=1.0, stragglers=(2,), slowdown=slowdown, seed=seed)
    network = graph.make(name, NODES)
    events = schedule(times, network, STEPS, message)
    assert len(events.every) == NODES * STEPS
    assert [e.time for e in events.every] == sorted(e.time for e in events.every)
    for i in range(NODES):
        own = [e for e in events.every if e.node == i]
        assert [e.number for e in own] == list(range(len(own)))
        takes = np.cumsum([times.gradient(i, e.number) + message for e in own])
        np.testing.assert_allclose([e.time for e in own], takes, rtol=1e-12)
        assert {e.partner for e in own} <= set(network.out_neighbours(0, i))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**64), st.floats(1, 50))
def test_releases_add_up_and_steps_are_what_they_pay_for(seed, slowdown):
    events = _events("complete", spread=1.0, stragglers=0.5, slowdown=slowdown, seed=seed)
    for k in range(STEPS + 1):
        released = [events.released(i, k) for i in range(NODES)]
        assert sum(released) == k * NODES
        assert released == [sum(e.node == i for e in events.every[: k * NODES]) for i in range(NODES)]
    for i in range(NODES):
        for releases in range(events.released(i, STEPS) + 2):
            assert events.until(i, releases) == max(k for k in range(STEPS + 1) if events.released(i, k) <= releases)


def test_equal_nodes_take_turns():
    events = _events(message=0.5)
    assert [e.node for e in events.of(3)] == list(range(NODES))
    assert [events.at(k) for k in range(4)] == pytest.approx([0, 1.5, 3.0, 4.5])


def test_a_straggler_acts_less_often():
    events = _events(steps=100, spread=0.2, stragglers=(4,), slowdown=5.0)
    released = [events.released(i, 100) for i in range(NODES)]
    fast = np.mean([released[i] for i in range(NODES) if i != 4])
    assert released[4] == pytest.approx(fast / 5, rel=0.1)


def test_all_neighbours_are_met():
    met = {(e.node, e.partner) for e in _events("complete", steps=40).every}
    assert len(met) == NODES * (NODES - 1)


def test_a_node_without_others_meets_itself():
    alone = schedule(Times(1), graph.make("ring", 1), 2, 0.0)
    assert [(e.node, e.partner) for e in alone.every] == [(0, 0)] * 2


@pytest.mark.parametrize("name", ["exponential", "exponential-static", "ring-directed", "random"])
def test_links_that_go_one_way_are_refused(name):
    with pytest.raises(Refused, match=f"graph.name = '{name}'") as refused:
        _events(name)
    assert "'ring'" in refused.value.remedy
