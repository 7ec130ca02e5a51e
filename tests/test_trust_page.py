"""The page on trust shows what the runs gave, and which commit made them."""

from __future__ import annotations

import json

EXPERIMENT = "trust"


def test_the_page_has_the_tables_of_the_runs(experiment):
    told = json.loads(experiment.RESULTS.read_text())
    for mark, text in experiment.parts(told).items():
        assert experiment.pages.shown(experiment.PAGE.read_text(), mark) == text


def test_fewer_honest_sites_are_a_larger_epsilon(experiment):
    told = json.loads(experiment.RESULTS.read_text())
    spent = [epsilon for _, epsilon in told["honest"]["curve"]]
    assert spent == sorted(spent, reverse=True)


def test_no_fault_changes_epsilon(experiment):
    rows = json.loads(experiment.RESULTS.read_text())["drop_outs"]["rows"]
    assert len({row["epsilon"] for row in rows}) == 1


def test_the_curve_is_measured_anew(experiment, monkeypatch, tmp_path):
    monkeypatch.setattr(experiment, "CURVE", [*experiment.CURVE, "algorithm.steps=3"])
    assert dict(experiment.honest(tmp_path / "honest")["curve"])[12] <= 0.5
