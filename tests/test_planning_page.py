"""The page on plans shows what the runs took and gave; all of it are configurations."""

from __future__ import annotations

import json

from privsgp.runs import config as configs

EXPERIMENT = "planning"


def test_the_page_has_the_tables_of_the_runs(experiment):
    told = json.loads(experiment.RESULTS.read_text())
    assert experiment.pages.shown(experiment.PAGE.read_text(), "planning") == experiment.part(told)
    assert list(told["seconds"]) == list(experiment.PLANS)


def test_plans_can_be_read(experiment):
    for file, changes in experiment.PLANS.values():
        configs.read(experiment.ROOT / file, changes)
