"""The page on plans shows what the runs took and gave; all of it are configurations."""

from __future__ import annotations

import json

from privsgp.runs import config as configs

EXPERIMENT = "planning"


def test_the_page_has_the_tables_of_the_runs(experiment):
    told = json.loads(experiment.RESULTS.read_text())
    assert experiment.pages.shown(experiment.PAGE.read_text(), "planning") == experiment.part(told)
    assert list(told["seconds"]) == list(experiment.PLANS)
    assert [row["words"] for row in told["distances"]] == list(experiment.DISTANCES)


def test_noise_alone_is_within_the_factor_that_the_page_says(experiment):
    for row in json.loads(experiment.RESULTS.read_text())["distances"]:
        assert 0.4 <= row["alone"] / (row["rehearsed"] or row["tuned"]) <= 2.5


def test_a_distance_is_measured_anew_and_plans_can_be_read(experiment):
    row = experiment.distances("digits, 16 nodes, logistic", None)
    assert row["alone"] > 0
    assert row["tuned"] is None
    for file, changes in experiment.PLANS.values():
        configs.read(experiment.ROOT / file, changes)
