"""What is "auto" is planned by process 0 from what is public; all others check what it says, and take it."""

from __future__ import annotations

import json
import tomllib

import cluster
import pytest

import runs

AUTO = (
    runs.SMALL.replace("sigma = 0.05", "epsilon = 4.0")
    .replace("steps = 30", "steps = 8")
    .replace('"privsgp"', '"auto"')
    .replace("step_size = 0.5", 'step_size = "auto"')
)


def test_all_take_what_the_first_has_planned_and_keep_it(tmp_path):
    config, out = runs.small(tmp_path, AUTO), tmp_path / "out"
    summary = cluster.train(tmp_path / "said", config, out, 2)
    plan = json.loads((out / "plan.json").read_text())
    ran = tomllib.loads((out / "config.toml").read_text())["algorithm"]
    assert (ran["name"], ran["step_size"]) == (plan["algorithm"], plan["step_size"])
    assert len(plan["sigma"]) == len(summary["sigma"]) == 4
    assert summary["sigma"] == pytest.approx(plan["sigma"], rel=0.03)
    assert cluster.train(tmp_path / "said", config, out, 2, "--resume") == summary


def _ran(tmp_path, options, hook="", **told):
    config = runs.small(tmp_path, AUTO)
    words = [["train", config, "--out", tmp_path / f"out{rank}", *own] for rank, own in enumerate(options)]
    said = tmp_path / "said"
    return cluster.ended(said, cluster.start(said, words, hook, **told))


def test_what_is_left_open_is_left_open_by_all(tmp_path):
    first, second = _ran(tmp_path, [(), ("--set=algorithm.step_size=0.1",)])
    assert (first.code, second.code) == (2, 2)
    assert "auto: [" in first.err


def test_a_choice_that_cannot_be_is_refused(tmp_path):
    pattern, word = r'\{"name": "privsgp.*\}', '{"name": "privsgp", "step_size": -1.0}'
    first, second = _ran(tmp_path, [(), ()], "hostile.say", liar=0, about=0, pattern=pattern, word=word, patience=6.0)
    assert second.code == 2
    assert "process 0 says" in second.err
    assert "Traceback" not in first.err + second.err
    assert not list((tmp_path / "out1").glob("ledger/*"))
