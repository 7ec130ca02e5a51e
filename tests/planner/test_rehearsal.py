from __future__ import annotations

import pytest
import torch

from privsgp import models
from privsgp.planner import rehearsal, stand_in
from privsgp.planner.rehearsal import Scene, Stage, far_enough
from settings import settings_of


@pytest.fixture(scope="module")
def stage():
    samples = stand_in.make((16,), 4, samples=256)
    model = models.make("logistic", input_shape=(16,), outputs=4, seed=0)
    return Stage(model, models.per_sample("cross-entropy"), models.correct("cross-entropy"), samples)


def plain(noise, visits=1e9, algorithm="privsgp", **settings):
    return Scene(algorithm, settings_of(algorithm, **settings), noise, visits)


def test_the_same_seed_is_the_same_rehearsal(stage):
    assert torch.equal(stage.end(plain(0.01), 5.0, seed=3), stage.end(plain(0.01), 5.0, seed=3))
    assert not torch.equal(stage.end(plain(0.01), 5.0, seed=3), stage.end(plain(0.01), 5.0, seed=4))


def test_noise_of_the_end_is_kappa_times_the_distance(stage):
    flat = Stage(stage.model, lambda out, _y: out.sum(-1) * 0, None, stage.samples)
    for steps in (16, 64):
        moved = torch.cat([flat.end(plain(0.01), 7.0, steps=steps, seed=s) - flat.x0 for s in range(24)])
        assert float(moved.square().mean().sqrt()) == pytest.approx(0.07, rel=0.05)


def test_without_noise_and_coins_it_is_gradient_descent(stage):
    x = stage.x0.clone()[None]
    everyone = torch.ones(1, 256, dtype=torch.bool)
    for _ in range(4):
        g = stage.gradient(x, stage.samples.x[None], stage.samples.y[None])
        g.clip_(1.0, everyone)
        x = x - 0.25 * g.sum() / 256
    assert torch.allclose(stage.end(plain(0.0), 1.0, steps=4), x[0], atol=1e-6)


@pytest.mark.parametrize("algorithm", ["privsgp", "privsgp-vr", "privsgp-sag"])
def test_every_method_learns_when_samples_are_seen_often(stage, algorithm):
    assert stage.mean_score(plain(0.001, 64, algorithm), 20.0) > stage.score(stage.x0) + 0.3


def test_a_table_seen_once_is_stale(stage):
    fresh, stale = (stage.mean_score(plain(0.001, visits, "privsgp-sag"), 40.0) for visits in (64, 0.5))
    assert fresh > stale + 0.02


def test_fixed_batches_and_rare_visits_are_no_trouble(stage):
    assert stage.mean_score(plain(0.001, 0.01, sampling="fixed"), 5.0) >= 0


def test_more_noise_means_a_shorter_way(stage):
    far, near = (far_enough(stage, plain(noise), stage.guess(noise)) for noise in (0.002, 0.05))
    assert 4 < far / near < 60


def test_the_guess_does_not_matter_much(stage):
    one, other = (far_enough(stage, plain(0.02), guess) for guess in (3.0, 40.0))
    assert one == pytest.approx(other, rel=0.6)


def test_the_parabola():
    # Top at 0.25 with curvature 0.1, given up: 0.005 of 1 → √0.05 beyond.
    values = [1 - 0.1 * (p - 0.25) ** 2 for p in (-1, 0, 1)]
    assert rehearsal._beyond(*values) == pytest.approx(0.25 + (rehearsal.GIVEN_UP * values[1] / 0.1) ** 0.5)
    assert rehearsal._beyond(1.0, 1.0, 1.0) == 0
