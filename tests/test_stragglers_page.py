"""The page on not waiting shows what the runs gave."""

from __future__ import annotations

import json

EXPERIMENT = "stragglers"


def test_the_page_has_the_table_of_the_runs(experiment):
    told = json.loads(experiment.RESULTS.read_text())
    assert experiment.pages.shown(experiment.PAGE.read_text(), "stragglers") == experiment.part(told)
    assert [row["words"] for row in told["rows"]] == list(experiment.KINDS)


def test_a_row_is_measured_anew(experiment, monkeypatch, tmp_path):
    monkeypatch.setattr(experiment, "SEEDS", (0, 1))
    words = next(iter(experiment.KINDS))
    monkeypatch.setitem(experiment.KINDS, words, ["algorithm.steps=6"])
    row = experiment.measured(words, tmp_path)
    assert row["slowest"][0] < row["most"]
    assert "(slow)" in experiment.part({"rows": [row], "commit": "abc"})
