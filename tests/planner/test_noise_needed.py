from __future__ import annotations

import math

import pytest

from privsgp.accounting import calibration
from privsgp.accounting.curve import Gaussian
from privsgp.accounting.mechanisms import SampledMean
from privsgp.algorithms import Settings
from privsgp.planner.noise import Method, Network, NoiseNeeded

PRIVSGP = Method("privsgp", Settings())


@pytest.mark.parametrize("batch", [48.0, 1.0])
@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_rough_noise_is_within_a_percent_of_what_is_certified(batch, epsilon):
    mechanism = SampledMean(sigma=0.0, clip=1.0, batch=batch, samples=1200)
    certified = calibration.sigma(mechanism, 500, epsilon, 1e-5)
    assert calibration.rough_sigma(mechanism, 500, epsilon, 1e-5, "zero-out") == pytest.approx(certified, rel=0.01)


def test_spare_releases_are_counted():
    spare, twice = (Network([1200], [(1.0, 1e-5)], spare=s) for s in (1.0, 0.0))
    assert NoiseNeeded(spare, PRIVSGP, 48.0).common(300) == NoiseNeeded(twice, PRIVSGP, 48.0).common(600)


def test_gaussian_shift_is_exact():
    assert Gaussian(calibration.gaussian_shift(1.3, 1e-6)).epsilon(1e-6) == pytest.approx(1.3, rel=1e-6)


def test_equal_budgets_are_their_common_budget():
    assert Network([100] * 3, [(1.5, 1e-5)] * 3).epsilon == pytest.approx(1.5)


@pytest.mark.parametrize("weights", ["equal", [0.2, 0.5, 0.3]])
def test_the_common_budget_brings_the_same_noise(weights):
    network = Network([200, 100, 400], [(0.5, 1e-5), (2.0, 1e-5), (4.0, 1e-6)], weighting=weights)
    noise = NoiseNeeded(network, Method("privsgp-sag", Settings()), 1.0)
    shares = network.weights or [1 / 3] * 3
    average = math.hypot(*(p * s for p, s in zip(shares, noise.each(100), strict=True)))
    assert noise.common(100) / math.sqrt(3) == pytest.approx(average, rel=0.01)
