"""A folder of an earlier release is read, and what a later one wrote is refused by its version.

`run-1.0.0rc1` is what release 1.0.0rc1 left of two nodes and six steps with a schedule of noise and a block table. This
release has neither.
"""

from __future__ import annotations

import json
import pathlib
import shutil

import numpy as np
import pytest

import privsgp
import runs
from privsgp.accounting import ledger
from privsgp.runs import config as configs

HERE = pathlib.Path(__file__).parent
CANDIDATE = HERE / "run-1.0.0rc1"


@pytest.fixture
def old(tmp_path):
    return shutil.copytree(CANDIDATE, tmp_path / "old")


def test_a_folder_with_features_that_are_gone_is_read_and_its_epsilon_is_an_upper_bound(old, tmp_path):
    ran = runs.command("ledger", old, "--json")
    assert ran.code == 0, ran.err
    told = json.loads((old / "summary.json").read_text())["epsilon_spent"]
    assert all(node["epsilon"] >= known for node, known in zip(json.loads(ran.out), told, strict=True))
    ran = runs.command("report", old)
    assert ran.code == 0, ran.err
    assert "1.0.0rc1" in (old / "report.html").read_text()
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 64), np.float32))
    ran = runs.command("predict", old, tmp_path / "new.npz")
    assert (ran.code, len(ran.out.splitlines())) == (0, 3), ran.err
    assert privsgp.load(old).summary["steps"] == 6


def test_a_folder_with_values_that_are_gone_is_read(tmp_path):
    old = shutil.copytree(CANDIDATE, tmp_path / "old")
    text = (old / "config.toml").read_text().replace('name = "none"', 'name = "random-conv"\nfilters = 6', 1)
    text = text.replace("step_size = 0.5", 'step_size = { schedule = "linear", start = 0.25, end = 0.0, hold = 0.5 }')
    assert "random-conv" in text
    (old / "config.toml").write_text(text.replace('partition = "even"', 'partition = "dirichlet"'))
    for name in ("ledger", "report"):
        ran = runs.command(name, old)
        assert ran.code == 0, ran.err
    assert set(configs._started(old / "config.toml")[1]) >= {"features", "data.sizes", "algorithm.step_size"}
    assert configs.started(old / "config.toml").algorithm.step_size == 0.25


def test_a_run_with_a_feature_that_is_gone_is_not_resumed(tmp_path):
    old = shutil.copytree(CANDIDATE, tmp_path / "old")
    (old / "summary.json").unlink()  # as if it had been stopped
    lines = (old / "config.toml").read_text().splitlines()
    gone = ("noise_", "sampling", "c2", "table", "block", "may_spend", "evaluations", "unit_steps", "compute", "mean")
    (tmp_path / "run.toml").write_text("\n".join(line for line in lines if not line.startswith(gone)))
    ran = runs.command("train", tmp_path / "run.toml", "--out", old, "--resume")
    assert ran.code == 2
    assert "privacy.noise_schedule: optimal → None" in ran.err
    assert "algorithm.table: block → factored" in ran.err


@pytest.mark.parametrize("name", ["run.json", "summary.json", "metrics.jsonl"])
def test_what_a_later_release_wrote_is_refused_by_its_version(old, name):
    text = (old / name).read_text()
    assert '"version": 1' in text
    (old / name).write_text(text.replace('"version": 1', '"version": 2', 1))
    ran = runs.command("report", old)
    assert ran.code == 2
    assert "is of version 2" in ran.err
    assert "is of version" in ran.err


def test_a_ledger_of_a_later_release_is_refused_by_its_format(old, monkeypatch):
    monkeypatch.setattr(ledger, "FORMAT", 1)  # what a release before this ledger's would know
    ran = runs.command("ledger", old)
    assert ran.code == 2
    assert "format 1" in ran.err
