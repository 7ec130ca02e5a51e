from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from privsgp import models
from privsgp.engine.averaging import FinalModel
from privsgp.planner import rehearsal as module
from privsgp.planner import stand_in
from privsgp.planner.rehearsal import Rehearsal, RehearsalSpec
from settings import settings_of


@pytest.fixture(scope="module")
def rehearsal():
    samples = stand_in.make((16,), 4, samples=256)
    model = models.make("logistic", input_shape=(16,), outputs=4, seed=0)
    return Rehearsal(model, models.per_sample("cross-entropy"), [samples, samples])


def plain(noise, visits=1e9, algorithm="privsgp", **settings):
    return RehearsalSpec(algorithm, settings_of(algorithm, **settings), noise, visits)


def end(rehearsal, spec, distance, steps=module.STEPS, seed=0):
    return rehearsal.ends(spec, distance, steps, [seed])[0]


def test_the_same_seed_is_the_same_rehearsal(rehearsal):
    assert torch.equal(end(rehearsal, plain(0.01), 5.0, seed=3), end(rehearsal, plain(0.01), 5.0, seed=3))
    assert not torch.equal(end(rehearsal, plain(0.01), 5.0, seed=3), end(rehearsal, plain(0.01), 5.0, seed=4))


@pytest.mark.parametrize("algorithm", ["privsgp", "privsgp-vr", "privsgp-sag"])
def test_stacked_seeds_are_those_that_run_alone(rehearsal, algorithm):
    spec = plain(0.01, 20.0, algorithm)
    for seed, x in enumerate(rehearsal.ends(spec, 2.0)):
        assert torch.allclose(x, end(rehearsal, spec, 2.0, seed=seed), atol=1e-4)


@pytest.mark.parametrize("algorithm", ["privsgp", "privsgp-vr", "privsgp-sag"])
@pytest.mark.parametrize(("visits", "scale", "same"), [(1e9, 0.4, "privsgp"), (30.0, 0.4, "privsgp-sag")])
def test_what_stands_for_a_method_ends_where_it_does(rehearsal, algorithm, visits, scale, same):
    """At θ ≤ q scaled differences are SAG; where all samples are seen, all methods are one."""
    changes = {"difference_scale": scale} if algorithm == "privsgp-vr" else {}
    spec = replace(plain(0.01, visits, algorithm, **changes), noise=0.01).equivalent
    assert spec.algorithm == ("privsgp" if algorithm == "privsgp" else same)
    own = replace(plain(0.01, visits, algorithm, **changes), noise=spec.noise)
    assert torch.allclose(end(rehearsal, spec, 5.0), end(rehearsal, own, 5.0), atol=1e-4)


@pytest.mark.parametrize("changes", [{"difference_clip": 0.5}, {"difference_scale": 0.7}])
def test_what_takes_other_steps_is_rehearsed_itself(changes):
    spec = plain(0.01, 30.0, "privsgp-vr", **changes)
    assert spec.equivalent.algorithm == "privsgp-vr"
    assert spec.equivalent.noise == pytest.approx(0.01, rel=0.015)


def test_what_hardly_differs_is_rehearsed_once(rehearsal, monkeypatch):
    rehearsal = Rehearsal(rehearsal.model, rehearsal.loss, rehearsal.runs)
    grid = 2.0**-6
    first = rehearsal.mean_score(plain(grid), 8.0)
    monkeypatch.setattr(rehearsal, "ends", None)
    assert rehearsal.mean_score(plain(1.01 * grid, 100.0, "privsgp-sag"), 8.1) == first


def test_noise_of_the_end_is_kappa_times_the_distance(rehearsal):
    flat = Rehearsal(rehearsal.model, lambda out, _y: out.sum(-1) * 0, rehearsal.runs)
    for steps in (16, 64):
        moved = torch.cat([end(flat, plain(0.01), 7.0, steps=steps, seed=s) - flat.x0 for s in range(24)])
        assert float(moved.square().mean().sqrt()) == pytest.approx(0.07, rel=0.05)


def test_without_noise_and_coins_it_is_gradient_descent(rehearsal):
    x = rehearsal.x0.clone()[None]
    everyone = torch.ones(1, 256, dtype=torch.bool)
    for _ in range(4):
        g = rehearsal.gradient(x, rehearsal.runs[0].x[None], rehearsal.runs[0].y[None])
        g.clip_(1.0, everyone)
        x = x - 0.25 * g.sum() / 256
    assert torch.allclose(end(rehearsal, plain(0.0), 1.0, steps=4), x[0], atol=1e-6)


@pytest.mark.parametrize("algorithm", ["privsgp", "privsgp-vr", "privsgp-sag"])
def test_every_method_learns_when_samples_are_seen_often(rehearsal, algorithm):
    assert rehearsal.mean_score(plain(0.001, 64, algorithm), 20.0) > -rehearsal.test_loss(rehearsal.x0) + 0.3


def test_a_table_seen_once_is_stale(rehearsal):
    fresh, stale = (rehearsal.mean_score(plain(0.001, visits, "privsgp-sag"), 40.0) for visits in (64, 0.5))
    assert fresh > stale + 0.02


def test_rare_visits_are_no_trouble(rehearsal):
    assert rehearsal.mean_score(plain(0.001, 0.01), 5.0) > -5


def test_more_noise_means_a_shorter_way(rehearsal):
    far, near = (rehearsal.distance(plain(noise), rehearsal.guess(noise)) for noise in (0.002, 0.05))
    assert 4 < far / near < 60


def test_the_guess_does_not_matter_much(rehearsal):
    one, other = (rehearsal.distance(plain(0.02), guess) for guess in (3.0, 40.0))
    assert one == pytest.approx(other, rel=0.6)


def test_the_parabola():
    assert module._top(*(1 - 0.1 * (p - 0.25) ** 2 for p in (-1, 0, 1))) == pytest.approx(0.25)
    assert module._top(1.0, 1.0, 1.0) == 0


def test_a_run_that_averages_is_rehearsed_with_the_average(rehearsal):
    spec, tail = plain(0.01), Rehearsal(rehearsal.model, rehearsal.loss, rehearsal.runs, FinalModel(average="tail"))
    states = [state.z.clone() for state in rehearsal.states(spec, 5.0, 8, [0, 1])]
    assert torch.allclose(tail.ends(spec, 5.0, 8), torch.stack(states[4:]).mean(0), atol=1e-5)
    assert torch.equal(rehearsal.ends(spec, 5.0, 8), states[-1])
