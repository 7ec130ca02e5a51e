"""Metrics on public test data: plain formulas, a guess beside each, dull ones named, none of private data."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import runs
from privsgp import metrics
from privsgp.metrics import Measure
from privsgp.runs.views import read


def _made(seed, classes, samples=60):
    rng = np.random.default_rng(seed)
    outputs = torch.from_numpy(rng.normal(size=(samples, classes)))
    return outputs, torch.from_numpy(rng.permutation(np.arange(samples) % classes))


@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 3, 7]))
def test_classification_is_the_plain_formulas(seed, classes):
    outputs, y = _made(seed, classes)
    found = Measure("cross-entropy", classes)(outputs, y)
    p, said = torch.softmax(outputs, 1).numpy(), outputs.argmax(1)
    recalls = [float((said[y == c] == c).double().mean()) for c in range(classes)]
    assert found["accuracy"] == pytest.approx(float((said == y).double().mean()))
    assert found["balanced_accuracy"] == pytest.approx(np.mean(recalls))
    assert found["log_loss"] == pytest.approx(-np.log(p[range(len(y)), y]).mean())
    assert np.array(found["confusion"]).sum() == len(y)
    assert np.diag(found["confusion"]).sum() == (said == y).sum()
    against = [1] if classes == 2 else range(classes)
    pairs = [np.mean([[a > b for a in p[y == c, c]] for b in p[y != c, c]]) for c in against]
    assert found["auc"] == pytest.approx(np.mean(pairs))  # the chance that a positive scores above a negative
    assert found["baseline"]["accuracy"] == pytest.approx(np.bincount(y).max() / len(y))
    assert found["baseline"]["auc"] == 0.5


def test_f1_is_that_of_class_one_or_the_mean_over_classes():
    outputs, y = torch.eye(2)[[0, 1, 1, 1]], torch.tensor([0, 0, 1, 1])
    assert Measure("cross-entropy", 2)(outputs, y)["f1"] == pytest.approx(0.8)
    three = Measure("cross-entropy", 3)(torch.eye(3)[[0, 1, 1, 2]], torch.tensor([0, 0, 1, 2]))
    assert three["f1"] == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


def test_one_logit_is_two_classes_whose_other_logit_is_zero():
    outputs, y = _made(3, 2)
    one = Measure("binary", 2)(outputs[:, 1:] - outputs[:, :1], y)
    two = Measure("cross-entropy", 2)(outputs, y)
    assert {name: one[name] for name in metrics.CLASSES} == pytest.approx({name: two[name] for name in metrics.CLASSES})


def test_calibration_is_how_far_confidence_and_frequency_are_apart():
    sure = torch.logit(torch.tensor([0.9] * 10, dtype=torch.float64))[:, None]
    y = torch.tensor([1] * 6 + [0] * 4)
    assert Measure("binary", 2)(sure, y)["calibration_error"] == pytest.approx(0.3)


def test_calibration_in_the_large_and_slope_find_what_was_done_to_logits():
    rng = np.random.default_rng(0)
    z = rng.normal(-1, 1.5, 20_000)
    y = torch.from_numpy((rng.random(len(z)) < 1 / (1 + np.exp(-z))).astype(np.int64))
    good = Measure("binary", 2)(torch.from_numpy(z)[:, None], y)
    assert good["calibration_in_the_large"] == pytest.approx(0, abs=0.05)
    assert good["calibration_slope"] == pytest.approx(1, abs=0.05)
    steep = Measure("binary", 2)(torch.from_numpy(2 * z)[:, None], y)
    assert steep["calibration_slope"] == pytest.approx(0.5, abs=0.03)
    high = Measure("binary", 2)(torch.from_numpy(z + 0.7)[:, None], y)
    assert high["calibration_in_the_large"] == pytest.approx(-0.7, abs=0.05)
    assert "calibration_slope" not in Measure("cross-entropy", 3)(*_made(0, 3))
    apart = Measure("binary", 2)(torch.tensor([[-1.0], [-2.0], [1.0], [2.0]]), torch.tensor([0, 0, 1, 1]))
    assert apart["calibration_slope"] is None


def test_a_threshold_reaches_what_it_is_for():
    rng = np.random.default_rng(0)
    p, y = rng.random(500).round(2), rng.integers(0, 2, 500)
    for least in (0.1, 0.5, 0.9, 1.0):
        assert (p[y == 1] >= metrics.threshold_for(p, y, "sensitivity", least)).mean() >= least
        assert (p[y == 0] < metrics.threshold_for(p, y, "specificity", least)).mean() >= least


def test_the_calibration_error_is_the_same_on_every_python():
    """`sum` of ten times 0.1 is 1 from Python 3.12 on, and was less before: a summary made again would differ."""
    assert metrics._calibration_error([(0.1, 0.0, 1)] * 10) == 0.9999999999999999 / 10


@given(st.integers(0, 2**32 - 1), st.sampled_from([(), (3,)]))
def test_regression_is_the_plain_formulas(seed, shape):
    rng = np.random.default_rng(seed)
    y = torch.from_numpy(rng.normal(size=(40, *shape)))
    outputs = torch.from_numpy(rng.normal(size=(40, shape[0] if shape else 1)))
    found, off = Measure("mse")(outputs, y), outputs.reshape(y.shape) - y
    explained = 1 - off.square().sum(0) / (y - y.mean(0)).square().sum(0)
    assert found["mae"] == pytest.approx(float(off.abs().mean()))
    assert found["rmse"] == pytest.approx(float(off.square().mean().sqrt()))
    assert found["r2"] == pytest.approx(float(explained.mean()))
    assert found["baseline"]["r2"] == pytest.approx(0, abs=1e-12)


def test_a_class_without_samples_leaves_auc_unknown_and_nothing_else():
    found = Measure("cross-entropy", 3)(_made(0, 3)[0], torch.arange(60) % 2)
    assert found["auc"] is None
    assert all(found[name] is not None for name in metrics.CLASSES if name != "auc")


def test_outputs_that_are_not_finite_have_no_metrics():
    assert Measure("cross-entropy", 2)(torch.full((4, 2), torch.nan), torch.tensor([0, 1, 0, 1])) == {}


def test_a_metric_that_says_nothing_is_said_to_be_dull():
    y = torch.tensor([0] * 894 + [1] * 106)
    found = Measure("binary", 2)(torch.full((1000, 1), -2.0), y)
    assert found["accuracy"] == found["baseline"]["accuracy"] == 0.894
    words = "accuracy 89.4 % is not clearly better than always predicting the most frequent class (89.4 %)"
    assert words in found["dull"]
    good = Measure("binary", 2)(y[:, None] * 4.0 - 2, y)
    assert "dull" not in good


def test_probabilities_that_are_worse_than_the_base_rate_are_named():
    y = torch.tensor([0] * 74 + [1] * 26)
    sure = torch.where(torch.arange(100) % 3 == 0, -4.0, 3.0)[:, None] * (2.0 * y[:, None] - 1)
    found = Measure("binary", 2)(sure, y)
    p = torch.sigmoid(sure[:, 0]).double()
    assert found["brier"] == pytest.approx(float((p - y).square().mean()))
    assert found["baseline"]["brier"] == pytest.approx(0.74 * 0.26)
    told = [line for line in found["dull"] if "worse than predicting the base rate" in line]
    assert [line.split(" 1")[0].split(" 0")[0] for line in told] == ["log loss", "brier"]
    three = Measure("cross-entropy", 3)(torch.zeros(6, 3), torch.arange(6) % 3)
    assert three["brier"] == pytest.approx(2 / 3)  # summed over classes


def test_a_loss_of_ones_own_has_the_accuracy_that_correct_says():
    outputs, y = _made(1, 3)
    correct = Measure(correct=lambda o, t: (o.argmax(-1) == t).float())
    assert correct(outputs, y)["accuracy"] == pytest.approx(float((outputs.argmax(1) == y).double().mean()))
    assert Measure()(outputs, y) == {}


PRIVATE = (
    "--set=seed=", "--set=privacy.sigma=", "--set=privacy.epsilon=3.0", "--set=data.sizes=", "--set=data.nodes=2",
    "--set=data.path=site-{node}.npz", "--set=algorithm.steps=3",
)  # fmt: skip


@pytest.mark.parametrize("test", ["public", "private"])
def test_metrics_leave_the_site_where_test_data_are_public_alone(tmp_path, monkeypatch, test):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for node in range(2):
        x, y = rng.normal(size=(80, 5)), rng.integers(0, 2, 80)
        np.savez(f"site-{node}.npz", x=x, y=y, x_test=x[:20] + 1, y_test=y[:20], classes=2)
    summary = runs.train(runs.small(tmp_path), tmp_path / "out", *PRIVATE, f"--set=data.test={test}")
    assert (set(summary) & set(metrics.KEYS) != set()) == (test == "public")
    kept = tmp_path / "out" / "private" / "metrics.jsonl"
    assert kept.exists() == (test == "private")
    if test == "private":
        assert "auc" in json.loads(kept.read_text().splitlines()[-1])
    told = json.loads((tmp_path / "out" / "summary.json").read_text()) | {"auc": 0.9, "own_metrics": {"mine": 1.0}}
    (tmp_path / "out" / "summary.json").write_text(json.dumps(told))  # by whoever wrote them all the same
    assert (read(tmp_path / "out").summary["auc"] is None) == (test == "private")
    assert (read(tmp_path / "out").summary["own_metrics"] is None) == (test == "private")
