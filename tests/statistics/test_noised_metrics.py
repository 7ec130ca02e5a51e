"""Metrics from a noised histogram: exact without noise, right intervals, and silence where they say nothing."""

import numpy as np
import pytest

from privsgp.metrics import of_classes
from privsgp.statistics.estimates import Confusion, Groups, Residuals, Scores

pytestmark = pytest.mark.unit
SEX = Groups(("sex", "age"), (("F", "M"), ("young", "old", "other")))


def simulated(n, rng):
    y = (rng.random(n) < 0.25).astype(int)
    return 1 / (1 + np.exp(1.1 - 1.2 * rng.normal(y, 1))), y


def named(found):
    return {(one.metric, one.group): one for one in found}


def test_without_noise_metrics_are_those_of_the_records():
    rng = np.random.default_rng(0)
    (p, y), layout = simulated(20_000, rng), Scores.of(10, groups=SEX)
    group = rng.integers(0, 6, len(p))
    rows = layout.rows(p, y, group)
    assert np.linalg.norm(rows, axis=1).max() <= layout.norm
    found = named(layout.estimates(rows.sum(0), len(p), 0.0))
    exact = of_classes(np.stack([1 - p, p], 1), y)
    assert found["accuracy", "all"].value == pytest.approx(exact["accuracy"], abs=1e-9)
    assert found["brier", "all"].value == pytest.approx(exact["brier"], abs=1e-3)
    assert found["auc", "all"].value == pytest.approx(exact["auc"], abs=0.004)
    assert found["calibration_in_the_large", "all"].value == pytest.approx((y - p).mean(), abs=1e-9)
    women = group < 3
    said = ((p >= 0.5) == y)[women].mean()
    assert found["accuracy", "sex = F"].value == pytest.approx(said, abs=1e-9)
    sensitivity = (p[y == 1] >= 0.5).mean()
    assert found["sensitivity", "all"].value == pytest.approx(sensitivity, abs=1e-9)


def test_a_threshold_is_always_an_edge():
    assert Scores.of(5, 0.37).edges == pytest.approx((0.0, 0.2, 0.37, 0.4, 0.6, 0.8, 1.0))
    assert Scores.of([0.1, 0.2], 0.5).edges == (0.0, 0.1, 0.2, 0.5, 1.0)


def test_intervals_are_right_as_often_as_they_say():
    """The full figures are those of experiments/private_evaluation.py."""
    rng, layout, sigma, n, runs = np.random.default_rng(1), Scores.of(10), 8.0, 3000, 150
    p, y = simulated(400_000, rng)
    truth = named(layout.estimates(layout.rows(p, y, np.zeros(len(p), int)).sum(0), len(p), 0.0))
    hits = dict.fromkeys(truth, 0)
    for _ in range(runs):
        p, y = simulated(n, rng)
        cells = layout.rows(p, y, np.zeros(n, int)).sum(0)
        for key, one in named(layout.estimates(cells + rng.normal(0, sigma, cells.shape), n, sigma)).items():
            assert one.value is not None
            hits[key] += one.low <= truth[key].value <= one.high
    assert all(0.89 <= count / runs <= 0.995 for count in hits.values()), hits


def test_a_metric_that_says_nothing_is_replaced_by_the_persons_it_needs():
    rng, layout = np.random.default_rng(2), Scores.of(10)
    p, y = simulated(200, rng)
    cells = layout.rows(p, y, np.zeros(200, int)).sum(0)
    one = named(layout.estimates(cells + rng.normal(0, 6, cells.shape), 200, 6.0))["auc", "all"]
    assert (one.value, one.low, one.high) == (None, None, None)
    assert one.persons_needed > 200


def test_confusion_counts_each_record_once():
    rng = np.random.default_rng(3)
    y, said, layout = rng.integers(0, 3, 5000), rng.integers(0, 3, 5000), Confusion(3)
    rows = layout.rows(said, y, np.zeros(5000, int))
    found = named(layout.estimates(rows.sum(0), 5000, 0.0))
    assert found["accuracy", "all"].value == pytest.approx((said == y).mean())
    assert found["recall", "all, class 1"].value == pytest.approx((said == 1)[y == 1].mean())


def test_residuals_give_r2_and_mae():
    rng = np.random.default_rng(4)
    y = rng.uniform(20, 80, 20_000)
    predicted, layout = y + rng.normal(0, 6, len(y)), Residuals(25.0, 50.0, 50.0)
    rows = layout.rows(predicted, y)
    assert np.linalg.norm(rows, axis=1).max() <= layout.norm
    found = named(layout.estimates(rows.sum(0), len(y), 0.0))
    r2 = 1 - np.mean((y - predicted) ** 2) / y.var()
    assert found["r2", "all"].value == pytest.approx(r2, abs=1e-3)
    assert found["r2", "all"].low < r2 < found["r2", "all"].high
    assert found["mae", "all"].value == pytest.approx(np.abs(y - predicted).mean(), abs=1e-3)


def test_scores_that_are_no_numbers_still_count():
    """A model that fails on one record must not show that by an error."""
    layout = Scores.of(10)
    assert layout.rows(np.array([np.nan, 2.0]), np.array([0, 1]), np.array([0, 0]))[:, :-1].sum() > 1.9
    assert Residuals(1.0, 0.0, 1.0).rows(np.array([np.nan]), np.array([0.5]))[0, -1] == 1
