"""The page on what joining gains shows what the example gave, and which commit made it."""

from __future__ import annotations

import json

import pytest

EXPERIMENT = "hospitals"


def test_the_page_has_the_table_of_the_example(experiment):
    told = json.loads(experiment.RESULTS.read_text())
    assert experiment.pages.shown(experiment.PAGE.read_text(), "hospitals") == experiment.part(told)
    assert told["commit"]
    assert told["steps"] == experiment.STEPS
    assert all(row["spent_in_both"] <= row["epsilon"] for row in told["rows"])


def test_it_is_measured_anew(experiment):
    now, kept = experiment.measured(2), json.loads(experiment.RESULTS.read_text())
    assert [row.keys() for row in now["rows"]] == [row.keys() for row in kept["rows"]]


@pytest.mark.slow
def test_the_example_still_gives_what_the_page_has(experiment):
    now, kept = experiment.measured(experiment.STEPS), json.loads(experiment.RESULTS.read_text())
    assert experiment.part(kept | now) == experiment.part(kept)
