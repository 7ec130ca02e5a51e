"""The page on schedules shows what the runs gave, and which commit made them."""

from __future__ import annotations

import json
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
EXPERIMENT = "schedules"


def test_the_page_has_the_table_of_the_runs(experiment):
    rows = json.loads(experiment.RESULTS.read_text())["rows"]
    page = (ROOT / "docs" / "algorithms.md").read_text()
    assert experiment.pages.shown(page, "schedules") == experiment.part(rows)
    wanted = [(problem, kind) for problem in experiment.PROBLEMS for kind in experiment.KINDS]
    assert [(row["problem"], row["kind"]) for row in rows] == wanted


def test_all_kinds_are_compared_at_the_same_step_sizes_and_seeds(experiment):
    rows = json.loads(experiment.RESULTS.read_text())["rows"]
    for row in rows:
        assert tuple(at["distance"] for at in row["at"]) == experiment.PROBLEMS[row["problem"]][3]
    assert {tuple(row["seeds"]) for row in rows} == {(0, 1, 2)}
