from __future__ import annotations

import pytest
import torch

from privsgp.planner.stand_in import make


def test_shapes_scale_and_labels():
    samples = make((3, 8, 8), 10, samples=300, scale=2.0)
    assert samples.x.shape == (300, 3, 8, 8)
    assert samples.x_test.shape == (1200, 3, 8, 8)
    assert samples.y.dtype == torch.int64
    assert set(samples.y_test.tolist()) == set(range(10))
    assert float(samples.x_test.square().mean().sqrt()) == pytest.approx(2.0, rel=0.15)


def test_the_same_seed_the_same_samples():
    assert torch.equal(make((5,), 2, samples=10).x, make((5,), 2, samples=10).x)
    assert not torch.equal(make((5,), 2, samples=10).x, make((5,), 2, samples=10, seed=1).x)


@pytest.mark.parametrize("classes", [2, 10])
def test_classes_can_be_told_apart_but_not_perfectly(classes):
    samples = make((40,), classes, samples=2000)
    means = torch.stack([samples.x[samples.y == c].mean(0) for c in range(classes)])
    centred, within = samples.x - means[samples.y], samples.x_test
    whiten = torch.linalg.inv(centred.T @ centred / len(centred))
    scores = within @ whiten @ means.T - 0.5 * ((means @ whiten) * means).sum(1)
    accuracy = float((scores.argmax(1) == samples.y_test).double().mean())
    assert 0.8 < accuracy < 0.995


@pytest.mark.parametrize("target", [(), (3,)])
def test_targets_of_a_regression_follow_the_inputs(target):
    samples = make((12,), None, target, samples=500)
    assert samples.y.shape == (500, *target)
    found = torch.linalg.lstsq(samples.x, samples.y.reshape(500, -1)).solution
    error = samples.y_test.reshape(2000, -1) - samples.x_test @ found
    assert float(error.square().mean() / samples.y_test.square().mean()) < 0.2
