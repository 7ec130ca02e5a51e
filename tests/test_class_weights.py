"""The page on weights of classes shows what the runs gave, and the experiment runs."""

from __future__ import annotations

import json
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
EXPERIMENT = "class_weights"


def test_the_page_has_the_table_of_the_runs(experiment):
    found = json.loads(experiment.RESULTS.read_text())
    assert experiment.part(found) in experiment.PAGE.read_text()
    assert found["setting"] == experiment.SETTING
    assert {len(row["sensitivity"]) for row in found["rows"]} == {len(experiment.SEEDS)}


def test_a_clip_that_binds_takes_weights_back(experiment):
    rows = {(row["clip"], row["weight"]): row for row in json.loads(experiment.RESULTS.read_text())["rows"]}
    gained = [min(rows[clip, 9.0]["sensitivity"]) - max(rows[clip, 1.0]["sensitivity"]) for clip in (0.3, 30.0)]
    assert gained[0] < 0.05
    assert gained[1] > 0.4


def test_a_row_is_measured_anew(experiment, monkeypatch):
    monkeypatch.setattr(experiment, "SETTING", experiment.SETTING | {"records": 200, "batch": 20, "steps": 2})
    monkeypatch.setattr(experiment, "SEEDS", (0,))
    row = experiment.measured(3.0, 9.0)
    assert 0 <= row["sensitivity"][0] <= 1
