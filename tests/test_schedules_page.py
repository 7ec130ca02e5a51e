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
    assert [row["kind"] for row in rows] == list(experiment.KINDS)


def test_distances_are_chosen_by_training_loss_on_a_seed_that_is_not_shown(experiment):
    for row in json.loads(experiment.RESULTS.read_text())["rows"]:
        assert 0 not in row["seeds"]
        assert row["distance"] == min(row["tried"], key=lambda one: one["train_loss"])["distance"]
