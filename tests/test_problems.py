"""Where records lie: what may move them, and that a ledger follows them."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pytest

import runs
from privsgp import config, problems

UNSEEDED = runs.SMALL.replace("seed = 7\n", "").replace("sigma = 0.05", "epsilon = 2.0")


def _parts(**changed):
    values = tomllib.loads(UNSEEDED)
    for key, value in changed.items():
        section, name = key.split("__")
        values[section][name] = value
    return problems.load_problem(config.parse(values)).parts


@pytest.mark.parametrize(
    "changed",
    [
        {"algorithm__step_size": 0.4},
        {"algorithm__name": "privsgp-vr"},
        {"privacy__epsilon": 3.0},
        {"model__name": "mlp"},
    ],
)
def test_without_a_seed_records_stay_where_they_are_whatever_else_changes(changed):
    for before, after in zip(_parts(), _parts(**changed), strict=True):
        assert np.array_equal(before, after)


def test_a_ledger_is_continued_only_where_its_records_lie(tmp_path):
    path = runs.small(tmp_path, UNSEEDED.replace('"privsgp"', '"privsgp-sag"'))
    runs.train(path, tmp_path / "first", "--set=algorithm.steps=5")
    again = ["--set=privacy.epsilon=4.0", "--set=algorithm.steps=5", "--ledger", tmp_path / "first" / "ledger"]
    moved = runs.command(
        "train", path, "--out", tmp_path / "moved", "--set=data.partition=dirichlet", "--set=data.sizes=", *again
    )
    assert moved.code == 2
    assert "whose records lay on other nodes" in moved.err
    assert runs.train(path, tmp_path / "second", *again)["releases"] == [5] * 4


@pytest.mark.parametrize(("trust", "hashed"), [("secure aggregation", False), ("per-node", True)])
def test_what_only_a_sum_may_show_is_not_hashed(trust, hashed, tmp_path):
    path = runs.small(tmp_path, UNSEEDED.replace('name = "privsgp"', f'name = "dp-srm"\ntrust = "{trust}"'))
    runs.train(path, tmp_path / "out", "--set=algorithm.steps=3")
    assert [bool(digest) for _, _, digest in runs.sent(tmp_path / "out")] == [hashed] * 3
    told = json.loads(runs.command("ledger", tmp_path / "out", "--json").out)
    assert [node["aggregated"] for node in told] == [1 if hashed else 4] * 4


def test_resume_says_what_there_is_to_resume(tmp_path):
    path, out = runs.small(tmp_path), tmp_path / "out"
    assert f"there is no run in {out} to resume" in runs.command("train", path, "--out", out, "--resume").err
    assert f"the run in {out} is finished" in runs.command("train", path, "--out", out, "--resume").err


def test_what_is_no_ledger_folder_is_refused(tmp_path):
    ran = runs.command("train", runs.small(tmp_path), "--out", tmp_path / "out", "--ledger", tmp_path / "nowhere")
    assert ran.code == 2
    assert f"--ledger {tmp_path / 'nowhere'} is no folder" in ran.err


def test_a_plan_of_a_configuration_takes_no_numbers_beside_it(tmp_path):
    ran = runs.command("plan", runs.small(tmp_path), "--epsilon", 1)
    assert ran.code == 2
    assert "--epsilon beside a run.toml" in ran.err
