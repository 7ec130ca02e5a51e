from __future__ import annotations

from dataclasses import replace

import pytest

from privsgp.accounting import calibration, published
from privsgp.algorithms import Settings
from privsgp.planner.choose import LENGTHS, Choice, Method, Network, Noise, best, methods

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
    often, rarely = (small_planner.choose(SAG, batch, None, None) for batch in (100.0, 0.05))
    assert often.steps == LENGTHS[0]
    assert rarely.steps > often.steps


def test_noise_of_every_node_is_what_training_will_calibrate(small_planner):
    noise = Noise(small_planner.network, PRIVSGP, 32.0)
    sigmas = noise.each(1000)
    for i in (0, 3):
        J, (epsilon, delta) = small_planner.network.samples[i], small_planner.network.budgets[i]
        mechanism = PRIVSGP.mechanism(32.0 * J / 250, J)
        assert sigmas[i] == pytest.approx(calibration.sigma(mechanism, 1020, epsilon, delta), rel=0.02)
    assert sigmas[0] == sigmas[1]


def test_the_published_accountant_uses_the_papers_formula(small_planner):
    network = replace(small_planner.network, accountant="published")
    noise = Noise(network, PRIVSGP, 32.0)
    expected = published.sigma(PRIVSGP.mechanism(32.0, 400), 100, 2.0, 1e-5)
    assert noise.each(100)[3] == pytest.approx(expected)


def test_the_batch_is_the_smallest_that_costs_no_noise(small_planner):
    batch = small_planner.batch()
    assert 8 <= batch <= 250

    def sigma(b):
        return Noise(small_planner.network, PRIVSGP, b).common(1024)

    assert sigma(batch) < 1.03 * sigma(250.0)
    assert batch == 8 or sigma(batch / 2) > 1.015 * sigma(250.0)


def test_what_auto_chooses_from():
    labels = [method.label for method in methods(Settings(clip=2.0), "certified")]
    assert labels == ["privsgp", "privsgp-sag", "privsgp-vr, differences clipped to 1", "privsgp-vr"]
    assert [m.label for m in methods(Settings(), "published")] == ["privsgp", "privsgp-vr"]


@pytest.mark.parametrize(("scores", "winner"), [((0.8, 0.9), 1), ((0.895, 0.9), 0), ((-2.0, -1.0), 1)])
def test_the_simplest_among_equals(small_planner, scores, winner):
    noise = Noise(small_planner.network, SAG, 32.0)
    choices = [Choice(m, 32.0, 10, 0.1, noise, s, 1.0) for m, s in zip((PRIVSGP, SAG), scores, strict=True)]
    chosen, why = best(choices)
    assert chosen is choices[winner]
    assert chosen.method.label in why
    assert f"{scores[1 - winner]:.3g}" in why


def test_spare_releases():
    assert Network([1], [(1.0, 1e-5)], spare=0.02).releases(1000) == 1020


@pytest.mark.parametrize("accountant", ["certified", "published"])
def test_a_plan_has_one_sigma_also_between_the_powers_of_four(accountant):
    network = Network([200] * 4, [(2.0, 1e-5)] * 4, accountant=accountant)
    noise = Noise(network, Method("privsgp", Settings()), 20.0)
    assert noise.at(2048) == pytest.approx(noise.each(2048)[0], rel=1e-4)
