"""Composition against exact Gaussians and dp-accounting: never below, hardly above."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as stock

from privsgp.accounting import pld
from privsgp.accounting.curve import Gaussian, Sampled


@pytest.mark.parametrize(("mu", "count"), [(3.0, 1), (0.3, 10), (0.05, 1000), (0.001, 100_000), (1e-5, 1_000_000)])
@pytest.mark.parametrize("delta", [1e-7, 1e-5, 0.1])
def test_gaussians_compose_to_a_gaussian(mu, count, delta):
    composed = pld.compose([(Sampled(1.0, mu), count)])
    exact = Gaussian(mu * math.sqrt(count))
    assert exact.epsilon(delta) <= composed.epsilon(delta) <= exact.epsilon(delta) * 1.01 + 1e-4


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


def test_different_parts_compose():
    found = pld.compose([(Sampled(1.0, 0.2), 3), (Sampled(1.0, 0.05), 40), (Sampled(1.0, 1e-4), 1)])
    exact = Gaussian(math.sqrt(3 * 0.2**2 + 40 * 0.05**2 + 1e-8))
    assert exact.epsilon(1e-5) <= found.epsilon(1e-5) <= exact.epsilon(1e-5) * 1.01


@pytest.mark.parametrize("delta", [1e-8, 1e-5, 0.3])
def test_epsilon_and_delta_are_inverse(delta):
    curve = pld.compose([(Sampled(0.1, 0.5), 300)])
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


def test_what_a_convolution_of_a_peak_and_a_long_tail_loses_is_counted():
    length, tail = 1 << 19, 1e-16
    mass = np.full(length, tail)
    mass[:2] = 0.7, 0.3 - (length - 2) * tail
    one = pld._Loss(1e-3, 0, mass, 0.0)
    both = pld._convolved(one, one)
    # Exactly, but for tail², which is below what is seen of the rest.
    exact = np.zeros(2 * length - 1)
    for place in (0, 1):
        exact[place : place + length] += mass[place] * mass
        exact[place + 2 : place + length] += mass[place] * mass[2:]
    lost = np.maximum(exact - both.mass, 0.0).sum()
    assert 1e-14 < lost <= both.infinite


def test_the_grid_is_the_same_on_every_python():
    """`sum` of ten times 0.1 is 1 from Python 3.12 on, and was less before."""
    scales = [pld._Scale(1 / 64, 0.1, 0.0)] * 10
    assert pld._interval(scales, [1] * 10) == 0.004 * 0.9999999999999999 / (10 / 64)
