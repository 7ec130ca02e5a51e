"""Noise that neighbours share: σ_eff against all coalitions by brute force, and noise that is worth what is needed."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsgp.accounting import accountant, calibration, sampler_cost
from privsgp.accounting.accountant import Disagreement
from privsgp.accounting.compound import Shared
from privsgp.accounting.mechanisms import Sag, Saga, SampledMean, described
from privsgp.accounting.pairwise import PairwiseCovariance, _agree, looked_at, trust_curve
from privsgp.accounting.sharing import Sharing, solve
from privsgp.errors import Refused

VARIANCES = st.floats(1e-3, 1e3)


def worst(noise: PairwiseCovariance, i: int, h: int) -> float:
    """Return σ_eff² by going through every coalition that leaves at least h nodes honest."""
    others = [j for j in range(noise.nodes) if j != i]
    sets = (s for m in range(h - 1, len(others) + 1) for s in itertools.combinations(others, m))
    return min(1 / np.linalg.inv(covariance(noise, [i, *s]))[0, 0] for s in sets)


def covariance(noise: PairwiseCovariance, honest: list[int]) -> np.ndarray:
    """Return S_H from its definition: the covariance of a_i + Σ ± s u_ij over the pairs within H."""
    n = len(honest)
    within = [(a, b) for a, b in itertools.combinations(range(noise.nodes), 2) if a in honest and b in honest]
    B = np.zeros((n, n + len(within)))
    B[:, :n] = np.diag([math.sqrt(noise.own[i]) for i in honest])
    for column, (a, b) in enumerate(within):
        B[honest.index(a), n + column], B[honest.index(b), n + column] = (s := math.sqrt(noise.pair)), -s
    return B @ B.T


def test_what_sharing_leaves_of_the_noise_in_the_average():
    """Of equal nodes √D/σ, D = ρσ²/(hρ − h + 1); beside independent noise of the same weights."""
    for sigma in (1.0, 1e-3):
        assert solve([sigma] * 50, 38, 2.0).remaining([sigma] * 50) == pytest.approx(math.sqrt(2 / 39))
    needed, weights = [1.0, 2.0, 2.0], [0.5, 0.25, 0.25]
    alone = math.hypot(0.5, 0.5, 0.5)
    shared = solve(needed, 2, 2.0, weights)
    assert shared.remaining(needed) == pytest.approx(shared.average_sigma / alone)


def test_one_sample_a_step_is_not_refused_for_less_noise_than_it_will_have():
    """Of its own mean it needs six times the Gaussian's noise, at which rounding would cost more than is set aside."""
    values = {"sigma": 0.0, "clip": 1.0, "batch": 1, "samples": 1200, "coordinates": 7850}
    m = Shared(SampledMean(**values), 38, 49)
    sigma = calibration.sigma(m, 1020, 1.0, 1e-5)
    assert sigma > 6 * calibration.gaussian_sigma(m, 1020, 1.0, 1e-5)
    assert accountant.epsilon(m.with_sigma(sigma), 1020, 1e-5).epsilon <= 1
    with pytest.raises(Refused, match="rounding may cost more"):
        calibration.sigma(Shared(Sag(**values), 38, 49), 1020, 1.0, 1e-5)


@settings(max_examples=40, deadline=None)
@given(st.lists(VARIANCES, min_size=2, max_size=6), VARIANCES, st.data())
def test_the_smallest_own_noise_is_the_worst_that_honest_nodes_can_have(own, pair, data):
    noise = PairwiseCovariance(tuple(own), pair)
    h = data.draw(st.integers(1, len(own)))
    for i, sigma in enumerate(noise.effective(h)):
        exact = worst(noise, i, h)
        assert sigma**2 <= exact * (1 + 1e-7)
        assert sigma**2 >= exact * (1 - 1e-5)


def test_more_noise_and_more_honest_nodes_are_never_worse():
    noise = PairwiseCovariance((1.0, 2.0, 0.5, 0.1, 4.0, 1.0), 3.0)
    by_honest = [noise.effective(h) for h in range(1, 7)]
    assert all(a <= b for low, high in itertools.pairwise(by_honest) for a, b in zip(low, high, strict=True))
    more = dataclasses.replace(noise, own=(1.0, 2.0, 0.5, 0.2, 4.0, 1.0))
    assert all(a <= b for a, b in zip(noise.effective(4), more.effective(4), strict=True))
    assert noise.effective(1) == pytest.approx([math.sqrt(D) for D in noise.own])  # alone, only its own is left


def test_what_equals_need_is_as_the_design_says():
    """All 50 honest: 0.2 of the noise in the average for 1.4 times that in a message; 38: 0.23 for 1.6 times."""
    for h, average, message in ((50, 0.198, 1.400), (38, 0.2265, 1.601)):
        noise = solve([1.0] * 50, h, 2.0)
        assert noise.average_sigma * math.sqrt(50) == pytest.approx(average, rel=1e-3)
        assert noise.message_sigma[0] == pytest.approx(message, rel=1e-3)
        D, s2 = noise.own[0], noise.pair
        assert 1 / (h * D) + (1 - 1 / h) / (D + h * s2) == pytest.approx(1, rel=1e-6)
        assert D + h * s2 == pytest.approx(2, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.05, 20), min_size=2, max_size=7), st.floats(1.1, 8), st.data())
