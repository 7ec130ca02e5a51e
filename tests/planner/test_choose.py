from __future__ import annotations

from dataclasses import replace

import pytest

from privsgp.accounting import calibration
from privsgp.accounting.sharing import Sharing
from privsgp.algorithms import Settings
from privsgp.algorithms.saga import SagaOptions
from privsgp.planner.choose import LENGTHS, best_batch
from privsgp.planner.noise import Method, Network, NoiseNeeded
from privsgp.research import published

PRIVSGP, SAG = Method("privsgp", Settings()), Method("privsgp-sag", Settings())


def test_what_is_given_is_kept(small_planner):
    chosen = small_planner.choose(PRIVSGP, 32.0, 300, 0.1)
    assert (chosen.steps, chosen.step_size, chosen.batch) == (300, pytest.approx(0.1), 32.0)


def test_an_open_step_size_fits_the_noise_of_the_given_steps(small_planner):
    chosen = small_planner.choose(SAG, 32.0, 500, None)
    longer = small_planner.choose(SAG, 32.0, 2000, None)
    assert chosen.distance == pytest.approx(longer.distance, rel=0.5)  # σ grows like √K: the distance stays
    assert longer.step_size < chosen.step_size


def test_open_steps_fit_the_given_step_size(small_planner):
    chosen = small_planner.choose(SAG, 32.0, None, 0.05)
    assert chosen.step_size == pytest.approx(0.05)
    assert chosen.distance == pytest.approx(small_planner.choose(SAG, 32.0, 1000, None).distance, rel=0.5)


def test_a_rarely_seen_table_gets_more_steps(small_planner):
    often, rarely = (small_planner.choose(SAG, batch, None, None) for batch in (100.0, 0.5))
    assert often.steps == LENGTHS[0]
    assert rarely.steps > often.steps


def test_noise_of_every_node_is_what_training_will_calibrate(small_planner):
    noise = NoiseNeeded(small_planner.network, PRIVSGP, 32.0)
    sigmas = noise.each(1000)
    for i in (0, 3):
        J, (epsilon, delta) = small_planner.network.samples[i], small_planner.network.budgets[i]
        mechanism = PRIVSGP.mechanism(32.0 * J / 250, J)
        assert sigmas[i] == pytest.approx(calibration.sigma(mechanism, 1020, epsilon, delta), rel=0.02)
    assert sigmas[0] == sigmas[1]


def test_the_published_accountant_uses_the_papers_formula(small_planner):
    network = replace(small_planner.network, accountant="published")
    noise = NoiseNeeded(network, PRIVSGP, 32.0)
    expected = published.sigma(PRIVSGP.mechanism(32.0, 400), 100, 2.0, 1e-5)
    assert noise.each(100)[3] == pytest.approx(expected)


def test_the_batch_is_the_smallest_that_costs_no_noise(small_planner):
    batch = best_batch(small_planner.network)
    assert 8 <= batch <= 250

    def sigma(b):
        return NoiseNeeded(small_planner.network, PRIVSGP, b).common(1024)

    assert sigma(batch) < 1.03 * sigma(250.0)
    assert batch == 8 or sigma(batch / 2) > 1.015 * sigma(250.0)


def test_spare_releases():
    assert Network([1], [(1.0, 1e-5)], spare=0.02).releases(1000) == 1020


SCALED = Method("privsgp-vr", Settings(options=SagaOptions()))


def test_scaled_differences_cost_what_training_will_calibrate(small_planner):
    noise = NoiseNeeded(small_planner.network, SCALED, 5.0)
    assert SCALED.scaled
    scale = noise.scale(300)
    assert 0.02 < scale < 1
    mechanism = SCALED.changed(difference_scale=scale).mechanism(5.0 * 200 / 250, 200)
    assert mechanism.difference_scale == scale
    for i, (epsilon, J) in ((0, (1.0, 200)), (3, (2.0, 400))):
        own = replace(mechanism, batch=5.0 * J / 250, samples=J)
        assert noise.each(300)[i] == pytest.approx(calibration.sigma(own, 306, epsilon, 1e-5), rel=0.025)
    paper = NoiseNeeded(small_planner.network, Method("privsgp-vr", Settings()), 5.0)
    assert paper.scale(300) == 1
    assert paper.common(300) > 1.2 * noise.common(300)


def test_scaled_differences_where_noise_is_shared(small_planner):
    """θ is larger there, and what it costs every budget is looked at."""
    alone = small_planner.network
    shared = replace(alone, sharing=Sharing(alone.nodes, alone.nodes))
    apart, noise = (NoiseNeeded(network, SCALED, 5.0) for network in (alone, shared))
    scale = noise.scale(300)
    assert apart.scale(300) < scale < 1
    mechanism = SCALED.changed(difference_scale=scale).mechanism(5.0 * 200 / 250, 200)
    assert apart.each(300)[3] < noise.each(300)[3]
    for i, (epsilon, J) in ((0, (1.0, 200)), (3, (2.0, 400))):
        own = replace(mechanism, batch=5.0 * J / 250, samples=J)
        assert noise.each(300)[i] == pytest.approx(calibration.sigma(own, 306, epsilon, 1e-5), rel=0.025)


def test_the_published_formula_has_no_other_weight_than_the_papers(small_planner):
    noise = NoiseNeeded(replace(small_planner.network, accountant="published"), SCALED, 5.0)
    assert noise.scale(300) == 1
    assert not noise.method.scaled


def test_what_is_rehearsed_has_the_weight_of_the_run(small_planner):
    noise = NoiseNeeded(small_planner.network, SCALED, 5.0)
    spec = small_planner.spec(noise, 300)
    assert spec.settings.difference_scale == noise.scale(300)
    often = replace(spec, visits=1000.0)  # at every coarse step: SAG's weight there is 1
    for one, weight in ((spec, noise.scale(300)), (often, 1.0)):
        (mechanism,) = small_planner.rehearsal._block(one, 1.0, 64, [0], None).mechanisms
        assert mechanism.difference_scale == pytest.approx(max(weight, mechanism.rate))
