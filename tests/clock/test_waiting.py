"""Synchronous time: the recursion it is, and the laws that follow from waiting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsgp import graph
from privsgp.clock import Times, Waiting

NODES, STEPS = 5, 6
NAMES = [name for name in graph.NAMES if name != "torus"]  # of a prime number of nodes there is none


class Given:
    """Times from a table."""

    def __init__(self, table):
        self.table = table

    def gradient(self, i, k):
        return self.table[k][i]


seconds = st.floats(0.0, 100.0)
tables = st.lists(st.lists(seconds, min_size=NODES, max_size=NODES), min_size=STEPS, max_size=STEPS)
hearing = st.sampled_from(["neighbours", "server", "nobody"])


@settings(deadline=None, max_examples=50)
@given(tables, st.sampled_from(NAMES), hearing, seconds, st.integers(0, STEPS - 1), st.integers(0, NODES - 1), seconds)
def test_time_grows_with_every_gradient_and_is_never_below_a_single_nodes(table, name, hears, message, k, i, more):
    network = graph.make(name, NODES)
    waiting = Waiting(Given(table), network, message, hears)
    slower = [list(row) for row in table]
    slower[k][i] += more
    before, after = waiting.nodes_at(STEPS), Waiting(Given(slower), network, message, hears).nodes_at(STEPS)
    assert (after >= before).all()
    alone = np.array(table).cumsum(0)[-1]
    assert (before >= alone - 1e-9).all()
    assert waiting.at(STEPS) == before.max()
    assert [waiting.at(k) for k in range(STEPS + 1)] == sorted(waiting.at(k) for k in range(STEPS + 1))


@pytest.mark.parametrize("name", NAMES)
def test_a_node_waits_for_itself_and_its_senders_and_for_nobody_else(name):
    network, times = graph.make(name, NODES), Times(NODES, spread=1.0, seed=2)
    waiting, t = Waiting(times, network, 0.25), np.zeros(NODES)
    for k in range(STEPS):
        done = [t[j] + times.gradient(j, k) for j in range(NODES)]
        heard = [np.flatnonzero(row) for row in network.matrix(k)]
        t = [max(done[j] + 0.25 * (j != i) for j in {i, *heard[i]}) for i in range(NODES)]
        np.testing.assert_allclose(waiting.nodes_at(k + 1), t, rtol=1e-14)
    np.testing.assert_array_equal(waiting.nodes_at(2), Waiting(times, network, 0.25).nodes_at(2))  # and back


def test_a_straggler_is_waited_for_by_all_who_hear_of_it():
    network = graph.make("ring", 4)
    times = Times(4, stragglers=(1,), slowdown=10.0)
    ways = {hears: Waiting(times, network, 0.5, hears).at(3) for hears in ("neighbours", "server", "nobody")}
    assert ways == {"neighbours": 30.5, "server": 33.0, "nobody": 30.0}
