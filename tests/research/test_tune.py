"""The search for free parameters: never on private data, never worse than where it started, and what it writes runs."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import runs
from privsgp.errors import Refused
from privsgp.planner import settle as planning
from privsgp.research import tune as tuning
from privsgp.research.tune import Trial, applied, search, start, tune
from privsgp.runs import config as configs
from privsgp.runs import problem as problems

TEXT = runs.SMALL.replace("sigma = 0.05", "epsilon = 3.0").replace("step_size = 0.5", "step_size = 0.002")


def _config(tmp_path, *changes):
    return configs.read(runs.small(tmp_path, TEXT), changes)


class _Bowl:
    """A score with its top at γ = 0.4, clip 2, momentum 0.5 and no average."""

    largest_batch = 100.0

    def __init__(self):
        self.scores = {}

    def __call__(self, t):
        distance = math.log2(t.step_size * t.clip / 0.8) ** 2 + math.log2(t.clip / 2) ** 2
        self.scores[t] = 1 / (1 + 0.1 * (distance + (t.momentum - 0.5) ** 2 + t.share))
        return self.scores[t]


def test_the_search_climbs_to_the_top_and_stops():
    bowl = _Bowl()
    best = search(bowl, Trial(0.05, 0.5, 16.0, 100, 0.0, 0.5), 1000, lambda _: None)
    assert (best.step_size, best.clip, best.momentum, best.share) == (0.4, 2.0, 0.5, 0.0)
    assert bowl.scores[best] == max(bowl.scores.values())


def test_a_search_keeps_to_its_number_of_trials():
    bowl = _Bowl()
    search(bowl, Trial(0.001, 0.5, 16.0, 100, 0.0, 0.5), 7, lambda _: None)
    assert len(bowl.scores) <= 7


def test_a_trial_and_a_configuration_say_the_same(tmp_path):
    config = _config(tmp_path, "algorithm.name=privsgp-vr", "algorithm.difference_clip=0.5", "privacy.clip=2.0")
    trial = Trial(0.1, 1.0, 32.0, 60, 0.9, 0.25)
    changed = applied(config, trial)
    assert start(changed) == trial
    assert changed.algorithm.difference_clip == 0.25
    assert start(applied(changed, start(config))) == start(config)


def test_tuning_on_synthetic_data_helps_there_and_its_configuration_runs(tmp_path):
    config, tuned = runs.small(tmp_path, TEXT), tmp_path / "tuned.toml"
    ran = runs.command("tune", config, "--public", "synthetic", "--out", tuned, "--trials", "9", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    scores = [trial["score"] for trial in found["trials"]]
    begun = next(t["score"] for t in found["trials"] if t["step_size"] == 0.002 and t["clip"] == 1.0)
    best = next(t["score"] for t in found["trials"] if {**found["best"], "score": t["score"]} == t)
    assert len(scores) <= 9
    assert best == max(scores) > begun + 0.05
    assert found["looked_at"] == "synthetic stand-in data: nothing was spent"
    summary = runs.train(tuned, tmp_path / "out", *runs.changes(algorithm__steps=30))
    assert max(summary["epsilon_spent"]) <= 3.0


def test_public_data_is_what_is_looked_at(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "public.npz", x=rng.standard_normal((200, 64)), y=rng.integers(0, 10, 200))
    seen = []
    monkeypatch.setattr(
        tuning, "search", lambda rehearse, trial, *_: seen.append(rehearse.rehearsal.runs[0].x) or trial
    )
    found, _ = tune(_config(tmp_path), str(tmp_path / "public.npz"))
    assert "declares public" in found["looked_at"]
    assert seen[0].shape == (100, 64)


@pytest.mark.parametrize("name", ["digits", "private"])
def test_the_nodes_own_data_are_refused(tmp_path, name):
    with pytest.raises(Refused, match="the nodes' own data"):
        tune(_config(tmp_path), name)


@pytest.mark.parametrize("change", ["algorithm.steps=auto", "privacy.epsilon="])
def test_a_search_needs_a_budget_and_somewhere_to_start(tmp_path, change):
    changes = [change] if change.startswith("algorithm") else [change, "privacy.sigma=0.1"]
    with pytest.raises(Refused, match="tune with"):
        tune(_config(tmp_path, *changes), "synthetic")


def test_the_largest_batch_is_one_that_every_node_can_draw(tmp_path):
    """Sixteen nodes share 1442 digits: their mean, 90.125, is more than most of them have."""
    config = _config(tmp_path, "data.nodes=16", "data.sizes=", "algorithm.batch=90")
    problem = problems.load_problem(config)
    rehearse = tuning.Rehearse(config, planning.network_of(config, problem), None)
    assert rehearse.network.mean_samples == 90.125
    larger = list(tuning._neighbours(start(config), rehearse.largest_batch))[-1]
    assert larger.batch == 90
    assert rehearse._spec(larger).settings.clip == 1.0  # its noise has a price
