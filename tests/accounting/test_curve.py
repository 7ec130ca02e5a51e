"""Exact Gaussian curves, and group privacy."""

from __future__ import annotations

import math

import pytest
from dp_accounting import gaussian_mechanism
from hypothesis import given
from hypothesis import strategies as st

from privsgp.accounting.curve import Gaussian, Group

DELTAS = st.sampled_from([1e-15, 1e-10, 1e-5, 0.01, 0.5, 0.99])


@given(st.floats(0.01, 30), st.sampled_from([1e-10, 1e-5, 0.01]))
def test_gaussian_epsilon_is_the_stock_one(mu, delta):
    stock = gaussian_mechanism.get_epsilon_gaussian(1 / mu, delta, tol=1e-9)
    assert Gaussian(mu).epsilon(delta) == pytest.approx(stock, rel=1e-6, abs=1e-6)


@given(st.floats(1e-30, 1e60), DELTAS)
def test_gaussian_epsilon_is_enough_and_never_nan(mu, delta):
    epsilon = Gaussian(mu).epsilon(delta)
    assert epsilon >= 0
    if mu < 1e6:
        assert Gaussian(mu).delta(epsilon) <= delta * (1 + 1e-6)


def test_no_shift_and_no_noise():
    assert Gaussian(0.0).epsilon(1e-5) == 0
    assert Gaussian(0.0).delta(0.0) == 0
    assert Gaussian(math.inf).epsilon(1e-5) == math.inf
    assert Gaussian(math.inf).delta(3.0) == 1


@given(st.floats(0.01, 5), DELTAS)
def test_a_group_of_two_pays_twice(mu, delta):
    single, group = Gaussian(mu), Group(Gaussian(mu))
    epsilon = group.epsilon(delta)
    if math.isfinite(epsilon):
        assert (1 + math.exp(epsilon / 2)) * single.delta(epsilon / 2) <= delta * (1 + 1e-9)
        assert epsilon >= 2 * single.epsilon(delta) - 1e-6
        # Replacing a sample shifts a Gaussian by at most 2μ: group privacy may not promise more than that.
        assert epsilon >= Gaussian(2 * mu).epsilon(delta) * (1 - 1e-6)


def test_a_group_without_a_bound_has_none():
    assert Group(Gaussian(math.inf)).epsilon(1e-5) == math.inf
    assert Group(Gaussian(1e4)).epsilon(1e-5) == math.inf
