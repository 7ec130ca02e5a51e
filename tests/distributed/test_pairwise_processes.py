"""Noise that nodes of different processes share: the same in a simulation, and none without a seed."""

from __future__ import annotations

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


def test_without_a_seed_processes_share_no_noise(tmp_path):
    config = runs.small(tmp_path, SHARED.replace("seed = 5\n", ""))
    said = tmp_path / "said"
    words = [["train", config, "--out", tmp_path / f"out{rank}"] for rank in range(2)]
    for one in cluster.ended(said, cluster.start(said, words)):
        assert one.code == 2
        assert "privsgp join" in one.err
    assert not any(list((tmp_path / f"out{rank}").glob("ledger/*")) for rank in range(2))
