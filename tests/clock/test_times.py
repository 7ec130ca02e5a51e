"""Times have the mean they were asked for, and depend on the node and the number of its gradient alone."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from privsgp.clock import Times

MANY = 20_000


def _drawn(times, node=0):
    return np.array([times.gradient(node, number) for number in range(MANY)])


@pytest.mark.parametrize(
    ("times", "deviation"),
    [
        (Times(3, spread=0.3), 0.3),
        (Times(3, spread=1.0), 1.0),
    ],
)
def test_times_have_the_mean_and_spread_that_were_asked_for(times, deviation):
    drawn = _drawn(times)
    assert drawn.min() > 0
    assert drawn.mean() == pytest.approx(1.0, abs=4 * deviation / math.sqrt(MANY))
    assert drawn.std() == pytest.approx(deviation, rel=0.05)
    assert abs(np.corrcoef(drawn, _drawn(times, 1))[0, 1]) < 4 / math.sqrt(MANY)
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 4 / math.sqrt(MANY)


def test_a_time_is_keyed_by_seed_node_and_number_alone():
    times = Times(3, spread=1.0, seed=5)
    wanted = [times.gradient(2, number) for number in (700, 3, 700)]
    assert wanted[0] == wanted[2] == Times(9, spread=1.0, seed=5).gradient(2, 700)
    assert wanted[0] != dataclasses.replace(times, seed=6).gradient(2, 700)


def test_stragglers_take_so_much_longer():
    times = Times(4, spread=0.5, stragglers=(1, 3), slowdown=7.0)
    plain = dataclasses.replace(times, stragglers=(), slowdown=1.0)
    slower = [times.gradient(i, 9) / plain.gradient(i, 9) for i in range(4)]
    assert slower == pytest.approx([1, 7, 1, 7])


@pytest.mark.parametrize(("fraction", "count"), [(0.0, 0), (0.01, 1), (0.1, 2), (0.5, 8), (1.0, 16)])
def test_a_fraction_of_the_nodes_is_slow(fraction, count):
    slow = [Times(16, stragglers=fraction, slowdown=2.0, seed=seed).slow for seed in range(5)]
    assert {len(nodes) for nodes in slow} == {count}
    assert len(set(slow)) > 1 or count in (0, 16)


def test_every_neighbour_is_picked_equally_often():
    times = Times(2, seed=1)
    counts = np.bincount([times.pick(0, number, 3) for number in range(MANY)], minlength=3)
    assert len(counts) == 3
    np.testing.assert_allclose(counts / MANY, 1 / 3, atol=4 * math.sqrt(2 / 9 / MANY))
