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
    lines = [json.loads(line) for line in (tmp_path / "out" / "ledger" / "node-0.jsonl").read_text().splitlines()]
    assert [bool(line["digest"]) for line in lines if line["kind"] == "sent"] == [hashed] * 3
    told = runs.command("ledger", tmp_path / "out").out
    assert ("only sums of 4 nodes seen" in " ".join(told.split())) == (not hashed)
