"""The experiment on the planner's choice: its page shows what the runs gave, and cells that are done stay done."""

from __future__ import annotations

import argparse
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
EXPERIMENT = "planner_mnist"


def test_the_page_has_the_tables_of_the_runs(experiment):
    page = (ROOT / "docs" / "planner.md").read_text()
    assert experiment.pages.shown(page, "planner") == experiment.written(experiment.RESULTS).strip()


def test_a_cell_that_is_done_is_not_made_again(experiment, monkeypatch, tmp_path):
    made = []

    def work(task):
        made.append(task[1:])
        return [{"batch": task[1], "method": task[2], "asked": task[3], "step_size": 0.1, "accuracy": 0.5}]

    monkeypatch.setattr(experiment, "work", work)
    given = {"out": tmp_path / "p.json", "data": "mnist", "nodes": 50, "epsilon": 1.0, "seeds": [0, 1]}
    options = argparse.Namespace(**given, distances=[50])
    first, again = (experiment.done((options, 1.0, "privsgp", 1200)) for _ in range(2))
    assert first == again
    assert {"commit", "versions", "device"} <= first[0].keys()
    assert made == [(1.0, "privsgp", 1200)]
    experiment.done((argparse.Namespace(**given, distances=[50, 100]), 1.0, "privsgp", 1200))
    assert len(made) == 2
