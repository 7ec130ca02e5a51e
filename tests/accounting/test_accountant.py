"""The certified ε: anchors where the answer is known, exact laws of short runs, and no input that breaks it."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as stock
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privsgp.accounting import accountant, lower_bound, renyi_bound
from privsgp.accounting.assumptions import assumptions
from privsgp.accounting.curve import Gaussian
from privsgp.accounting.mechanisms import Anchored, Release, Sag, Saga, SampledMean, Summed, Unprotected
from privsgp.errors import Refused

MNIST = {"sigma": 0.05, "clip": 1.0, "batch": 240, "samples": 1200}
STEPS, DELTA = 575, 1e-5


def epsilon(mechanism, steps=STEPS, delta=DELTA, relation="zero-out"):
    return accountant.epsilon(mechanism, steps, delta, relation).epsilon


# Anchors of privacy.md


def test_the_scale_of_the_plan():
    saga, plain = epsilon(Saga(**MNIST)), epsilon(SampledMean(**MNIST))
    separate = stock.from_mixture_gaussian_mechanism(
        0.05, [1 / 1200, 2 / 240], [0.8, 0.2], value_discretization_interval=1e-3
    )
    assert saga == pytest.approx(1.7, rel=0.03)
    assert plain == pytest.approx(1.57, rel=0.01)
    assert plain < saga < separate.self_compose(STEPS).get_epsilon_for_delta(DELTA) == pytest.approx(5.0, rel=0.02)


def test_without_sampling_saga_is_a_gaussian():
    exact = Gaussian(math.sqrt(STEPS) / (1200 * 0.05)).epsilon(DELTA)
    assert epsilon(Saga(**MNIST | {"batch": 1200})) == pytest.approx(exact)
    assert exact * (1 - 1e-6) <= epsilon(Saga(**MNIST | {"batch": 1199})) <= exact * 1.02


def test_a_difference_clip_of_g_is_about_plain_sgd():
    plain = epsilon(SampledMean(**MNIST))
    assert plain * 0.999 <= epsilon(Saga(**MNIST, difference_clip=1.0)) <= plain * 1.05


def test_a_vanishing_difference_clip_is_the_full_batch():
    exact = Gaussian(math.sqrt(STEPS) / (1200 * 0.05)).epsilon(DELTA)
    assert exact * (1 - 1e-6) <= epsilon(Saga(**MNIST, difference_clip=1e-4)) <= exact * 1.01


@pytest.mark.parametrize(
    "runs",
    [
        [(Saga(**MNIST | {"sigma": s}), 20) for s in (0.08, 0.04, 0.02)],
        [(Saga(**MNIST), steps) for steps in (1, 20, 400)],
        [(Saga(**MNIST | {"batch": 12}, difference_clip=c), 20) for c in (0.1, 1.0, 2.0)],
        [(Saga(**MNIST | {"batch": b}), 20) for b in (1200, 240, 48)],
        [(Saga(**MNIST | {"batch": 12}, difference_scale=s), 20) for s in (0.01, 0.3, 0.6, 1.0)],
    ],
    ids=["less noise", "more steps", "larger differences", "smaller batches", "heavier differences"],
)
def test_epsilon_grows_with(runs):
    found = [epsilon(*run) for run in runs]
    assert all(b >= a * 0.998 for a, b in itertools.pairwise(found))
    assert found[-1] > found[0] * 1.01


@pytest.mark.parametrize("difference_clip", [1.0, 2.0])
@pytest.mark.parametrize(("batch", "sigma"), [(12, 0.1), (600, 0.01)])
def test_between_plain_sgd_and_separate_bounds(batch, sigma, difference_clip):
    node = MNIST | {"batch": batch, "sigma": sigma}
    saga = epsilon(Saga(**node, difference_clip=difference_clip), 50)
    drawn = difference_clip / batch + 1 / 1200
    rate = batch / 1200
    separate = stock.from_mixture_gaussian_mechanism(
        sigma, [1 / 1200, drawn], [1 - rate, rate], value_discretization_interval=1e-3
    )
    assert epsilon(SampledMean(**node), 50) * 0.998 <= saga
    assert saga <= separate.self_compose(50).get_epsilon_for_delta(DELTA) * 1.002


# Exact laws of three steps


def exact_law(mechanism, policy, first_entry, axis):
    """Densities of three outputs, noise 1: present (all coin sequences added up) and absent.

    `policy(k, outputs)` is the sample's gradient at step k: a function of what has been released, as z is. The table
    entry depends on the coins, which are nobody's to see.
    """
    b, samples, sigma = mechanism.batch, mechanism.samples, mechanism.sigma
    outputs = np.meshgrid(axis, axis, axis, indexing="ij", sparse=True)
    limit = mechanism.difference_clip or 2 * mechanism.clip
    present = 0.0
    for coins in itertools.product((0, 1), repeat=3):
        weight, entry = 1.0, np.float64(first_entry)
        density = 1.0
        for k, coin in enumerate(coins):
            change = np.clip(policy(k, outputs) - entry, -limit, limit)
            shift = (mechanism.difference_scale * coin * change / b + entry / samples) / sigma
            density = density * np.exp(-((outputs[k] - shift) ** 2) / 2)
            entry = entry + coin * change
            weight *= mechanism.rate if coin else 1 - mechanism.rate
        present = present + weight * density
    return present, np.exp(-sum(o**2 for o in outputs) / 2)


POLICIES = {
    "constant": lambda _k, _o: 1.0,
    "turning": lambda k, _o: (-1.0) ** k,
    "follows the last output": lambda k, o: np.sign(o[k - 1]) if k else 1.0,
    "against the last output": lambda k, o: -np.sign(o[k - 1]) if k else 1.0,
    "follows the sum": lambda k, o: np.tanh(3 * sum(o[:k])) if k else 1.0,
}
LAWS = [
    (2, 0.8, None, 1.0),
    (2, 0.8, 0.5, 1.0),
    (10, 1.0, None, 1.0),
    (10, 0.7, 1.0, 1.0),
    (10, 2.0, 0.3, 1.0),
    (2, 0.8, None, 0.7),
    (10, 0.4, None, 0.4),
    (10, 0.15, None, 0.15),
    (2, 0.8, 1.5, 0.8),
    (10, 0.4, 1.0, 0.4),
    (4, 0.3, None, 0.2),
]


@pytest.mark.parametrize(("samples", "sigma", "difference_clip", "scale"), LAWS)
def test_no_exact_law_exceeds_the_certified_curve(samples, sigma, difference_clip, scale):
    """The last one has θ < q: a Gaussian, whatever the coins."""
    mechanism = Saga(
        sigma=sigma, clip=1.0, batch=1, samples=samples, difference_clip=difference_clip, difference_scale=scale
    )
    curve = accountant.profile(mechanism, 3)
    reach = 6.0 + 2.0 * max(scale, 1 / samples) / sigma
    axis = np.linspace(-reach, reach, 72)
    volume = (axis[1] - axis[0]) ** 3 / (2 * math.pi) ** 1.5
    closest = 0.0
    for policy, entry in itertools.product(POLICIES.values(), (-1.0, 0.0, 1.0)):
        present, absent = exact_law(mechanism, policy, entry, axis)
        for one, other in ((present, absent), (absent, present)):
            for level in (0.05, 0.5, 1.5):
                found = float(np.maximum(one - math.exp(level) * other, 0).sum() * volume)
                assert found <= curve.delta(level) * 1.002 + 1e-7
                closest = max(closest, found / curve.delta(level))
    assert closest > 0.6  # the curve is not far above what can happen


# Other mechanisms


@pytest.mark.parametrize(("relation", "factor"), [("zero-out", 1), ("replace-one", 2)])
@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_sag_is_a_gaussian_whatever_the_sampling(relation, factor, sampling):
    exact = Gaussian(factor * math.sqrt(STEPS) / (1200 * 0.05)).epsilon(DELTA)
    assert epsilon(Sag(**MNIST, sampling=sampling), relation=relation) == pytest.approx(exact)


@pytest.mark.parametrize(("relation", "factor"), [("zero-out", 1), ("replace-one", 2)])
def test_fixed_batches_are_not_amplified(relation, factor):
    mean, saga = (kind(**MNIST, sampling="fixed") for kind in (SampledMean, Saga))
    assert epsilon(mean, relation=relation) == pytest.approx(Gaussian(factor * math.sqrt(STEPS) / 12).epsilon(DELTA))
    # Drawn at every step: |c/b + t/J| ≤ 2G/b − G/J.
    largest = (2 / 240 - 1 / 1200) / 0.05
    assert epsilon(saga, relation=relation) == pytest.approx(
        Gaussian(factor * math.sqrt(STEPS) * largest).epsilon(DELTA)
    )


def test_replaced_samples_of_saga_pay_for_a_group_of_two():
    found = epsilon(Saga(**MNIST), 50, relation="replace-one")
    curve = accountant.profile(Saga(**MNIST), 50)
    assert (1 + math.exp(found / 2)) * curve.delta(found / 2) == pytest.approx(DELTA, rel=1e-3)
    # Zero-out of a SAG release is dominated by it; its replace-one is known exactly.
    assert found > epsilon(Sag(**MNIST), 50, relation="replace-one")


def test_anchors_and_differences_add_up():
    mechanism = Anchored(**MNIST, period=10, difference_clip=0.5, anchor_noise=0.5)
    found = epsilon(mechanism, 100)
    anchors = stock.from_gaussian_mechanism(0.025, 1 / 1200, value_discretization_interval=1e-3).self_compose(10)
    differences = stock.from_gaussian_mechanism(
        0.05, 0.5 / 240, sampling_prob=0.2, value_discretization_interval=1e-3
    ).self_compose(90)
    assert found == pytest.approx(anchors.compose(differences).get_epsilon_for_delta(DELTA), rel=0.02)
    assert epsilon(Anchored(**MNIST, period=1), 50) == pytest.approx(
        epsilon(SampledMean(**MNIST | {"batch": 1200}), 50)
    )


def test_steps_made_again_count_as_an_anchor_and_as_a_difference():
    """Any run of R releases with at most `spare` repeats is covered, whichever steps were made again."""
    values = MNIST | {"period": 10, "anchor_noise": 0.1, "difference_clip": 0.5}
    unsure, sure = Anchored(**values, spare=3), Anchored(**values)
    anchor, difference = (
        renyi_bound.renyi(sure.anchor, 1, "zero-out"),
        renyi_bound.renyi(sure.difference, 1, "zero-out"),
    )
    for made in range(21, 25):
        counted = renyi_bound.renyi(unsure, made, "zero-out").cumulants
        for again in range(min(3, made) + 1):
            honest = renyi_bound.renyi(sure, made - again, "zero-out").cumulants
            for anchors in range(again + 1):
                more = anchors * anchor.cumulants + (again - anchors) * difference.cumulants
                assert (honest + more <= counted * (1 + 1e-12)).all()
    assert epsilon(unsure, 2) > epsilon(sure, 2)


def test_a_sum_of_messages_carries_the_noise_of_all_nodes():
    alone = Anchored(**MNIST | {"sigma": 0.2}, alpha=0.3, difference_clip=0.5)
    assert epsilon(Summed(Anchored(**MNIST, alpha=0.3, difference_clip=0.5), 16), 40) == epsilon(alone, 40)


def test_recursive_momentum_is_bounded_by_its_two_clips():
    """α = 1 is plain SGD after the first release; in between a sample moves the sum by α G + (1 − α) C."""
    plain = renyi_bound.renyi(SampledMean(**MNIST), 1, "zero-out").cumulants
    two = [renyi_bound.renyi(Anchored(**MNIST, alpha=1.0), steps, "zero-out").cumulants for steps in (1, 2)]
    np.testing.assert_allclose(two[1] - two[0], plain, rtol=1e-9)
    assert Anchored(**MNIST, alpha=0.25, difference_clip=0.5).difference.clip == 0.25 + 0.75 * 0.5
    assert Anchored(**MNIST, alpha=0.25).difference.clip == 2 - 0.25


def test_the_slack_of_the_arithmetic_is_paid_for():
    wide = Saga(**MNIST | {"clip": 1.01}, difference_clip=0.5 * 1.01)
    assert epsilon(Saga(**MNIST, difference_clip=0.5, kappa=0.01), 20) == pytest.approx(epsilon(wide, 20), rel=1e-9)


# Refusals and limits


def test_nothing_released_and_nothing_protected():
    assert epsilon(Saga(**MNIST), 0) == 0
    assert epsilon(Saga(**MNIST | {"sigma": 0.0})) == math.inf
    assert epsilon(Unprotected(batch=1, samples=10)) == math.inf
    assert epsilon(SampledMean(**MNIST | {"clip": math.inf})) == math.inf
    assert accountant.profile(Unprotected(batch=1, samples=10), 1).delta(10.0) == 1


@pytest.mark.parametrize(
    "bad",
    [{"steps": -1}, {"steps": 1.5}, {"delta": 0.0}, {"delta": 1.0}, {"delta": math.nan}, {"relation": "any"}],
)
def test_refuses_by_name(bad):
    with pytest.raises(Refused, match=next(iter(bad))):
        accountant.epsilon(Saga(**MNIST), **{"steps": 10, "delta": 1e-5, "relation": "zero-out"} | bad)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unheard(Saga):
    """A variation that nobody has proved anything about."""


@pytest.mark.parametrize("kind", [Release, Unheard])
def test_refuses_a_mechanism_it_does_not_know(kind):
    with pytest.raises(Refused, match=kind.__name__):
        accountant.epsilon(kind(**MNIST), 10, 1e-5)


@pytest.mark.parametrize("batch", [1e-300, 1e-160])
def test_a_shift_whose_square_is_no_number_has_no_finite_epsilon(batch):
    one = Anchored(sigma=1.0, clip=1.0, batch=batch, samples=10, alpha=0.1)
    assert [math.isinf(accountant.epsilon(one, steps, 1e-5).epsilon) for steps in (1, 3)] == [False, True]


def test_more_releases_than_can_be_counted_are_refused():
    with pytest.raises(Refused, match="steps = 9007199254740993"):
        accountant.epsilon(Saga(**MNIST), 2**53 + 1, 1e-5)


def test_a_disagreement_is_a_refusal():
    assert issubclass(accountant.Disagreement, Refused)


def test_two_opinions_that_disagree_are_an_error(monkeypatch):
    true = renyi_bound.saga
    monkeypatch.setattr(renyi_bound, "saga", lambda *pair: true(*pair) / 4)
    with pytest.raises(accountant.Disagreement, match="Rényi"):
        epsilon(Saga(**MNIST | {"sigma": 0.0511}), 50)


def test_an_epsilon_below_a_pair_that_occurs_is_an_error(monkeypatch):
    monkeypatch.setattr(lower_bound, "epsilon", lambda *_: 100.0)
    with pytest.raises(accountant.Disagreement, match="an observer learns"):
        epsilon(Saga(**MNIST | {"sigma": 0.0512}), 50)


def test_what_was_assumed_is_said_in_words():
    words = " ".join(assumptions(Saga(**MNIST), 20, "replace-one"))
    assert "replaced" in words
    assert "coin" in words
    assert "group privacy" in words
    assert "without amplification" in " ".join(assumptions(Saga(**MNIST, sampling="fixed"), 20, "zero-out"))


EXTREMES = st.sampled_from([1e-6, 1e-3, 0.3, 10.0, 1e6])


@settings(max_examples=6)
@given(
    st.sampled_from([Saga, SampledMean, Sag, Anchored]),
    EXTREMES,
    st.sampled_from([(1.0, 1), (1e-3, 10), (1.0, 10**7), (999.0, 1000)]),
    st.sampled_from([1, 1000, 10**6]),
    st.sampled_from([1e-15, 1e-5, 0.99]),
    st.sampled_from(["zero-out", "replace-one"]),
)
@example(Saga, 1e-3, (999.0, 1000), 1, 1e-15, "replace-one")  # composition has no finite answer, Rényi has
def test_any_valid_input_has_a_valid_answer(kind, sigma, sizes, steps, delta, relation):
    mechanism = kind(sigma=sigma, clip=1.0, batch=sizes[0], samples=sizes[1])
    spent = accountant.epsilon(mechanism, steps, delta, relation)
    assert 0 <= spent.epsilon <= spent.rdp_epsilon * 1.2 or math.isinf(spent.epsilon)
    # Never below what the mean alone gives away: G/J, at every step.
    if kind in (Saga, Sag) and math.isfinite(spent.epsilon):
        mean = Gaussian(math.sqrt(steps) / (sizes[1] * sigma)).epsilon(delta)
        assert spent.epsilon >= mean * 0.99 - 1e-6


def test_a_weight_where_no_pair_is_the_worst_everywhere():
    """Composition takes the worst pair at each ε and is 15 % looser here than Rényi: it counts all the same."""
    mechanism = Saga(sigma=1.2 * 2 * 0.7 / 90, clip=1.0, batch=90.0, samples=1000, difference_scale=0.7)
    told = accountant.epsilon(mechanism, 2000, 1e-5)
    assert told.rdp_epsilon == pytest.approx(13.437, abs=1e-3)
    assert 1.1 < told.epsilon / told.rdp_epsilon < 1.2
