from __future__ import annotations

import math

import pytest

from privsgp.accounting import calibration
from privsgp.accounting.curve import Gaussian
from privsgp.accounting.mechanisms import Sag, SampledMean
from privsgp.planner import price as prices
from privsgp.planner.price import Price, common_budget, gaussian_shift

BATCH = SampledMean(sigma=0.0, clip=1.0, batch=48.0, samples=1200)
ONE = SampledMean(sigma=0.0, clip=1.0, batch=1.0, samples=1200)


@pytest.mark.parametrize("mechanism", [BATCH, ONE], ids=["batch", "one"])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_within_two_percent_of_what_is_certified(mechanism, epsilon):
    certified = calibration.sigma(mechanism, 500, epsilon, 1e-5)
    assert Price(mechanism, 1e-5).sigma(500, epsilon) == pytest.approx(certified, rel=0.02)


def test_any_k_lies_on_the_lines_between_the_powers_of_four():
    price = Price(BATCH, 1e-5)
    assert price.along(256, 1.0) == pytest.approx(price.sigma(256, 1.0))
    assert price.along(700, 1.0) == pytest.approx(price.sigma(700, 1.0), rel=0.02)


def test_fifty_budgets_need_a_handful_of_certified_values(monkeypatch):
    calls = []
    certified = prices.accountant.epsilon
    monkeypatch.setattr(prices.accountant, "epsilon", lambda *a: calls.append(1) or certified(*a))
    price = Price(BATCH, 1e-5)
    sigmas = [price.sigma(500, 0.5 + 0.05 * i) for i in range(50)]
    assert sigmas == sorted(sigmas, reverse=True)
    assert len(calls) < 12


def test_spare_releases_are_counted():
    spare = Price(BATCH, 1e-5, releases=lambda steps: 2 * steps)
    assert spare.sigma(300, 1.0) == pytest.approx(Price(BATCH, 1e-5).sigma(600, 1.0), rel=0.01)


def test_gaussian_shift_is_exact():
    mu = gaussian_shift(1.3, 1e-6)
    assert Gaussian(mu).epsilon(1e-6) == pytest.approx(1.3, rel=1e-6)


def test_equal_budgets_are_their_common_budget():
    assert common_budget([(1.5, 1e-5)] * 3, [100] * 3, 1e-5) == pytest.approx(1.5)


@pytest.mark.parametrize("weights", [None, [0.2, 0.5, 0.3]])
def test_the_common_budget_brings_the_same_noise(weights):
    budgets, sizes = [(0.5, 1e-5), (2.0, 1e-5), (4.0, 1e-6)], [200, 100, 400]

    def sigma(samples, epsilon, delta):
        return Price(Sag(sigma=0.0, clip=1.0, batch=1.0, samples=samples), delta).sigma(100, epsilon)

    own = [sigma(j, *b) for j, b in zip(sizes, budgets, strict=True)]
    mean = sum(sizes) / 3
    common = sigma(700, common_budget(budgets, sizes, 1e-6, weights), 1e-6) * 700 / mean
    shares = weights or [1 / 3] * 3
    assert common / math.sqrt(3) == pytest.approx(
        math.hypot(*(p * s for p, s in zip(shares, own, strict=True))), rel=0.01
    )
