"""The page on sites that drop out shows what the runs gave, and which commit made them."""

from __future__ import annotations

import json

EXPERIMENT = "dropouts"


def test_the_page_has_the_table_of_the_runs(experiment):
    told = json.loads(experiment.RESULTS.read_text())
    assert experiment.pages.shown(experiment.PAGE.read_text(), "drop-outs") == experiment.part(told)
    assert told["commit"]
    assert [row["what"] for row in told["rows"]] == list(experiment.FAULTS)


def test_no_fault_changes_epsilon(experiment):
    rows = json.loads(experiment.RESULTS.read_text())["rows"]
    assert len({row["epsilon"] for row in rows}) == 1


def test_a_row_is_measured_anew(experiment, monkeypatch, tmp_path):
    monkeypatch.setattr(experiment, "SEEDS", (0,))
    monkeypatch.setattr(experiment, "SHARED", [*experiment.SHARED, "algorithm.steps=3"])
    row = experiment.measured("nothing", tmp_path)
    assert 0 < row["epsilon"] <= 0.5
    assert row["expected"] == 1.0
