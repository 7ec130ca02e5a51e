"""An audit's statistics: never an alarm too many for a mechanism that keeps its word, and power where it does not."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from privsgp.accounting import accountant
from privsgp.accounting.curve import Gaussian
from privsgp.accounting.mechanisms import Saga, SampledMean
from privsgp.audit import statistics as audit

RATE, SHIFT = 0.2, 1.5
MECHANISM = SampledMean(sigma=1 / (SHIFT * 20), clip=1.0, batch=20, samples=100)


@cache
def curve(factor=1.0):
    return audit.TradeOff.of(accountant.profile(MECHANISM.with_sigma(MECHANISM.sigma * factor), 1))


def messages(rng, size, *, rate=RATE, shift=SHIFT):
    """Scores of present canaries as the mechanism makes them."""
    return rng.standard_normal(size) + shift * (rng.random(size) < rate)


class TestTradeOff:
    @given(mu=st.floats(0.05, 4), t=st.floats(-4, 4))
    def test_of_a_gaussian_is_its_own_and_nearly_tight(self, mu, t):
        allowed = audit.TradeOff.of(Gaussian(mu))
        most = allowed.most(np.array([stats.norm.sf(t)]))[0]
        assert most >= stats.norm.sf(t - mu) - 1e-12  # Neyman-Pearson: no event of this size is likelier
        assert most <= stats.norm.sf(t - mu) * 1.15 + 1e-3  # chords between few points, in the tail

    @given(t=st.floats(0, 5), drawn=st.floats(-2, 2), entry=st.floats(-1, 1))
    def test_no_event_of_saga_is_likelier(self, t, drawn, entry):
        m = Saga(sigma=0.02, clip=1.0, batch=20, samples=100)
        new = np.clip(entry + drawn, -1, 1)
        s0 = entry / (100 * m.sigma)
        s1 = ((new - entry) / 20 + entry / 100) / m.sigma
        allowed = _saga_curve(m)
        for q, p in ((stats.norm.sf(t), _mixed(t, s0, s1)), (stats.norm.cdf(t), 1 - _mixed(t, s0, s1))):
            assert p <= allowed.most(np.array([q]))[0] + 1e-12
            assert q <= allowed.most(np.array([p]))[0] + 1e-12

    def test_allows_everything_where_nothing_is_promised(self):
        assert audit.TradeOff.of(Gaussian(math.inf)).most(np.array([1e-9]))[0] == 1


def _mixed(t, s0, s1, q=0.2):
    return (1 - q) * stats.norm.sf(t - s0) + q * stats.norm.sf(t - s1)


@cache
def _saga_curve(m):
    return audit.TradeOff.of(accountant.profile(m, 1))


class TestNoise:
    def test_p_values_of_true_noise_are_not_too_small(self):
        rng = np.random.default_rng(0)
        p = np.array([audit.noise_p(rng.standard_normal((20, 10))) for _ in range(400)])
        for level in (0.01, 0.05, 0.2):
            assert stats.binomtest(int((p <= level).sum()), 400, level, alternative="greater").pvalue > 1e-3

    @pytest.mark.parametrize(
        "bad",
        [
            lambda rng: 0.95 * rng.standard_normal((400, 20)),
            lambda rng: rng.uniform(-math.sqrt(3), math.sqrt(3), (400, 20)),  # bounded, the right variance
            lambda rng: rng.standard_normal((400, 20)) * (rng.random((400, 20)) > 0.05),  # sometimes left out
            lambda _: np.zeros((2, 20)),
        ],
    )
    def test_too_little_noise_is_noticed(self, bad):
        assert audit.noise_p(bad(np.random.default_rng(1))) < 1e-4

    def test_more_noise_is_no_fault(self):
        assert audit.noise_p(1.2 * np.random.default_rng(2).standard_normal((400, 20))) > 0.1

    def test_nothing_seen_is_nothing_said(self):
        assert audit.noise_p(np.empty((10, 0))) == 1
        assert audit.trade_off_p(np.empty((10, 0)), curve()) == 1
        assert audit.least_noise(np.empty(0), np.zeros(3), curve, 0.05) is None


def shared(rng, at, *, like, share=1.0):
    """Noise of 60 steps, 3 nodes, some of which is partly other noise of it: at and like are indices."""
    noise = rng.standard_normal((60, 3, 16))
    noise[at] = share * noise[like] + math.sqrt(1 - share**2) * noise[at]
    return noise


class TestCorrelation:
    def test_p_values_of_independent_noise_are_not_too_small(self):
        rng = np.random.default_rng(9)
        p = np.concatenate([audit.correlation_p(rng.standard_normal((12, 2, 6))) for _ in range(400)])
        for level in (0.01, 0.05, 0.2):
            assert stats.binomtest(int((p <= level).sum()), p.size, level, alternative="greater").pvalue > 1e-3

    @pytest.mark.parametrize(
        ("at", "like", "share"),
        [
            (np.s_[1::2], np.s_[::2], 1.0),  # used twice
            (np.s_[1::2], np.s_[::2], -1.0),
            (np.s_[30:], np.s_[:30], 1.0),  # again later
            (np.s_[30:], np.s_[:30], 0.5),
            (np.s_[:, 1], np.s_[:, 0], 1.0),  # at two nodes
            (np.s_[:, 1], np.s_[:, 0], 0.4),
            (np.s_[4:, 2], np.s_[:-4, 0], 0.4),  # of another node, later
            (np.s_[59, 2], np.s_[3, 1], 1.0),  # a single time
        ],
    )
    def test_noise_that_is_shared_is_noticed_at_its_nodes(self, at, like, share):
        p = audit.correlation_p(shared(np.random.default_rng(10), at, like=like, share=share))
        assert sum(one < 1e-6 for one in p) == (2 if isinstance(at, tuple) else 3)

    def test_noise_of_one_step_may_be_shared_where_that_is_declared(self):
        noise = shared(np.random.default_rng(11), np.s_[:, 1], like=np.s_[:, 0], share=0.7)
        assert min(audit.correlation_p(noise)) < 1e-6
        assert min(audit.correlation_p(noise, same_step=False)) > 0.01

    def test_more_noise_is_no_fault_and_neither_is_little_to_compare(self):
        rng = np.random.default_rng(12)
        assert min(audit.correlation_p(3 * rng.standard_normal((60, 3, 16)))) > 0.01
        assert audit.correlation_p(np.zeros((60, 3, 16))) == [1.0] * 3  # of which `noise_p` has an opinion
        assert audit.correlation_p(rng.standard_normal((1, 1, 1))) == [1.0]


def drawn(rng, rates=(0.1, 0.3), steps=120, records=80):
    """Coins [n, K, J] as they should be."""
    return rng.random((len(rates), steps, records)) < np.array(rates)[:, None, None]


def coins_p(coins, rates=(0.1, 0.3)):
    sizes = np.moveaxis(audit.group_sizes(coins), 0, 1)
    return audit.coins_p(sizes, list(coins.sum(1)), rates, np.random.default_rng(0))


def in_turns(rng):
    """Each 10 records in a row, in orders of one epoch each."""
    epochs = [rng.permutation(80).reshape(8, 10) for _ in range(15)]
    return np.array([np.isin(np.arange(80), rows) for epoch in epochs for rows in epoch])


class TestCoins:
    def test_p_values_of_true_coins_are_not_too_small(self):
        rng = np.random.default_rng(13)
        p = np.concatenate([coins_p(drawn(rng, steps=15, records=12)) for _ in range(400)])
        for level in (0.01, 0.05, 0.2):
            assert stats.binomtest(int((p <= level).sum()), p.size, level, alternative="greater").pvalue > 1e-3

    @pytest.mark.parametrize(
        "bad",
        [
            lambda rng: np.stack([in_turns(rng)] * 2),
            lambda rng: np.repeat(drawn(rng)[:, :1], 120, 1),  # the same at every step
            lambda rng: np.repeat(drawn(rng)[:, :, :1], 80, 2),  # one coin for all records
            lambda rng: np.concatenate([drawn(rng)[:, :60]] * 2, 1),  # again 60 steps later
            lambda rng: drawn(rng, (0.13, 0.39)),  # too often
        ],
    )
    def test_other_coins_are_noticed(self, bad):
        assert max(coins_p(bad(np.random.default_rng(14)))) < 1e-6

    def test_the_coins_of_another_node_are_noticed(self):
        coins = drawn(np.random.default_rng(15), (0.1, 0.1))
        coins[1] = coins[0]
        assert max(coins_p(coins, (0.1, 0.1))) < 1e-6

    def test_where_everything_is_drawn_there_is_nothing_to_notice(self):
        assert min(coins_p(np.ones((2, 120, 80), bool), (1.0, 1.0))) > 0.01


class TestTradeOffP:
    def test_p_values_of_the_mechanism_itself_are_not_too_small(self):
        rng, allowed = np.random.default_rng(3), curve()
        p = np.array([audit.trade_off_p(messages(rng, 500), allowed) for _ in range(300)])
        assert (p <= 0.05).sum() <= 20  # 15 on average if it were exact

    @pytest.mark.parametrize(("rate", "shift"), [(1.0, SHIFT), (RATE, 3 * SHIFT), (2 * RATE, SHIFT), (1.0, -SHIFT)])
    def test_what_shows_more_is_noticed(self, rate, shift):
        seen = messages(np.random.default_rng(4), 5000, rate=rate, shift=shift)
        assert audit.trade_off_p(seen, curve()) < 1e-6


class TestLeastNoise:
    def test_is_above_what_was_used_and_close_with_many_scores(self):
        rng = np.random.default_rng(5)
        found = audit.least_noise(messages(rng, 100_000), rng.standard_normal(400_000), curve, 0.01)
        assert found is not None
        assert 1 <= found <= 1.3

    def test_finds_that_noise_was_halved(self):
        rng = np.random.default_rng(6)
        halved = messages(rng, 50_000, shift=2 * SHIFT) / 2  # in units of the claimed σ
        found = audit.least_noise(halved, rng.standard_normal(50_000) / 2, curve, 0.01)
        assert found is not None
        assert found < 1

    def test_no_canary_no_contradiction(self):
        rng = np.random.default_rng(7)
        assert audit.least_noise(rng.standard_normal(5000), rng.standard_normal(5000), curve, 0.05) is None
