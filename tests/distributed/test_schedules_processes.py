"""Schedules of clip and noise in several processes: the bytes and the count of one."""

from __future__ import annotations

import cluster

import runs


def test_processes_with_a_schedule_give_the_bytes_of_one(tmp_path):
    config = runs.small(tmp_path, cluster.IRREGULAR)
    options = [
        *runs.changes(algorithm__name="privsgp", algorithm__steps=8, privacy__sigma=0.1),
        "--set=privacy.clip={schedule='steps',start=1.0,end=0.2}",
        "--set=privacy.noise_schedule=optimal",
    ]
    one = runs.train(config, tmp_path / "one", *options)
    many = cluster.train(tmp_path / "said", config, tmp_path / "many", 2, *options)
    assert (tmp_path / "many" / "model.safetensors").read_bytes() == (
        tmp_path / "one" / "model.safetensors"
    ).read_bytes()
    assert many["epsilon_spent"] == one["epsilon_spent"]
    assert many["schedule"] == one["schedule"]
    assert len(one["schedule"]["stretches"]) == 4
