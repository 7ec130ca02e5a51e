"""The page of single configurations shows what the runs gave, and which commit made them."""

from __future__ import annotations

import json
import pathlib

import pytest

from privsgp.runs import config as configs

ROOT = pathlib.Path(__file__).parent.parent
EXPERIMENT = "single"


def test_the_page_has_the_tables_of_the_runs(experiment):
    told = json.loads(experiment.RESULTS.read_text())
    page = (ROOT / "docs" / "results-accuracy.md").read_text()
    assert experiment.pages.shown(page, "single configurations") == experiment.table(told["rows"])
    assert experiment.pages.shown(page, "joining") == experiment.joined(told)
    assert all(row["commit"] for row in [*told["rows"], told["joining"]])


def test_every_row_is_a_configuration_that_can_be_run(experiment):
    for _, file, changes in experiment.RUNS.values():
        assert configs.read(ROOT / "experiments" / "configs" / file, list(changes)).algorithm.steps


def test_noise_as_nodes_join_is_what_the_code_says(experiment):
    kept = json.loads(experiment.RESULTS.read_text())["joining"]["rows"]
    for row, now in zip(kept, experiment.joining.rows(ROOT / "experiments" / "configs" / "a9a.toml"), strict=True):
        assert row == pytest.approx(now, rel=1e-3)
