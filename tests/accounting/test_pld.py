"""Composition against exact Gaussians and dp-accounting: never below, hardly above."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as stock
from scipy import stats

from privsgp.accounting import accountant, lower_bound, pld
from privsgp.accounting.curve import Gaussian, Sampled
from privsgp.accounting.mechanisms import SampledMean


@pytest.mark.parametrize(("mu", "count"), [(3.0, 1), (0.3, 10), (0.05, 1000), (0.001, 100_000), (1e-5, 1_000_000)])
@pytest.mark.parametrize("delta", [1e-12, 1e-9, 1e-7, 1e-5, 0.1])
def test_gaussians_compose_to_a_gaussian(mu, count, delta):
    composed = pld.compose([(Sampled(1.0, mu), count)], delta)
    exact = Gaussian(mu * math.sqrt(count))
    assert exact.epsilon(delta) <= composed.epsilon(delta) <= exact.epsilon(delta) * 1.02 + 1e-4


@pytest.mark.parametrize(("rate", "mu", "count"), [(0.2, 0.0833, 575), (0.01, 1.0, 1000), (0.001, 2.0, 100)])
def test_sampled_gaussians_compose_as_in_the_stock_library(rate, mu, count):
    found = pld.compose([(Sampled(rate, mu), count)])
    other = stock.from_gaussian_mechanism(1.0, mu, sampling_prob=rate).self_compose(count)
    for delta in (1e-6, 1e-3):
        assert found.epsilon(delta) == pytest.approx(other.get_epsilon_for_delta(delta), rel=5e-3, abs=1e-3)


def test_replaced_samples_compose_as_in_the_stock_library():
    relation = stock.NeighborRel.REPLACE_ONE
    other = stock.from_gaussian_mechanism(1.0, 0.5, sampling_prob=0.1, neighboring_relation=relation).self_compose(200)
    found = pld.compose([(Sampled(0.1, 0.5, replace=True), 200)])
    assert found.epsilon(1e-5) == pytest.approx(other.get_epsilon_for_delta(1e-5), rel=5e-3)


@pytest.mark.parametrize("delta", [1e-13, 1e-5])
def test_different_parts_compose(delta):
    found = pld.compose([(Sampled(1.0, 0.2), 3), (Sampled(1.0, 0.05), 40), (Sampled(1.0, 1e-4), 1)], delta)
    exact = Gaussian(math.sqrt(3 * 0.2**2 + 40 * 0.05**2 + 1e-8))
    assert exact.epsilon(delta) <= found.epsilon(delta) <= exact.epsilon(delta) * 1.01


@pytest.mark.parametrize(("delta", "aim"), [(1e-8, 1.0), (1e-5, 1.0), (0.3, 1.0), (1e-11, 1e-12), (1e-8, 1e-12)])
def test_epsilon_and_delta_are_inverse(delta, aim):
    curve = pld.compose([(Sampled(0.1, 0.5), 300)], aim)
    assert curve.delta(curve.epsilon(delta)) == pytest.approx(delta, rel=1e-6)


def test_a_delta_below_the_arithmetic_has_no_bound():
    assert pld.compose([(Sampled(0.1, 0.5), 300)]).epsilon(1e-16) == math.inf


def test_losses_that_are_all_positive_are_counted():
    loss = pld._Loss(0.5, 4, np.array([0.25, 0.75]), 0.0)
    epsilon = loss.epsilon(0.1)
    assert loss.delta(epsilon) == pytest.approx(0.1)
    assert loss.delta(math.inf) == 0


def test_the_hull_keeps_convex_points_and_drops_bumps():
    epsilon = np.array([-1.0, 0.0, 1.0, 2.0])
    delta = np.array([0.7, 0.3, 0.2999, 0.1])
    assert pld._hull(epsilon, delta) == [0, 1, 3]


@pytest.mark.parametrize(("rate", "count"), [(0.3, 1000), (0.3, 10**6), (1e-6, 10**6), (1e-3, 10**5)])
@pytest.mark.parametrize("delta", [1e-18, 1e-12, 1e-9])
def test_far_tails_are_those_of_the_exact_law(rate, count, delta):
    """Two losses, K times, are a binomial law, in one part or two: δ, and what is missing in it, around its centre."""
    one = pld._Loss(0.01, 0, np.array([1 - rate, rate]), 0.0)
    order = pld._order([one], [count], delta)
    found = pld._composed([one.tilted(order)] * 2, [count // 3, count - count // 3])
    places = np.arange(found.first, found.first + found.mass.size)
    more = rate * math.exp(order) / (1 - rate + rate * math.exp(order))
    exact, tilted = (stats.binom.pmf(places, count, q) for q in (rate, more))
    centre = int(np.argmax(found.mass))
    for place in places[centre - 3 : centre + 4]:
        gain = -np.expm1(np.minimum(0.01 * (place - places), 0.0))
        wanted = float(gain @ exact)
        assert wanted * (1 - 1e-9) <= found.delta(0.01 * place) <= wanted * (1 + 1e-3)
        weight = np.exp(np.minimum(order * (place - places), 0.0)) * gain
        assert abs(weight @ (tilted - found.mass)) <= found.off


@pytest.mark.parametrize("delta", [1e-9, 1e-12])
@pytest.mark.parametrize(("rate", "sigma", "steps"), [(0.01, 20.0, 10**5), (0.01, 60.0, 10**6), (1e-4, 1.5, 10**6)])
def test_a_small_delta_needs_no_renyi_bound(rate, sigma, steps, delta):
    """Rounding of the FFT exceeded δ, and the Rényi bound was returned: 5 to 300 % more."""
    mechanism = SampledMean(sigma=sigma / (rate * 1e5), clip=1.0, batch=rate * 1e5, samples=10**5)
    spent = accountant.epsilon(mechanism, steps, delta)
    assert lower_bound.epsilon(mechanism, steps, delta, "zero-out") <= spent.epsilon < 0.97 * spent.rdp_epsilon


def test_the_grid_is_the_same_on_every_python():
    """`sum` of ten times 0.1 is 1 from Python 3.12 on, and was less before."""
    scales = [pld._Scale(1 / 64, 0.1, 0.0)] * 10
    assert pld._interval(scales, [1] * 10) == 0.004 * 0.9999999999999999 / (10 / 64)


def test_losses_far_above_0_take_no_memory():
    """A point was kept for every loss down to 0: 20 GB for SAGA with little noise, and the process was killed."""
    far = pld._Loss(1e-4, 10**12, np.array([0.5, 0.4, 0.1]), 0.0)
    assert far.epsilon(1e-5) == pytest.approx(1e8)
    assert far.delta(far.epsilon(1e-5)) <= 1e-5
    near = pld._Loss(1e-4, 10**3, np.array([0.5, 0.4, 0.1]), 0.0)
    assert near.epsilon(0.99) == 0.0
    assert 0 <= far.epsilon(0.9999) <= 1e8
