"""Schedules of clip and noise: what is counted is every step as it is, by three readings, and repeats as the worst."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as stock
from hypothesis import given, settings
from hypothesis import strategies as st

from privsgp.accounting import accountant, calibration, lower, opinion
from privsgp.accounting.curve import Gaussian
from privsgp.accounting.mechanisms import Anchored, Sag, Saga, SampledMean, described
from privsgp.accounting.schedule import MOST_STRETCHES, Schedule, Stretch, stair
from privsgp.accounting.segment import Header
from privsgp.errors import Refused

DELTA = 1e-5
NODE = {"sigma": 0.05, "clip": 1.0, "batch": 60.0, "samples": 1200}
THREE = (Stretch(20), Stretch(30, 0.5), Stretch(50, 0.8, 2.0))


def scheduled(kind, stretches, spare=0, **values):
    return kind(**NODE | values, schedule=Schedule(tuple(stretches), spare))


def epsilon(mechanism, steps, relation="zero-out"):
    return accountant.epsilon(mechanism, steps, DELTA, relation).epsilon


stretches = st.lists(
    st.builds(Stretch, st.integers(1, 40), st.floats(0.1, 1.0), st.floats(1.0, 6.0)), min_size=1, max_size=3
)


@settings(max_examples=8, deadline=None)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=5), spare=st.integers(0, 9))
@pytest.mark.parametrize("kind", [SampledMean, Sag])
def test_a_schedule_of_equal_steps_is_counted_as_none_to_the_last_bit(kind, lengths, spare):
    made = scheduled(kind, map(Stretch, lengths), spare)
    for steps in {1, sum(lengths), sum(lengths) + spare}:
        plain = accountant.epsilon(kind(**NODE), steps, DELTA)
        counted = accountant.epsilon(made, steps, DELTA)
        assert counted.epsilon == plain.epsilon
        assert counted.rdp_epsilon == pytest.approx(plain.rdp_epsilon, rel=1e-12)  # step by step: another order of sums


def test_a_schedule_of_equal_steps_of_saga_is_counted_as_none():
    made = scheduled(Saga, [Stretch(20), Stretch(30)], batch=240.0)
    assert epsilon(made, 50) == epsilon(Saga(**NODE | {"batch": 240.0}), 50)


@settings(max_examples=6, deadline=None)
@given(parts=stretches)
def test_epsilon_lies_between_those_of_the_least_and_the_largest_multiplier(parts):
    made, steps = scheduled(SampledMean, parts), sum(one.steps for one in parts)
    ends = [pick(parts, key=lambda one: one.clip / one.sigma) for pick in (min, max)]
    low, high = (epsilon(made.alike(one), steps) for one in ends)
    assert low * (1 - 0.01) <= epsilon(made, steps) <= high * (1 + 0.01)  # each composition is a few thousandths above


@settings(max_examples=15, deadline=None)
@given(parts=stretches, relation=st.sampled_from(["zero-out", "replace-one"]))
def test_gaussians_add_up_exactly(parts, relation):
    made = scheduled(Sag, [one._replace(clip=1.0) for one in parts])
    sides = 2 if relation == "replace-one" else 1
    square = sum(one.steps * (sides / (1200 * 0.05 * one.sigma)) ** 2 for one in parts)
    found = epsilon(made, sum(one.steps for one in parts), relation)
    assert found == pytest.approx(Gaussian(math.sqrt(square)).epsilon(DELTA), rel=1e-9)


def test_full_batches_of_a_changing_clip_add_up_exactly():
    made = scheduled(SampledMean, THREE, batch=1200.0)
    square = sum(one.steps * (one.clip / (1200 * 0.05 * one.sigma)) ** 2 for one in THREE)
    assert epsilon(made, 100) == pytest.approx(Gaussian(math.sqrt(square)).epsilon(DELTA), rel=1e-9)


def test_composition_agrees_with_a_library_that_knows_no_schedules():
    whole = stock.identity()
    for one in THREE:
        release = stock.from_gaussian_mechanism(
            0.05 * one.sigma, one.clip / 60, sampling_prob=0.05, value_discretization_interval=1e-4
        )
        whole = whole.compose(release.self_compose(one.steps))
    found = epsilon(scheduled(SampledMean, THREE), 100)
    assert found == pytest.approx(whole.get_epsilon_for_delta(DELTA), rel=0.01)


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_three_readings_bracket_each_other(relation):
    made = scheduled(SampledMean, THREE, spare=4)
    second = opinion.renyi(made, 104, relation).epsilon(DELTA)
    assert lower.epsilon(made, 104, DELTA, relation) <= epsilon(made, 104, relation) <= second


@pytest.mark.parametrize("wrong", [1, 3])
def test_a_schedule_that_is_composed_wrongly_is_noticed(monkeypatch, wrong):
    """Composition that forgets stretches lies below what an observer learns; one that counts too many, above Rényi."""
    made = scheduled(SampledMean, [Stretch(60), Stretch(60, 0.2)], batch=300.0)
    kept = accountant._stretches
    monkeypatch.setattr(accountant, "_stretches", lambda m, n: [(k, c * wrong // 2) for k, c in kept(m, n)])
    with pytest.raises(accountant.Disagreement):
        epsilon(made, 120)


def test_golden_numbers():
    made = scheduled(SampledMean, THREE)
    spent = accountant.epsilon(made, 100, DELTA)
    assert spent.epsilon == pytest.approx(GOLDEN[0], rel=1e-6)
    assert spent.rdp_epsilon == pytest.approx(GOLDEN[1], rel=1e-6)
    assert epsilon(scheduled(SampledMean, THREE, spare=5), 105) == pytest.approx(GOLDEN[2], rel=1e-6)


GOLDEN = (
    0.37016093766970226,
    0.4154839099905845,
    0.3979499040293884,
)  # PLD, Rényi, five repeats


def test_the_order_of_stretches_does_not_matter_once_all_are_made():
    found = {epsilon(scheduled(SampledMean, parts), 100) for parts in itertools.permutations(THREE)}
    assert max(found) == pytest.approx(min(found), rel=1e-9)


def test_steps_count_from_the_first_and_repeats_as_the_worst():
    weak, strong = Stretch(10, 0.25), Stretch(10)
    made = scheduled(Sag, [weak._replace(clip=1.0, sigma=4.0), strong], spare=3)
    shift = 1 / (1200 * 0.05)

    def exact(weak_steps, strong_steps):
        return Gaussian(shift * math.sqrt(weak_steps / 16 + strong_steps)).epsilon(DELTA)

    assert epsilon(made, 2) == pytest.approx(exact(0, 2))  # both may be repeats of the last step
    assert epsilon(made, 8) == pytest.approx(exact(5, 3))
    assert epsilon(made, 20) == pytest.approx(exact(10, 10))  # seven of the second stretch, and three repeats
    assert epsilon(made, 23) == pytest.approx(exact(10, 13))
    assert [epsilon(made, n) for n in range(24)] == sorted(epsilon(made, n) for n in range(24))


def test_more_steps_than_were_planned_are_refused():
    made = scheduled(SampledMean, THREE, spare=2)
    for beyond in (lambda: epsilon(made, 103), lambda: made.at(100)):
        with pytest.raises(Refused, match="schedule for 100"):
            beyond()


def test_at_every_step_what_is_counted():
    made = scheduled(SampledMean, THREE)
    each = [(made.at(k).clip, made.at(k).sigma) for k in range(100)]
    assert each == [(one.clip, 0.05 * one.sigma) for one in THREE for _ in range(one.steps)]
    assert all(made.at(k).schedule is None for k in (0, 99))
    assert made.largest_sigma == 0.1


def test_noise_is_calibrated_for_all_steps_together():
    made = scheduled(SampledMean, THREE, spare=2, coordinates=1000)
    sigma = calibration.sigma(made, 102, 1.0, DELTA)
    assert 0.99 < epsilon(made.with_sigma(sigma), 102) <= 1.0


def test_no_exact_law_of_saga_with_changing_noise_exceeds_the_certified_curve():
    """Three steps with hidden coins, adaptive gradients, and a σ of its own at each of them."""
    factors, sigma, samples = (1.0, 2.0, 1.0), 0.8, 2
    made = Saga(
        sigma=sigma, clip=1.0, batch=1, samples=samples, schedule=Schedule(tuple(Stretch(1, 1.0, f) for f in factors))
    )
    curve = accountant.profile(made, 3)
    axis = np.linspace(-8.5, 8.5, 44)
    outputs = np.meshgrid(axis, axis, axis, indexing="ij", sparse=True)
    volume = (axis[1] - axis[0]) ** 3 / (2 * math.pi) ** 1.5
    absent, closest = np.exp(-sum(o**2 for o in outputs) / 2), 0.0
    for turning, first in itertools.product((True, False), (-1.0, 0.0, 1.0)):
        present = np.zeros_like(absent)
        for coins in itertools.product((0, 1), repeat=3):
            density, entry = 0.5**3, np.float64(first)
            for k, coin in enumerate(coins):
                gradient = (-1.0) ** k if turning else (np.sign(outputs[k - 1]) if k else 1.0)
                shift = (coin * (gradient - entry) + entry / samples) / (sigma * factors[k])
                density = density * np.exp(-((outputs[k] - shift) ** 2) / 2)
                entry = entry + coin * (gradient - entry)
            present = present + density
        for one, other in ((present, absent), (absent, present)):
            for level in (0.05, 0.5, 1.5):
                found = float(np.maximum(one - math.exp(level) * other, 0).sum() * volume)
                assert found <= curve.delta(level) * 1.002 + 1e-7
                closest = max(closest, found / curve.delta(level))
    assert closest > 0.6


@pytest.mark.parametrize("kind", [Saga, Sag])
def test_a_clip_that_changes_is_refused_where_a_table_remembers_older_ones(kind):
    with pytest.raises(Refused, match="older clips"):
        scheduled(kind, THREE)


def test_anchors_have_no_schedule():
    with pytest.raises(Refused, match="anchors"):
        scheduled(Anchored, [Stretch(10)])


@pytest.mark.parametrize(
    "parts",
    [(), (Stretch(0),), (Stretch(1, 1.5),), (Stretch(1, 1.0, 0.5),), (Stretch(1, math.nan),),
     tuple(map(Stretch, [1] * (MOST_STRETCHES + 1)))],
)  # fmt: skip
def test_a_stretch_that_would_count_too_little_is_refused(parts):
    with pytest.raises(Refused):
        Schedule(parts)


def header(mechanism, **values):
    fields = {
        "node": 0, "run": "a", "mechanism": mechanism, "budget": {"epsilon": 1.0, "delta": DELTA},
        "relation": "zero-out", "steps": 100, "spare": 2, "simulation": True,
    }  # fmt: skip
    return json.loads(json.dumps(fields | values | {"kind": "open", "format": 2}))


def test_a_ledger_holds_the_schedule_and_counts_the_same():
    made = scheduled(SampledMean, THREE, spare=2)
    read = Header.read(header(made.describe()))
    assert described(read.mechanism) == made
    assert described(read.mechanism).describe() == read.mechanism


def test_a_ledger_without_a_schedule_is_as_it_was():
    assert "schedule" not in SampledMean(**NODE).describe()


@pytest.mark.parametrize(
    "change",
    [
        {"schedule": 3}, {"schedule": {"spare": 2}}, {"schedule": {"spare": -1, "stretches": [[100, 1.0, 1.0]]}},
        {"schedule": {"spare": 2, "stretches": [[100, "1", 1.0]]}},
        {"schedule": {"spare": 2, "stretches": [[100.0, 1.0, 1.0]]}},
        {"schedule": {"spare": 2, "stretches": [[100, 1.0, 0.1]]}},
        {"schedule": {"spare": 2, "stretches": [[99, 1.0, 1.0]]}},
        {"schedule": {"spare": 1, "stretches": [[100, 1.0, 1.0]]}},
        {"schedule": {"spare": 2, "stretches": []}}, {"schedule": {"spare": 2, "stretches": [[1, 1.0, 1.0]] * 100}},
    ],
)  # fmt: skip
def test_a_forged_schedule_is_refused(change):
    with pytest.raises(ValueError, match=r"cannot be|no mechanism is like that|not those of its schedule"):
        Header.read(header(SampledMean(**NODE).describe() | change))


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=60), most=st.integers(2, 12)
)
def test_a_stair_keeps_the_steps_and_stays_within_their_values(values, most):
    clips, sigmas = map(list, zip(*values, strict=True))
    made, clip, sigma = stair(clips, sigmas, most)
    assert sum(one.steps for one in made) == len(values)
    assert len(made) <= max(most, 1)
    Schedule(made)
    for one in made:
        assert min(clips) * (1 - 1e-12) <= clip * one.clip <= max(clips) * (1 + 1e-12)
        assert min(sigmas) * (1 - 1e-12) <= sigma * one.sigma <= max(sigmas) * (1 + 1e-12)


def test_equal_values_are_one_stretch_of_exactly_that_value():
    assert stair([0.3] * 7, [0.1] * 7) == ((Stretch(7),), 0.3, 0.1)


def test_words_say_what_changes():
    words = accountant.assumptions(scheduled(SampledMean, THREE, spare=2), 100, "zero-out")
    assert any("0.05 to 0.1, by a public schedule" in word for word in words)
    assert any("goes down to 0.5" in word and "2 as the step that shows most" in word for word in words)


def test_whoever_does_not_know_of_schedules_counts_too_much():
    made = scheduled(SampledMean, THREE)
    assert epsilon(dataclasses.replace(made, schedule=None), 100) >= epsilon(made, 100)
