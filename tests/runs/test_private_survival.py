"""Survival from the command line: curves by group before training, and metrics of a model on held-out persons."""

from __future__ import annotations

import json

import numpy as np
import pytest

import runs

SCHEMA = """
[target]
type = "survival"
time = "days"
event = "died"
bins = [50, 100, 200, 300, 400]
[columns]
age = { type = "number", range = [20, 100] }
sex = { type = "category", values = ["F", "M", "other"], missing = "other" }
"""
RUN = """
name = "days"
[data]
schema = "schema.toml"
sites = ["aachen", "basel"]
path = "{site}.csv"
[model]
name = "hazard"
loss = "survival"
[privacy]
epsilon = 2.0
delta = 1e-4
clip = 2.0
[algorithm]
name = "privsgp"
batch = 100
steps = 40
step_size = 1.0
[evaluation]
share = 0.4
epsilon = 4.0
delta = 1e-4
subgroups = ["sex"]
"""


@pytest.fixture
def place(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "run.toml").write_text(RUN)
    for name in ("aachen", "basel"):
        age, sex = rng.uniform(40, 80, 2500), rng.choice(["F", "M", ""], 2500, p=[0.4, 0.4, 0.2])
        time = rng.exponential(300 * np.exp(-(age - 60) / 8 + 0.5 * (sex == "F")))
        seen = rng.uniform(50, 500, 2500)
        lines = [f"{a:.2f},{s},{min(t, c):.2f},{int(t <= c)}" for a, s, t, c in zip(age, sex, time, seen, strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,sex,days,died", *lines]) + "\n")
    return tmp_path


def test_curves_by_group_are_described(place):
    options = ("--epsilon", 1, "--columns", "days", "--by", "sex", "--json", "--out", place / "out")
    ran = runs.command("describe", place / "run.toml", *options)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)["columns"]
    told = {(one["group"], one["metric"]): one["value"] for one in found["days by sex"]["estimates"]}
    assert told["sex = F", "survival at 200"] > told["sex = M", "survival at 200"] + 0.05
    assert told["sex = F", "survival at 200"] > told["sex = missing", "survival at 200"]  # not counted as "other"
    assert told["sex = other", "survival at 200"] is None
    assert [one["metric"] for one in found["days"]["estimates"]][-1] == "survival at 400"


def test_moments_of_times_are_refused(place):
    ran = runs.command("describe", place / "run.toml", "--epsilon", 1, "--moments", 2)
    assert (ran.code, "--moments does not go with a survival target" in ran.err) == (2, True)


def test_a_model_is_evaluated_on_held_out_persons_and_reported(place):
    assert runs.command("train", place / "run.toml", "--out", place / "run").code == 0
    ran = runs.command("evaluate", place / "run", place / "run.toml", "--private", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    metrics = {(one["metric"], one["group"]): one["value"] for one in found["metrics"]}
    assert metrics["c_index", "all"] > 0.7
    assert 0.3 < metrics["survival at 200", "sex = F"] < 0.7
    assert [one["time"] for one in found["curves"]["survival"]] == [50, 100, 200, 300, 400]
    assert runs.command("report", place / "run", "--out", place / "page.html").code == 0
    assert "C-index" in (place / "page.html").read_text().partition("The model on held-out patients")[2]
    ran = runs.command("evaluate", place / "run", place / "run.toml", "--private", "--set", "evaluation.time=150")
    assert (ran.code, "take one of" in ran.err) == (2, True)
