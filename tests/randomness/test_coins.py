from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privsgp.accounting.mechanisms import SampledMean
from privsgp.randomness.coins import _threshold, batches, capacity, draw, draw_all
from privsgp.randomness.noise import Keyed, Secure


def mechanism(batch: float, samples: int) -> SampledMean:
    return SampledMean(sigma=1.0, clip=1.0, batch=batch, samples=samples)


class Coins:
    """A source whose coins are given."""

    secret = False

    def __init__(self, coins: list[int]) -> None:
        self.given = np.array([coins], np.uint64)

    def coins(self, nodes: list[int], step: int, count: int) -> np.ndarray:
        assert (len(nodes), count) == self.given.shape
        return self.given


mechanisms = st.integers(1, 300).flatmap(lambda J: st.floats(1e-3, J).map(lambda b: mechanism(b, J)))


@given(mechanisms, st.integers(0, 2**32 - 1), st.integers(0, 50))
def test_a_draw_is_sorted_distinct_and_in_range(mech, step, node):
    drawn = draw(Keyed(0), mech, node, step)
    assert drawn.dtype == np.int64
    assert (np.diff(drawn) > 0).all()
    assert ((drawn >= 0) & (drawn < mech.samples)).all()
    if mech.rate == 1:
        assert len(drawn) == mech.batch
    np.testing.assert_array_equal(drawn, draw(Keyed(0), mech, node, step))


@given(st.floats(min_value=0, max_value=1, exclude_min=True, exclude_max=True))
def test_the_probability_is_the_largest_one_not_above_q(q):
    probability = Fraction(int(_threshold(q)), 2**64)
    assert 0 <= Fraction(q) - probability < Fraction(1, 2**64)


def test_a_coin_decides_at_the_threshold():
    half = 2**63
    assert draw(Coins([half, half - 1, 0, 2**64 - 1]), mechanism(2, 4), 0, 0).tolist() == [1, 2]


def test_two_nodes_have_coins_of_their_own():
    below = Secure().coins(range(2), 0, 1000) < np.uint64(2**63)
    assert 350 < (below[0] != below[1]).sum() < 650


@pytest.mark.parametrize("make", [lambda: Keyed(1), Secure], ids=["keyed", "secure"])
@pytest.mark.parametrize("batch", [3.3, 24])
def test_poisson_takes_each_sample_by_its_own_coin(make, batch):
    source, mech, steps = make(), mechanism(batch, 60), 4000
    taken = np.zeros((steps, 60))
    for step in range(steps):
        taken[step, draw(source, mech, 0, step)] = 1
    q = mech.rate
    # Six standard errors each: a right sampler fails about once in 10⁷ runs.
    assert abs(taken.mean(0) - q).max() < 6 * math.sqrt(q * (1 - q) / steps)
    assert abs(taken.mean() - q) < 6 * math.sqrt(q * (1 - q) / taken.size)
    assert taken.sum(1).var() == pytest.approx(60 * q * (1 - q), rel=6 * math.sqrt(2 / steps) + 0.02)
    assert abs(np.corrcoef(taken.T) - np.eye(60)).max() < 6.5 / math.sqrt(steps)


def test_draws_change_with_node_and_step():
    mech = mechanism(100, 200)
    places = [(0, 0), (1, 0), (0, 1)]
    assert len({tuple(draw(Keyed(0), mech, *place)) for place in places}) == 3


@pytest.mark.parametrize("source", [lambda: Keyed(3), Secure])
@pytest.mark.parametrize("sizes", [[90, 90, 90], [90, 7, 40]])
def test_a_block_draws_what_its_nodes_would_draw_alone(source, sizes):
    mechs, nodes = [mechanism(5, J) for J in sizes], range(4, 7)
    drawn = draw_all(source(), mechs, nodes, 9)
    assert all((np.diff(d) > 0).all() and (d < J).all() for d, J in zip(drawn, sizes, strict=True))
    if source is not Secure:
        for d, mech, node in zip(drawn, mechs, nodes, strict=True):
            np.testing.assert_array_equal(d, draw(Keyed(3), mech, node, 9))


@given(mechanisms, st.integers(1, 100))
def test_no_capacity_in_eights_is_expected_to_cost_less(mech, nodes):
    def cost(room):
        return room * (1 + 2 * (1 - stats.binom.cdf(room, mech.samples, mech.rate) ** nodes))

    room = capacity(mech, nodes)
    assert mech.batch <= room <= mech.samples
    others = [size for size in (room - 8, room + 8, mech.samples) if mech.batch <= size <= mech.samples]
    assert room % 8 == 0 or room == mech.samples
    assert all(cost(room) <= cost(size) * (1 + 1e-9) for size in others)


@pytest.mark.parametrize(
    ("batch", "samples", "nodes", "room"),
    [(240, 1200, 50, 288), (48, 1200, 50, 72), (25, 3125, 16, 40), (125, 3125, 16, 160), (48, 1200, 1, 64)],
)
def test_capacity_of_known_runs(batch, samples, nodes, room):
    assert capacity(mechanism(batch, samples), nodes) == room


draws = st.lists(st.sets(st.integers(0, 99)).map(lambda s: np.array(sorted(s), np.int64)), min_size=1, max_size=6)


@given(draws, st.integers(1, 40))
def test_passes_hold_every_draw_exactly_once(drawn, room):
    passes = batches(drawn, room, dummy=100)
    assert len(passes) == max(1, *(math.ceil(len(d) / room) for d in drawn))
    assert all(index.shape == (len(drawn), room) for index in passes)
    for row, wanted in enumerate(drawn):
        np.testing.assert_array_equal(np.concatenate([index[row][index[row] != 100] for index in passes]), wanted)


def test_where_scattered_samples_are_does_not_show_whether_another_was_drawn():
    def slots(drawn):
        """Of sample 7, in 4,000 nodes."""
        [index] = batches([np.array(drawn)] * 4000, 6, dummy=9, scattered=True)
        assert (np.sort(index, axis=1) == sorted([*drawn, *[9] * (6 - len(drawn))])).all()
        return np.nonzero(index == 7)[1]

    for drawn in ([1, 7], [3, 7], [1, 3, 7], [1, 3, 4, 5, 6, 7]):
        assert stats.chisquare(np.bincount(slots(drawn), minlength=6)).pvalue > 1e-6


@pytest.mark.parametrize(("batch", "samples"), [(20, 500), (48, 1200), (1, 10**6), (25, 30)])
def test_scattered_samples_have_room_for_every_draw(batch, samples):
    room = capacity(mechanism(batch, samples), 4, scattered=True)
    assert stats.binom.sf(room, samples, batch / samples) < 2.0**-64
    assert room == samples or stats.binom.sf(room - 8, samples, batch / samples) >= 2.0**-64


def test_empty_draws_are_a_pass_like_any_other():
    [index] = batches([np.empty(0, np.int64)] * 2, 8, dummy=-1)
    assert index.shape == (2, 8)
    assert (index == -1).all()