def test_noise_is_worth_what_each_node_needs_and_never_more_than_equals_would_take(needed, ratio, data):
    n = len(needed)
    h = data.draw(st.integers(2, n))
    noise = solve(needed, h, ratio)
    assert all(has >= need for has, need in zip(noise.effective(h), needed, strict=True))
    as_strictest = solve([max(needed)] * n, h, ratio)
    kappa = (h - 1) / (h * ratio - h + 1) ** 2
    mu = h * kappa / (1 + kappa)
    price, dear = (math.fsum(one.own) / n + mu * one.pair for one in (noise, as_strictest))
    assert price <= dear * (1 + 1e-6)


def test_weights_against_what_each_needs_make_all_alike_and_the_average_least():
    needed = [1.0, 2.0, 4.0, 8.0]
    total = sum(1 / s for s in needed)
    weights = [1 / s / total for s in needed]
    weighted, plain = (solve(needed, 4, 2.0, w) for w in (weights, None))
    assert len({f"{D:.9g}" for D in weighted.own}) == 1
    assert weighted.average_sigma < plain.average_sigma
    assert weighted.effective(4) == pytest.approx(needed, rel=1e-6)
    steps = [n * s for n, s in zip(weighted.steps, weighted.pair_sigma, strict=True)]
    assert steps == pytest.approx([steps[0]] * 4)  # what one end of a pair adds to the sum the other takes


@pytest.mark.parametrize(
    ("needed", "honest", "ratio"),
    [([1.0] * 8, 9, 2.0), ([0.0] * 8, 6, 2.0), ([math.inf] * 8, 6, 2.0)],
)
def test_what_protects_nobody_is_refused(needed, honest, ratio):
    with pytest.raises(Refused):
        solve(needed, honest, ratio)


def test_two_computations_that_disagree_give_nothing():
    with pytest.raises(Disagreement):
        _agree(1.0, 1.0 + 1e-6, 1.0)
    _agree(1.0, 1.0 + 1e-12, 1.0)


def test_a_mechanism_tells_its_ledger_who_is_trusted_and_others_are_as_they_were():
    alone = SampledMean(sigma=1.0, clip=1.0, batch=2, samples=10)
    assert "honest" not in alone.describe()
    shared = Shared(alone, 3, 4, least_own=0.5)
    assert described(shared.describe()) == shared
    with pytest.raises(Refused):
        Shared(alone, 3, 0)


@pytest.mark.parametrize("kind", [SampledMean, Sag, Saga])
def test_the_sampler_of_shared_noise_is_counted_and_costs_little(kind):
    plain = kind(sigma=0.0, clip=1.0, batch=240, samples=1200, coordinates=50_890)
    shared = Shared(plain, 38, 49)
    sigma = calibration.sigma(shared, 600, 1.0, 1e-5)
    assert sigma == pytest.approx(calibration.sigma(plain, 600, 1.0, 1e-5), rel=5e-3)
    noised = shared.with_sigma(sigma)
    assert accountant.epsilon(noised, 600, 1e-5).epsilon <= 1.0
    assert accountant.epsilon(noised, 600, 1e-5).epsilon > accountant.epsilon(
        noised.changed(coordinates=0), 600, 1e-5
    ).epsilon  # fmt: skip


def test_a_sampler_that_leaves_no_delta_is_refused():
    vast = Shared(SampledMean(sigma=0.0, clip=1.0, batch=240, samples=1200, coordinates=10**9), 800, 999)
    with pytest.raises(Refused, match="fewer nodes"):
        calibration.sigma(vast, 3000, 1.0, 1e-5)
    cost = sampler_cost.Cost.of(vast.with_sigma(1.0), 3000, 0.0)
    assert math.isinf(cost.epsilon(1e-5, 1.0, sampler_cost.ASIDE[0]))


def test_a_trust_curve_falls_from_own_noise_alone_to_all_honest():
    sharing = Sharing(16, 12)
    noise = sharing.solved(0.5, 2.0)
    mechanism = sharing.counted(SampledMean(sigma=0.5, clip=1.0, batch=50, samples=100), noise)
    curve = trust_curve(noise, 0, mechanism, lambda m: accountant.epsilon(m, 50, 1e-5).epsilon)
    assert [h for h, _ in curve] == looked_at(16, 12)
    assert {1, 2, 12, 16} <= dict(curve).keys()
    assert all(a > b for (_, a), (_, b) in itertools.pairwise(curve))
    alone = mechanism.with_sigma(noise.own_sigma[0])
    assert curve[0][1] == pytest.approx(accountant.epsilon(alone, 50, 1e-5).epsilon, rel=1e-6)


def test_pairs_that_share_more_than_was_counted_get_no_epsilon():
    """`account` and `calibrate` count the sampler with pairs up to `LARGEST_PAIR` times own noise, as runs do."""
    sharing = Sharing(8, 6)
    ideal = SampledMean(sigma=1.0, clip=1.0, batch=100, samples=1000)
    run, large = dataclasses.replace(ideal, coordinates=1000), sharing.solved(0.02, 1e5)
    assert sharing.counted(ideal, large).sigma >= 0.02
    with pytest.raises(Refused, match="the ratio may be at most 8"):
        sharing.counted(run, large)
    assert sharing.counted(run, sharing.solved(0.02, 20.0)).least_own > 0
