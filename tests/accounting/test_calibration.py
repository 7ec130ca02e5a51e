"""σ from ε: certified, and smallest."""

from __future__ import annotations

import dataclasses
import math

import pytest

from privsgp.accounting import accountant, calibration
from privsgp.accounting.compound import Anchored
from privsgp.accounting.mechanisms import Sag, Saga, SampledMean, Unprotected
from privsgp.errors import Refused

NODE = {"sigma": 0.0, "clip": 1.0, "batch": 24, "samples": 120}
CASES = [
    (Saga(**NODE, difference_clip=0.5), 50, 8.0, 1e-5, "zero-out"),
    (Saga(**NODE), 5, 3.0, 1e-5, "replace-one"),
    (Saga(**NODE, sampling="fixed"), 50, 1.0, 1e-5, "zero-out"),
    (SampledMean(**NODE | {"batch": 1}), 400, 0.5, 1e-6, "zero-out"),
    (SampledMean(**NODE), 50, 1.0, 1e-5, "replace-one"),
    (Sag(**NODE), 1000, 0.1, 1e-5, "zero-out"),
    (Anchored(**NODE, period=10, difference_clip=0.3), 60, 2.0, 1e-5, "zero-out"),
]


@pytest.mark.parametrize(("mechanism", "steps", "epsilon", "delta", "relation"), CASES)
def test_enough_noise_and_hardly_more(mechanism, steps, epsilon, delta, relation):
    sigma = calibration.sigma(mechanism, steps, epsilon, delta, relation)
    assert accountant.epsilon(mechanism.with_sigma(sigma), steps, delta, relation).epsilon <= epsilon
    assert accountant.epsilon(mechanism.with_sigma(sigma / 1.005), steps, delta, relation).epsilon > epsilon


def test_nothing_released_needs_no_noise():
    assert calibration.sigma(Saga(**NODE), 0, 1.0, 1e-5) == 0


def test_the_units_cancel():
    small = calibration.sigma(SampledMean(**NODE), 50, 1.0, 1e-5)
    large = calibration.sigma(SampledMean(**NODE | {"clip": 100.0}), 50, 1.0, 1e-5)
    assert large == pytest.approx(100 * small, rel=5e-3)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_refuses_a_budget_that_is_none(epsilon):
    with pytest.raises(Refused, match="epsilon"):
        calibration.sigma(Saga(**NODE), 10, epsilon, 1e-5)


def test_refuses_what_no_noise_can_protect():
    with pytest.raises(Refused, match="clip"):
        calibration.sigma(Unprotected(batch=1, samples=10), 10, 1.0, 1e-5)
    with pytest.raises(Refused, match="clip"):
        calibration.sigma(SampledMean(**NODE | {"clip": math.inf}), 10, 1.0, 1e-5)


def test_in_a_run_too_short_to_renew_its_table_a_larger_weight_is_affordable():
    """Its lag costs more than noise there: 0.029 would be within 2 % of the least σ."""
    one = Saga(sigma=0.0, clip=1.0, batch=1, samples=1200)
    assert calibration.affordable(one, 1200) == calibration.MORE
    assert calibration.affordable(one, 125) == pytest.approx(9.6)
    assert calibration.largest(one, 125, 1.0, 1e-5) == pytest.approx(0.29, abs=0.03)


def test_where_less_noise_is_left_in_the_average_a_larger_weight_is_affordable():
    """But for delays that are brief beside the run."""
    m = Saga(sigma=0.0, clip=1.0, batch=4, samples=1200, difference_clip=1.0)
    for steps in (1000, 100):  # drawn three times, and a third of a time
        alone, shared = calibration.affordable(m, steps), calibration.affordable(m, steps, 0.2265)
        assert 0.23**2.5 * (shared**2 - 1) == pytest.approx(alone**2 - 1)
        assert calibration.affordable(m, steps, 0.9999) == calibration.affordable(m, steps, 1.3) == alone
        assert calibration.affordable(m, steps, 0.2265) == calibration.affordable(m, steps, 0.2265 * (1 + 1e-4))
    weights = [calibration.largest(m, 1000, 1.0, 1e-5, remaining=remaining) for remaining in (1.0, 0.5, 0.2265)]
    assert weights[0] == calibration.largest(m, 1000, 1.0, 1e-5)
    assert weights == sorted(set(weights))
    sigma = calibration.sigma(dataclasses.replace(m, difference_scale=weights[-1]), 1000, 1.0, 1e-5)
    at_sigma = calibration.largest_at(m.with_sigma(sigma), 1000, 1e-5, remaining=0.2265)
    assert at_sigma == pytest.approx(weights[-1], rel=0.05)
    often = dataclasses.replace(m, batch=12)
    assert calibration.largest(often, 1000, 1.0, 1e-5, remaining=0.2265) == 0.7  # 1 would be affordable
    steady = dataclasses.replace(m, batch=48)
    whole = calibration.largest(steady, 1000, 1.0, 1e-5)
    assert calibration.largest(steady, 1000, 1.0, 1e-5, remaining=0.2265) == whole


def test_a_clip_of_g_doubles_the_weight_that_is_affordable():
    """And the cache tells clips apart by what they are beside G."""
    node = {"sigma": 0.0, "batch": 4, "samples": 1200}
    free, clipped = Saga(**node, clip=1.0), Saga(**node, clip=1.0, difference_clip=1.0)
    short, wide = Saga(**node, clip=2.0, difference_clip=1.0), Saga(**node, clip=2.0, difference_clip=2.0)
    least, taken, more, same = (calibration.largest(m, 1000, 1.0, 1e-5) for m in (free, clipped, short, wide))
    assert taken == same
    assert 1.7 * least < taken < more


def test_what_a_weight_costs_is_what_it_was_chosen_for():
    one = Saga(sigma=0.0, clip=1.0, batch=1, samples=1200, difference_clip=1.0)
    scaled = dataclasses.replace(one, difference_scale=calibration.largest(one, 250, 1.0, 1e-5))

    def cost(epsilon):
        rough = calibration.rough_sigma(scaled, 250, epsilon, 1e-5, "zero-out")
        return rough / calibration.gaussian_sigma(scaled, 250, epsilon, 1e-5)

    assert cost(1.0) == pytest.approx(calibration.affordable(one, 250), rel=0.05)
    assert cost(0.3) < 0.9 * cost(1.0)
