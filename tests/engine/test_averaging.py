"""Averages of iterates: the numbers they should be, and runs that release them."""

from __future__ import annotations

import random

import pytest
import torch
from safetensors.torch import load_file

import runs
from privsgp.algorithms import State
from privsgp.engine.averaging import Averaging, FinalModel
from privsgp.engine.evaluate import average
from privsgp.engine.trainer import Trainer

EVERYTHING = runs.changes(
    algorithm__momentum=0.5,
    algorithm__average="tail",
    algorithm__average_share=0.4,
    algorithm__final_mixing=3,
    algorithm__weights=[1.0, 2.0, 3.0, 4.0],
)


def _states(steps):
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        x = torch.randn(3, 5, generator=generator, dtype=torch.float64)
        w = torch.rand(3, generator=generator, dtype=torch.float64) + 0.5
        yield State(x, w, x / w[:, None])


def _run(release, states):
    averaging = Averaging(release, len(states), states[0])
    for k, s in enumerate(states):
        averaging.add(k, s)
    return averaging.released(states[-1])


def test_the_tail_is_the_mean_of_the_last_steps():
    states = list(_states(10))
    out = _run(FinalModel(average="tail", average_share=0.3), states)
    torch.testing.assert_close(out.x, sum(s.x for s in states[-3:]) / 3)
    torch.testing.assert_close(out.w, sum(s.w for s in states[-3:]) / 3)
    torch.testing.assert_close(out.z, out.x / out.w[:, None])


@pytest.mark.parametrize(
    "release", [FinalModel(), FinalModel(average="tail", average_share=0.2)], ids=["none", "not begun"]
)
def test_without_an_average_the_state_is_released(release):
    states = list(_states(10))
    averaging = Averaging(release, 10, states[0])
    averaging.add(3, states[3])
    assert averaging.released(states[3]) is states[3]


def test_a_run_killed_at_random_moments_ends_with_the_same_bytes(tmp_path):
    options = EVERYTHING
    config, draw = runs.small(tmp_path), random.Random(1)
    expected = runs.train(config, tmp_path / "whole", *options)
    arguments = ("train", config, "--out", tmp_path / "broken", "--resume", *options)
    assert sum(runs.killed(*arguments, moments=draw.randrange(20, 110)) for _ in range(3)) >= 1
    summary = runs.train(config, tmp_path / "broken", "--resume", *options)
    for file in ("model.safetensors", "nodes/0.safetensors", "nodes/3.safetensors"):
        assert (tmp_path / "broken" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes(), file
    assert runs.sent(tmp_path / "broken") == runs.sent(tmp_path / "whole")
    assert summary["bytes_sent"] == expected["bytes_sent"]


def test_what_is_released_costs_no_privacy_and_is_what_was_measured(tmp_path):
    config = runs.small(tmp_path, runs.SMALL.replace("sigma = 0.05", "epsilon = 2.0"))
    plain, kept = runs.train(config, tmp_path / "plain"), runs.train(config, tmp_path / "kept", *EVERYTHING)
    for key in ("epsilon_spent", "sigma", "releases"):
        assert kept[key] == plain[key]
    assert runs.charged(tmp_path / "kept") == runs.charged(tmp_path / "plain")
    assert kept["model"] == "averaged over the last 40% of the steps, mixed 3 times more"
    assert kept["weights"] == [0.1, 0.2, 0.3, 0.4]
    assert kept["consensus_error"] < plain["consensus_error"] / 10
    assert kept["bytes_sent"] == plain["bytes_sent"] // 30 * 33
    assert runs.evaluated(tmp_path / "kept") == [6, 12, 18, 24, 30]


def test_the_released_model_is_the_mean_of_the_last_average_models(tmp_path, monkeypatch):
    config, seen = runs.small(tmp_path), []
    keep = Trainer._keep
    monkeypatch.setattr(
        Trainer, "_keep", lambda self, k, seconds: seen.append(average(self.state)) or keep(self, k, seconds)
    )
    runs.train(config, tmp_path / "out", *EVERYTHING)
    model = load_file(tmp_path / "out" / "model.safetensors")
    flat = torch.cat([model[name].reshape(-1) for name in ("1.weight", "1.bias")])
    torch.testing.assert_close(flat, torch.stack(seen[-12:]).mean(0), rtol=0, atol=1e-5)
