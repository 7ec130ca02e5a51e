"""Noise that is computed in float64: what differs from the ideal Gaussian is bounded, and counted."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from privsgp.accounting import accountant, calibration, sampler_cost
from privsgp.accounting.assumptions import assumptions
from privsgp.accounting.compound import Anchored, Composed, Summed
from privsgp.accounting.mechanisms import Sag, Saga, SampledMean, described
from privsgp.errors import Refused
from privsgp.randomness import normals
from privsgp.randomness.on_device import snap_

RESNET = SampledMean(sigma=0.4, clip=10.0, batch=125, samples=3125, coordinates=11_173_962)
SMALL = Sag(sigma=0.05, clip=1.0, batch=120, samples=1200, coordinates=650)


def ideal(mechanism):
    return dataclasses.replace(mechanism, coordinates=0)


def epsilon(mechanism, steps=3000, delta=1e-5):
    return accountant.epsilon(mechanism, steps, delta).epsilon


@pytest.mark.parametrize("mechanism", [RESNET, SMALL])
def test_computed_noise_costs_a_little_and_is_counted(mechanism):
    """Found: a bound of 3e-4 a run stood beside δ = 1e-5 and was not added to it."""
    more = epsilon(mechanism) / epsilon(ideal(mechanism)) - 1
    assert 0 < more < 1e-4
    words = " ".join(assumptions(mechanism, 3000, "zero-out"))
    assert "float64" in words
    assert "noise is taken as ideal" in " ".join(assumptions(ideal(mechanism), 10, "zero-out"))


def test_the_cost_grows_with_coordinates_steps_and_shifts():
    def cost(**changes):
        m = dataclasses.replace(RESNET, **{"sigma": 1.0} | {k: v for k, v in changes.items() if k != "steps"})
        return sampler_cost.Cost.of(m, changes.get("steps", 3000), m.radius / (m.batch * m.sigma))

    base = cost()
    for more in (cost(coordinates=10**9), cost(steps=10**6), cost(batch=10)):
        assert more.tail > base.tail
        assert more.ratio(1e-5, 1.0) > base.ratio(1e-5, 1.0)
    assert cost(batch=0.1).tail == math.inf  # a shift of 100 σ lies outside everything that can be drawn
    assert base.tail < 1e-8
    assert base.ratio(1e-5, 1.0) < 1e-5


def test_a_list_of_one_mechanism_costs_as_often_as_it_counts():
    """Found: a list with one entry cost as if it had no coordinates."""
    three = sampler_cost.Cost.of(Composed(((RESNET, 3),)), 1000, 0.1)
    assert three == sampler_cost.Cost.of(Composed(((RESNET, 1), (RESNET, 2))), 1000, 0.1)
    assert three.tail > 0


def test_a_sampler_whose_tail_exceeds_delta_has_no_bound_and_is_refused():
    vast = dataclasses.replace(RESNET, coordinates=2**36)
    assert epsilon(vast, 10**6) == math.inf
    with pytest.raises(Refused, match="coordinates"):
        calibration.sigma(vast, 10**6, 3.0, 1e-9)


@pytest.mark.parametrize(("mechanism", "room"), [(RESNET, True), (SMALL, False)])
def test_calibration_takes_it_into_account_and_hardly_changes_sigma(mechanism, room):
    sigma, before = (calibration.sigma(m, 1000, 3.0, 1e-5) for m in (mechanism, ideal(mechanism)))
    assert epsilon(mechanism.with_sigma(sigma), 1000) <= 3.0
    assert sigma == before if room else before < sigma < before * (1 + 1e-4)


def test_a_sigma_that_leaves_no_room_for_it_is_raised(monkeypatch):
    tight = calibration.sigma(ideal(SMALL), 1000, 1.0, 1e-5)
    budget = epsilon(ideal(SMALL).with_sigma(tight), 1000)  # to the last digit
    monkeypatch.setattr(calibration, "_search", lambda *_: tight)
    raised = calibration.sigma(SMALL, 1000, budget, 1e-5)
    assert tight < raised < tight * (1 + 1e-4)
    assert epsilon(SMALL.with_sigma(raised), 1000) <= budget


def test_a_replaced_sample_is_two_of_the_computed_runs():
    """Found: group privacy was applied to the ideal run, and the tail added once instead of 1 + e^ε times."""
    saga = Saga(sigma=0.09, clip=1.0, batch=240, samples=1200, coordinates=8 * 10**9)
    replaced = accountant.epsilon(saga, 1000, 1e-5, "replace-one").epsilon
    single = accountant.epsilon(saga, 1000, 1e-5 / (1 + math.exp(replaced / 2)), "zero-out").epsilon
    assert math.isfinite(replaced)
    assert single <= replaced / 2 * (1 + 1e-3)


def test_a_sum_of_messages_has_every_node_s_noise():
    """Found: the guarantee of a sum rests on the noise of n nodes, of which one was counted."""
    alone = Anchored(sigma=1.0, clip=1.0, batch=10, samples=100, coordinates=10**6)
    together = Summed(alone, 100)
    one, all_of_them = (sampler_cost.Cost.of(m, 50, 0.1) for m in (alone, together))
    assert all_of_them.tail == pytest.approx(100 * one.tail)
    assert all_of_them.variance == pytest.approx(100 * one.variance)
    many = Summed(alone, 10_000)
    assert sampler_cost.Cost.of(many, 50, 0.1).tail == math.inf
    with pytest.raises(Refused, match="10000 nodes"):
        calibration.sigma(many, 50, 3.0, 1e-5)


@pytest.mark.parametrize("tail", [0.0, 1e-3, 0.5, 0.9, 0.999])
def test_what_is_left_of_delta_bears_the_ratio_too(tail):
    """e^ζ (δ' + τ + 2⁻²⁰ δ) ≤ δ. Found: the ratio's factor was left off the tail."""
    cost = sampler_cost.Cost(tail * 1e-5, 1e-20, 1e-9)
    left, zeta = cost.ideal_delta(1e-5), sampler_cost.SHARE - 2.0**-19
    assert math.exp(zeta) * (left + cost.tail + 2.0**-20 * 1e-5) <= 1e-5
    assert left > (1 - tail) * 1e-5 - 1.01 * sampler_cost.SHARE * 1e-5


@pytest.mark.parametrize("sigma", [2.0**-1000, 2.0**1000])
def test_noise_at_the_ends_of_float64_is_refused(sigma):
    """Nearer to them products lose digits, the grid is 0, or sums overflow: the proof has none of that."""
    mechanism = dataclasses.replace(SMALL, sigma=sigma, clip=sigma)
    assert epsilon(mechanism) == math.inf
    with pytest.raises(Refused, match="sigma"):
        snap_(torch.zeros((1, 3), dtype=torch.float64), [sigma])


def test_ledgers_from_before_are_read():
    old = {k: v for k, v in Saga(sigma=0.1, clip=1.0, batch=5, samples=50).describe().items() if k != "coordinates"}
    assert described(old) == Saga(sigma=0.1, clip=1.0, batch=5, samples=50)


def drawn(first, second):
    """The normals of two signed 64-bit words, as secret noise makes them."""
    words = np.array([first, second], np.int64)[None]
    out = np.empty((1, 2))
    normals.box_muller(out, words, np.float64, deep=True)
    return out[0]


@pytest.mark.parametrize("spare", [0, 1, 1023, 1024, 2047])
@pytest.mark.parametrize("word", [0, 1, -1, 5, -(2**40), 2**62, -(2**63), 2**63 - 1])
def test_the_radius_has_75_bits(word, spare):
    """The eleven bits that an angle in float64 cannot hold stand behind the point of the radius's word."""
    second = (3 << 60) | spare
    u = abs(word * 2048 * 2 + 2 * spare - 2047) / 2**75  # exact: integers
    radius = math.sqrt(max(-2 * math.log(min(u, 1.0)), 0.0))
    angle = math.pi * (second - 2**64 if second >= 2**63 else second) / 2**63
    np.testing.assert_allclose(
        drawn(word, second if second < 2**63 else second - 2**64),
        [radius * math.cos(angle), radius * math.sin(angle)],
        rtol=1e-13, atol=1e-9,
    )  # fmt: skip


def test_tails_reach_ten_sigma():
    assert np.hypot(*drawn(0, 1024)) == pytest.approx(math.sqrt(150 * math.log(2)))


def test_float64_arithmetic_stays_within_what_the_proof_assumes():
    """|computed − exact| ≤ 2⁻⁵³ (2/r + 21 r), for words everywhere: mpmath has fifty digits.

    Of the 30 r of the proof the angle's cell takes 2π, the product with σ and the sum 1 each.
    """
    mpmath = pytest.importorskip("mpmath")
    rng = np.random.default_rng(0)
    with mpmath.workdps(50):
        for k in range(400):
            first = int(rng.integers(-(2**63), 2**63 - 1)) >> (k % 63)
            second = int(rng.integers(-(2**63), 2**63 - 1))
            first = first if k % 5 else 2**63 - 1 - (first & (2**40 - 1))  # near u = 1
            x = abs(mpmath.mpf(first) + (mpmath.mpf(second % 2048) - mpmath.mpf("1023.5")) / 2048)
            u = min(x / 2**63, mpmath.mpf(1) - mpmath.mpf(2) ** -70)
            radius, angle = mpmath.sqrt(-2 * mpmath.log(u)), mpmath.pi * second / 2**63
            r = float(radius)
            for found, wanted in zip(drawn(first, second), (mpmath.cos(angle), mpmath.sin(angle)), strict=True):
                assert abs(float(mpmath.mpf(float(found)) - radius * wanted)) <= 2.0**-53 * (2 / r + 21 * r)
