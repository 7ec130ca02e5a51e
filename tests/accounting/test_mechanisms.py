"""Mechanisms are values: they refuse what cannot be, and importing them costs nothing."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsgp.accounting import accountant, calibration, lower_bound, renyi_bound
from privsgp.accounting.assumptions import assumptions
from privsgp.accounting.mechanisms import (
    Anchored,
    Composed,
    Continued,
    Gaussian,
    PersonLevel,
    Release,
    Sag,
    Saga,
    SampledMean,
    Shared,
    Summed,
    Unprotected,
    described,
)  # fmt: skip
from privsgp.accounting.sampler_cost import Cost
from privsgp.errors import Refused

GOOD = {"sigma": 0.1, "clip": 1.0, "batch": 10, "samples": 100}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("samples", 0),
        ("batch", 0),
        ("batch", 101),
        ("batch", math.nan),
        ("clip", 0.0),
        ("clip", math.nan),
        ("sigma", -1.0),
        ("sigma", math.inf),
        ("kappa", 1.0),
        ("sampling", "any"),
    ],
)
def test_refuses_what_cannot_be_by_name(field, value):
    with pytest.raises(Refused, match=field):
        Release(**GOOD | {field: value})


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (Saga, "difference_clip", 0.0),
        (Saga, "difference_clip", math.inf),
        (Saga, "difference_scale", 0.0),
        (Saga, "difference_scale", 1.5),
        (Saga, "difference_scale", math.nan),
        (Anchored, "difference_clip", -1.0),
        (Anchored, "period", 0),
        (Anchored, "anchor_batch", 1000),
        (Anchored, "anchor_noise", 0.0),
        (Anchored, "alpha", 1.5),
        (Anchored, "spare", -1),
    ],
)
def test_kinds_refuse_their_own_fields(kind, field, value):
    with pytest.raises(Refused, match=field):
        kind(**GOOD, **{field: value})


def test_fixed_batches_are_whole():
    with pytest.raises(Refused, match="batch"):
        Release(**GOOD | {"sampling": "fixed", "batch": 2.5})


def test_rate_and_radius():
    mechanism = Release(**GOOD, kappa=0.01)
    assert mechanism.rate == 0.1
    assert mechanism.radius == pytest.approx(1.01)


def test_other_noise_is_the_same_kind():
    assert Saga(**GOOD, difference_clip=0.5).with_sigma(2.0) == Saga(**GOOD | {"sigma": 2.0}, difference_clip=0.5)


@given(st.integers(0, 500), st.one_of(st.none(), st.integers(1, 50)))
def test_anchors_are_the_releases_at_multiples_of_the_period(steps, period):
    mechanism = Anchored(**GOOD, period=period)
    assert mechanism.anchors(steps) == sum(k == 0 if period is None else k % period == 0 for k in range(steps))


def test_parts_of_an_anchored_mechanism():
    mechanism = Anchored(**GOOD, difference_clip=0.5, anchor_noise=3.0, kappa=0.01)
    assert mechanism.anchor == SampledMean(sigma=0.1 * 3.0, clip=1.0, batch=100, samples=100, kappa=0.01)
    assert mechanism.difference == SampledMean(sigma=0.1, clip=0.5, batch=10, samples=100, kappa=0.01)
    assert Anchored(**GOOD).difference.clip == 2.0


def test_an_infinite_clip_is_null_in_json():
    assert Release(**GOOD | {"clip": math.inf}).describe()["clip"] is None


def test_importing_a_mechanism_is_light():
    code = "import privsgp.accounting.mechanisms, sys; print(sorted({'scipy', 'dp_accounting'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@given(st.integers(0, 60), st.none() | st.integers(1, 7))
def test_every_step_is_the_release_that_is_counted(steps, period):
    mechanism = Anchored(**GOOD, period=period, anchor_noise=3.0)
    anchors = [mechanism.at(k) for k in range(steps) if mechanism.is_anchor(k)]
    assert len(anchors) == mechanism.anchors(steps)
    assert set(anchors) <= {mechanism.anchor}
    assert {mechanism.at(k) for k in range(steps) if not mechanism.is_anchor(k)} <= {mechanism.difference}


def test_a_ledger_from_before_there_was_a_scale_is_the_papers_estimator():
    written = Saga(**GOOD).describe()
    assert written.pop("difference_scale") == 1.0
    assert described(written) == Saga(**GOOD)


@given(
    ratio=st.floats(0.05, 3), theta=st.floats(0.02, 1), entry=st.complex_numbers(max_magnitude=1),
    change=st.complex_numbers(max_magnitude=2),
)  # fmt: skip
def test_no_sample_moves_a_release_further_than_declared(ratio, theta, entry, change):
    m = Saga(**GOOD, difference_clip=ratio, difference_scale=theta)
    change *= min(1.0, ratio / max(abs(change), 1e-9))
    if abs(entry + change) <= 1:
        assert abs(theta * change / m.batch + entry / m.samples) <= m.largest_shift * (1 + 1e-9)
    reach = min(ratio, 2.0)
    worst = max(1 / m.samples, abs(theta * reach / m.batch + (1 - reach) / m.samples))
    assert m.largest_shift == pytest.approx(worst)  # E1 or E2 of the accountant: they occur


def test_what_a_sample_moves_without_differences_and_who_needs_coins():
    mean, sag = SampledMean(**GOOD, kappa=0.5), Sag(**GOOD, kappa=0.5)
    assert (mean.largest_shift, sag.largest_shift) == (0.15, 0.015)
    assert [m.amplified for m in (mean, sag, SampledMean(**GOOD, sampling="fixed"))] == [True, False, False]


TREES = [
    Shared(Saga(**GOOD, difference_scale=0.3), 3, 4, 0.05),
    Summed(Anchored(**GOOD, period=3, alpha=0.5), 16),
    Shared(Summed(Sag(**GOOD), 4), 3, 4),
    Gaussian(**GOOD),
    Unprotected(batch=1, samples=10),
]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: type(tree).__name__)
def test_a_tree_survives_its_ledger(tree):
    assert described(tree.describe()) == tree


@pytest.mark.parametrize(
    "tree", [tree for tree in TREES if hasattr(tree, "base")], ids=lambda tree: type(tree).__name__
)
def test_a_wrapper_answers_like_its_base_but_for_its_own_subject(tree):
    own = {"base", "shared", "summed_nodes", "describe", "changed", "with_sigma"}
    for question in (name for name in dir(Release) if not name.startswith("_") and name not in own):
        mine, theirs = getattr(tree, question), getattr(tree.base, question)
        assert mine == theirs or callable(mine), question
    assert tree.with_sigma(0.7).sigma == 0.7
    assert tree.changed(coordinates=5).kinds == tree.base.changed(coordinates=5).kinds


def test_wrappers_refuse_their_own_fields():
    with pytest.raises(Refused, match="nodes"):
        Summed(Sag(**GOOD), 0)
    with pytest.raises(Refused, match="honest"):
        Shared(Sag(**GOOD), 0, 3)
    with pytest.raises(Refused, match="least_own"):
        Shared(Sag(**GOOD), 2, 3, math.inf)


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_a_composition_costs_what_its_parts_cost_together(relation):
    half = Composed(((SampledMean(**GOOD), 20), (SampledMean(**GOOD), 20)))
    for reading in (accountant.profile, renyi_bound.renyi):
        whole, found = reading(SampledMean(**GOOD), 40, relation), reading(half, 1, relation)
        assert found.epsilon(1e-5) == pytest.approx(whole.epsilon(1e-5), rel=1e-3)
    lowest = lower_bound.epsilon(half, 1, 1e-5, relation)
    assert 0 < lowest <= found.epsilon(1e-5)


def test_saga_in_a_composition_is_counted_in_pairs_under_replace_one():
    saga = Saga(**GOOD)
    for tree in (Composed(((saga, 20),)), Shared(saga, 3, 4), Summed(saga, 1)):
        steps = 1 if isinstance(tree, Composed) else 20
        found = accountant.profile(tree, steps, "replace-one")
        assert found.epsilon(1e-5) == accountant.profile(saga, 20, "replace-one").epsilon(1e-5)


BEFORE = [Sag(**GOOD), SampledMean(**GOOD), Saga(**GOOD, difference_clip=0.5), Shared(Sag(**GOOD), 3, 4)]


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
@pytest.mark.parametrize("base", BEFORE, ids=lambda m: type(m).__name__)
def test_a_run_that_continues_another_costs_both_together(base, relation):
    """With equal noise it is one longer run; for persons too, and before its first release."""
    longer = Continued(base, ((base, 15),))
    for wrapped in (lambda m: m, lambda m: PersonLevel(m, 3, 2)):
        for count in (
            lambda m, steps: accountant.epsilon(m, steps, 1e-5, relation).epsilon,
            lambda m, steps: accountant.epsilon(m, steps, 1e-5, relation).rdp_epsilon,
        ):
            assert count(wrapped(longer), 25) == pytest.approx(count(wrapped(base), 40), rel=1e-6)
            assert count(wrapped(longer), 0) == pytest.approx(count(wrapped(base), 15), rel=1e-6)
        for steps in (0, 25):
            assert lower_bound.epsilon(wrapped(longer), steps, 1e-5, relation) > 0


def test_what_earlier_runs_have_spent_does_not_change_with_the_noise_of_this_one():
    run = Continued(Sag(**GOOD), ((Sag(**GOOD), 15), (SampledMean(**GOOD), 3)))
    spent = accountant.epsilon(run, 0, 1e-5).epsilon
    quiet = accountant.epsilon(run.with_sigma(1e6), 20, 1e-5).epsilon
    assert quiet == pytest.approx(spent, rel=1e-3)
    assert accountant.epsilon(run, 20, 1e-5).epsilon > spent
    assert described(json.loads(json.dumps(run.describe()))) == run
    assert "15 releases of an earlier run" in assumptions(run, 20, "zero-out")[-2]
    found = calibration.sigma(run, 20, 2 * spent, 1e-5)
    assert accountant.epsilon(run.with_sigma(found), 20, 1e-5).epsilon <= 2 * spent
    assert accountant.epsilon(run.with_sigma(0.99 * found), 20, 1e-5).epsilon > 2 * spent
    with pytest.raises(Refused, match="earlier runs on these records have spent"):
        calibration.sigma(run, 20, spent, 1e-5)


def test_the_sampler_of_earlier_noise_is_counted_too():
    long, short = Sag(**GOOD, coordinates=10**6), Sag(**GOOD, coordinates=10)
    whole, parts = Cost.of(Continued(short, ((long, 10),)), 5, 0.5), (Cost.of(long, 10, 0.5), Cost.of(short, 5, 0.5))
    assert whole.tail == parts[0].tail + parts[1].tail
    assert whole.variance == parts[0].variance + parts[1].variance
    assert whole.widest == max(one.widest for one in parts)


@pytest.mark.parametrize(
    "earlier",
    [
        7, "x", [7], [[{}, 1]],
        [[Sag(**GOOD).describe(), 0]], [[Sag(**GOOD).describe()]], [[Sag(**GOOD).describe(), "1"]],
        [[Continued(Sag(**GOOD), ((Sag(**GOOD), 1),)).describe(), 1]], [[PersonLevel(Sag(**GOOD), 2).describe(), 1]],
        [[Sag(**GOOD).describe(), 1]] * 65,
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_an_earlier_run_that_cannot_be_is_refused(earlier):
    with pytest.raises(Refused):
        described(Sag(**GOOD).describe() | {"earlier": earlier})


def test_only_persons_are_around_a_run_that_continues_another():
    run = Continued(Sag(**GOOD), ((Sag(**GOOD), 1),))
    for inside in (lambda m: Shared(m, 2, 3), lambda m: Summed(m, 2), lambda m: Continued(m, run.earlier)):
        with pytest.raises(TypeError, match="around Continued"):
            inside(run)


def test_a_wrapper_that_the_accountant_does_not_know_is_refused():
    class Unknown(Summed):
        pass

    with pytest.raises(Refused, match="Unknown"):
        accountant.epsilon(Unknown(Sag(**GOOD), 3), 10, 1e-5)
