"""Metrics from a noised histogram: exact without noise, right intervals, and silence where they say nothing."""

import numpy as np
import pytest

from privsgp.metrics import of_classes
from privsgp.statistics.columns import Moments, Numbers
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


@pytest.mark.parametrize(("values", "positives", "shown"), [(5, 0.25, True), (0, 0.25, True), (0, 0.04, False)])
def test_an_auc_of_scores_that_repeat_or_crowd_one_bin(values, positives, shown):
    """Five values: within a bin all are ties. Rare positives: most scores are in the first bin, in any order."""
    rng, sigma, n, hits, count = np.random.default_rng(5), 3.0, 20_000, 0, 0
    layout = Scores.of(10, repeated=values == 5)

    def draw(n):
        odds = 3 * rng.integers(0, values, n) / (values - 1) - 1.5 if values else rng.normal(-0.7, 1.2, n)
        p = 1 / (1 + (1 / positives - 1) * np.exp(-odds))
        return p, (rng.random(n) < p).astype(int)

    p, y = draw(400_000)
    truth = of_classes(np.stack([1 - p, p], 1), y)["auc"]
    for _ in range(60):
        p, y = draw(n)
        cells = layout.rows(p, y, np.zeros(n, int)).sum(0)
        one = named(layout.estimates(cells + rng.normal(0, sigma, cells.shape), n, sigma))["auc", "all"]
        count += one.value is not None
        hits += one.value is not None and one.low <= truth <= one.high
    assert count == 60 * shown
    assert hits >= 0.9 * count
    if not shown:  # bins around the public share show it
        spread = Scores.of(10, share=positives)
        one = named(spread.estimates(spread.rows(p, y, np.zeros(n, int)).sum(0), n, sigma))["auc", "all"]
        assert one.low <= truth <= one.high


def test_intervals_of_quantiles_of_whole_numbers():
    """Half of all values are 2 or less: the interval holds the whole bin of 2."""
    rng, column, hits = np.random.default_rng(6), Numbers("children", 0.0, 10.0, 20), 0
    for _ in range(100):
        values = rng.choice(6, 2000, p=[0.2, 0.15, 0.25, 0.2, 0.1, 0.1]).astype(float)
        cells = column.rows(values, np.zeros(2000, bool)).sum(0)
        found = column.described(cells + rng.normal(0, 8.0, cells.shape), 2000, 8.0)["estimates"]
        (one,) = [each for each in found if each["metric"] == "quantile 0.5"]
        hits += one["low"] <= 2 <= one["high"]
    assert hits >= 93


@pytest.mark.parametrize("sigma", [5.0, 60.0, 300.0])
def test_ridge_regression_never_claims_what_noise_explains(sigma):
    """With little noise R² is that of least squares; with much noise it is right, or not shown."""
    rng, layout, n, p = np.random.default_rng(7), Moments((*"abcdefgh", "y"), 2.0), 8000, 8
    weights, shown, hits, correlated = rng.normal(size=p), 0, 0, 0
    for _ in range(60):
        x = rng.normal(size=(n, p)) * np.linspace(0.1, 0.5, p)
        y = 0.3 * (x / np.linspace(0.1, 0.5, p) @ weights) / np.linalg.norm(weights) + 0.3 * rng.normal(size=n)
        rows = layout.rows(np.column_stack([x, y]))
        v = rows[:, -p - 1 :]
        c = np.cov(v.T)
        found = layout.described(rows.sum(0) + rng.normal(0, sigma, layout.length), n, sigma)
        w = np.array(list(found["ridge"]["weights"].values()))
        truth = (2 * w @ c[:-1, -1] - w @ c[:-1, :-1] @ w) / c[-1, -1]
        (*correlations, one) = found["estimates"]
        correlated += all(each["low"] <= np.corrcoef(v[:, i], v[:, -1])[0, 1] <= each["high"]
                          for i, each in enumerate(correlations) if each["value"] is not None)  # fmt: skip
        shown += one["value"] is not None
        hits += one["value"] is not None and one["low"] <= truth <= one["high"]
    best = c[:-1, -1] @ np.linalg.solve(c[:-1, :-1], c[:-1, -1]) / c[-1, -1]
    assert hits >= 0.9 * shown
    assert correlated >= 35  # of 60 draws in which all eight are right
    if sigma == 5.0:
        assert truth > best - 0.01
    assert shown == 60 or sigma == 300.0
