"""The estimators of scikit-learn: its own checks, sites and persons, and what several fits cost."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator

from privsgp.errors import Refused
from privsgp.sklearn import PrivateClassifier, PrivateRegressor, PrivateSurvival

SHORT = {"algorithm": {"steps": 1}, "engine": {"device": "cpu"}}


@pytest.fixture(autouse=True)
def book(monkeypatch, tmp_path):
    monkeypatch.setenv("PRIVSGP_STATE", str(tmp_path / "state"))
    monkeypatch.setattr("os.fsync", lambda _file: None)  # hundreds of fits, and no test here cuts the power


def table(rows=240):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, 3))
    return x, np.where(x[:, 0] > 0, "ill", "well"), rng.exponential(np.exp(-x[:, 0]))


@pytest.mark.parametrize("kind", [PrivateClassifier, PrivateRegressor, PrivateSurvival])
@pytest.mark.filterwarnings("ignore")  # scikit-learn's checks raise some of them on purpose
def test_the_checks_of_scikit_learn_pass(kind, tmp_path):
    more = {"bins": [1, 2, 4]} if kind is PrivateSurvival else {}
    made = kind(seed=0, out=str(tmp_path / "runs"), options=SHORT, **more)
    found = check_estimator(made, on_skip=None, on_fail=None)
    assert [one for one in found if one["status"] not in ("passed", "skipped")] == []
    assert [one["check_name"] for one in found if one["status"] == "skipped"] == ["check_array_api_input"]


def test_sites_and_persons_reach_the_run(tmp_path):
    x, y, _ = table()
    made = PrivateClassifier(seed=0, out=str(tmp_path), options=SHORT | {"rows_per_person": 2})
    made.fit(x, y, sites=np.repeat(["b", "a"], 120), persons=np.repeat(np.arange(120), 2))
    assert made.result_.summary["sites"] == ["a", "b"]
    assert made.result_.summary["samples"] == [60, 60]
    assert made.epsilon_ <= 1
    assert "person" in made.statement_


def test_a_second_private_fit_warns_of_the_sum(tmp_path):
    x, y, _ = table()
    made = PrivateClassifier(classes=["ill", "well"], out=str(tmp_path), options=SHORT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.fit(x, y)
    with pytest.warns(UserWarning, match="ε = 2 is spent"):
        made.fit(x[:100], y[:100])
    with pytest.raises(Refused, match="records that"):
        made.score(x[:100], y[:100])


def test_private_labels_are_never_counted(tmp_path):
    x, y, _ = table()
    with pytest.raises(Refused, match="no classes"):
        PrivateClassifier(out=str(tmp_path), options=SHORT).fit(x, y)


@pytest.mark.parametrize("what", ["sites", "persons"])
def test_a_site_or_person_for_another_number_of_rows_is_refused(what, tmp_path):
    x, y, _ = table()
    options = SHORT | ({"rows_per_person": 2} if what == "persons" else {})
    made = PrivateClassifier(seed=0, out=str(tmp_path), options=options)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        made.fit(x, y, **{what: np.repeat(["a", "b"], 2)})


def test_survival_takes_pairs_of_a_time_and_an_event_alone(tmp_path):
    x, _, time = table()
    made = PrivateSurvival(bins=[0.3, 1, 3], seed=0, out=str(tmp_path), options=SHORT)
    swapped = np.column_stack([time < 3, time])
    structured = np.array(list(zip(time < 3, time, strict=True)), [("event", bool), ("time", float)])
    for wrong in (swapped, structured, np.column_stack([time, time, time])):
        with pytest.raises(Refused, match=r"pairs \(time, event\)"):
            made.fit(x, wrong)


def test_values_far_from_one_are_warned_of(tmp_path):
    x, y, time = table()
    options = {"seed": 0, "out": str(tmp_path), "options": SHORT}
    with pytest.warns(UserWarning, match="bring it there by public numbers"):
        PrivateRegressor(**options).fit(x, 100 + time)
    with pytest.warns(UserWarning, match="bring it there by public numbers"):
        PrivateClassifier(**options).fit(x + 100, y)


def test_they_learn(tmp_path):
    x, y, time = table(600)
    out = str(tmp_path)
    known = {
        PrivateClassifier(seed=0, epsilon=2, out=out): (y, 0.9),
        PrivateRegressor(seed=0, epsilon=2, out=out, options={"privacy": {"clip": 4.0}}): (x @ [0.5, -0.5, 0], 0.7),
        PrivateSurvival(bins=[0.3, 1, 3], seed=0, epsilon=2, out=out): (np.column_stack([time, time < 3]), 0.65),
    }
    for made, (target, least) in known.items():
        assert made.fit(x[:400], target[:400]).score(x[400:], target[400:]) > least, made
