"""The experiment on noise that neighbours share: pages show what the runs gave."""

from __future__ import annotations

import json
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
EXPERIMENT = "shared_noise"


def test_the_page_has_the_table_of_the_runs(experiment):
    rows = json.loads(experiment.RESULTS.read_text())["rows"]
    assert experiment.pages.shown((ROOT / "docs" / "trust.md").read_text(), "shared noise") == experiment.shown(rows)


def test_a_row_takes_the_place_of_the_one_before(experiment, tmp_path):
    row = {"part": "mnist", "kind": "local", "accuracy": {"mean": 0.5, "sd": 0.0, "each": [0.5]}}
    for mean in (0.5, 0.6):
        experiment.keep(tmp_path / "found.json", row | {"accuracy": row["accuracy"] | {"mean": mean}})
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert [r["accuracy"]["mean"] for r in rows] == [0.6]
    assert "| 60.00 |" in experiment.table(rows)


@pytest.mark.parametrize("kind", ["local", "pairwise", "all", "pooled"])
@pytest.mark.parametrize("part", ["mnist", "mnist-mlp", "cifar10", "a9a"])
def test_every_kind_of_run_is_a_configuration(experiment, part, kind):
    config = experiment.PARTS[part].asked(kind, "cpu")
    assert config.private
    assert (config.privacy.noise == "pairwise") == (kind in ("pairwise", "all"))
