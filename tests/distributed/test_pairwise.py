"""Noise that nodes of different processes share: the same in a simulation, agreed on by keys where it is secret."""

from __future__ import annotations

import json

import cluster
import pytest

import runs

SHARED = """
name = "shared"
seed = 5
[data]
nodes = 6
sizes = [120, 90, 60, 130, 200, 40]
[model]
name = "logistic"
[graph]
name = "exponential"
[privacy]
sigma = [0.3, 0.3, 0.2, 0.3, 0.4, 0.3]
noise = "pairwise"
honest = 4
[algorithm]
name = "privsgp"
steps = 24
step_size = 0.3
weights = "noise"
[engine]
device = "cpu"
evaluate_every = 12
checkpoint_every = 5
"""


@pytest.mark.parametrize("processes", [2, 6])
def test_a_simulation_gives_the_bytes_that_one_process_gives(tmp_path, processes):
    config = runs.small(tmp_path, SHARED)
    alone = runs.train(config, tmp_path / "one")
    summary = cluster.train(tmp_path / "said", config, tmp_path / "many", processes)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "many")]
    assert models[0] == models[1]
    assert summary["pairwise"] == alone["pairwise"]
    assert summary["trust"] == "honest sites"


def test_secret_noise_of_pairs_cancels_between_processes(tmp_path):
    """So much noise that a model learns nothing unless it cancels."""
    text = SHARED.replace("seed = 5\n", "").replace("sizes = [120, 90, 60, 130, 200, 40]\n", "")
    text = text.replace("[0.3, 0.3, 0.2, 0.3, 0.4, 0.3]", "1.0").replace("steps = 24", "steps = 60")
    config = runs.small(tmp_path, text)
    shared = cluster.train(tmp_path / "said", config, tmp_path / "pairwise", 3)
    own = cluster.train(
        tmp_path / "said2", config, tmp_path / "independent", 3,
        *["--set=privacy.noise=independent", "--set=privacy.honest="],
    )  # fmt: skip
    assert not shared["simulation"]
    assert shared["test_accuracy"] > own["test_accuracy"] + 0.05
    header = json.loads((tmp_path / "pairwise" / "ledger" / "node-0.jsonl").read_text().split("\n")[0])
    assert header["mechanism"]["honest"] == 4
