"""Faults as a user asks for them, and a whole run that meets them."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

import runs
from privsgp import graph as graphs
from privsgp.errors import Interrupted, Refused
from privsgp.runs import build
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs import train as training
from privsgp.transport.lossy import Faults, LossyNetwork

RING, EXPONENTIAL = graphs.make("ring-directed", 8), graphs.make("exponential", 8)


def test_what_the_command_line_says():
    faults = Faults.parse(EXPONENTIAL, drop=0.1, delay=2, crash=["3@200", "4@10+5"], leave=["5@300"])
    assert faults.crashes == ((3, 200, 220), (4, 10, 15))
    assert faults.leaves == ((5, 300),)
    assert faults.down(12) == [4]
    assert faults.left(299) == []
    assert faults.left(300) == [5]
    assert Faults.parse(EXPONENTIAL) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"drop": 1.0}, "--drop 1.0"),
        ({"drop": -0.1}, "--drop -0.1"),
        ({"drop": float("nan")}, "--drop nan"),
        ({"delay": -1}, "--delay -1"),
        ({"drop": 0.1, "staleness": 0}, "--staleness 0"),
        ({"crash": ["3"]}, "--crash 3"),
        ({"crash": ["8@1"]}, "0 to 7"),
        ({"crash": ["3@1+0"]}, r"--crash 3@1\+0"),
        ({"leave": ["3@1+5"]}, r"--leave 3@1\+5"),
        ({"leave": ["x@1"]}, "--leave x@1"),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(Refused, match=words):
        Faults.parse(EXPONENTIAL, **options)


@pytest.mark.parametrize("option", ["crash", "leave"])
def test_a_fault_after_the_last_step_is_refused(tmp_path, option):
    config = configs.read(runs.small(tmp_path))
    given = {"drop": 0.0, "delay": 0, "crash": [], "leave": [], "staleness": 64}
    assert build.simulated_faults(config, **given | {option: ["3@29"]}) is not None
    with pytest.raises(Refused, match=f"--{option} 3@30 with algorithm.steps = 30") as refused:
        build.simulated_faults(config, **given | {option: ["3@30"]})
    assert "0 to 29" in refused.value.remedy


def test_nobody_may_leave_whom_the_others_need():
    assert Faults.parse(EXPONENTIAL, leave=["3@5"]) is not None
    with pytest.raises(Refused, match="would fall apart"):
        Faults.parse(RING, leave=["3@5"])
    with pytest.raises(Refused, match="would fall apart"):
        Faults.parse(EXPONENTIAL, leave=[f"{i}@5" for i in range(8)])


def _train(folder, faults, *, resume=False, **changes):
    config = configs.read(runs.small(folder), [c.removeprefix("--set=") for c in runs.changes(**changes)])
    return training.run(config, problems.load_problem(config), folder / "out", resume=resume, faults=faults)


def test_a_run_with_faults_learns_and_says_what_happened(tmp_path):
    (tmp_path / "calm").mkdir()
    (tmp_path / "rough").mkdir()
    faults = Faults(0.3, 2, ((1, 5, 12),), seed=1)
    calm, rough = _train(tmp_path / "calm", None), _train(tmp_path / "rough", faults)
    assert rough.summary["test_accuracy"] > calm.summary["test_accuracy"] - 0.1
    assert calm.summary["faults"] is None
    told = rough.summary["faults"]
    assert told["sent"] == 4 * 30 - 7
    assert 0.1 * told["sent"] < told["lost"] < 0.5 * told["sent"]
    assert rough.summary["releases"] == [30] * 4


def test_what_is_left_after_a_long_outage_is_not_written_as_a_model(tmp_path):
    """The others' weight drains into links to a node that is down: z = x / w would hold 1e18."""
    config = runs.small(tmp_path, runs.SMALL)
    options = [*runs.changes(algorithm__steps=150), "--crash", "0@20+200"]
    ran = runs.command("train", config, "--out", tmp_path / "out", *options)
    assert ran.code == 1
    assert "the weight of node 1 is w = " in ran.err
    for name in ("summary.json", "model.safetensors", "nodes/1.safetensors"):
        assert not (tmp_path / "out" / name).exists()


def test_a_node_that_left_is_not_part_of_the_model(tmp_path):
    result = _train(tmp_path, Faults(leaves=((2, 10),)))
    assert result.nodes.shape[0] == 3
    assert result.nodes.isfinite().all()
    assert not (tmp_path / "out" / "nodes" / "2.safetensors").exists()
    assert result.summary["faults"]["left"] == [[2, 10]]
    assert np.isfinite(result.summary["consensus_error"])
    assert result.summary["test_accuracy"] > 0.5


def test_it_is_resumed_with_the_same_faults_or_not_at_all(tmp_path, monkeypatch):
    faults = Faults(0.3, 2, ((1, 5, 12),), ((3, 16),), seed=1)
    (tmp_path / "whole").mkdir()
    _train(tmp_path / "whole", faults)
    mix = LossyNetwork.mix

    def stopping(self, k, *given):
        if k == 17:
            os.kill(os.getpid(), signal.SIGTERM)
        return mix(self, k, *given)

    with monkeypatch.context() as patch:
        patch.setattr(LossyNetwork, "mix", stopping)
        with pytest.raises(Interrupted):
            _train(tmp_path, faults)
    with pytest.raises(Refused, match="--resume with a changed configuration: faults"):
        _train(tmp_path, Faults(0.2), resume=True)
    _train(tmp_path, faults, resume=True)
    whole, resumed = (path / "out" / "model.safetensors" for path in (tmp_path / "whole", tmp_path))
    assert whole.read_bytes() == resumed.read_bytes()
