"""Momentum, weights, averages, final mixing and features: any number of processes gives the bytes that one gives."""

from __future__ import annotations

import cluster
import numpy as np
import pytest
from sklearn.datasets import load_digits

import runs

ALL = runs.changes(
    algorithm__momentum=0.7, algorithm__average="tail", algorithm__final_mixing=2, algorithm__weights="noise",
    algorithm__steps=8,
)  # fmt: skip
OTHERS = runs.changes(
    algorithm__momentum=0.5, algorithm__average="tail", algorithm__weights="samples", algorithm__steps=8
)
FEATURES = runs.changes(features__name="scattering")


@pytest.mark.parametrize("options", [ALL, OTHERS], ids=["all", "others"])
def test_steps_and_averages(tmp_path, options):
    _same(tmp_path, runs.small(tmp_path, cluster.IRREGULAR), options)


def test_features(tmp_path, monkeypatch):
    monkeypatch.setenv("PRIVSGP_CACHE", str(tmp_path / "cache"))
    x, y = load_digits(return_X_y=True)
    images = (x / 16).reshape(-1, 8, 8).astype(np.float32)
    np.savez(tmp_path / "images.npz", x=images[300:], y=y[300:], x_test=images[:300], y_test=y[:300])
    config = runs.small(tmp_path, cluster.IRREGULAR)
    named = runs.changes(data__name=str(tmp_path / "images.npz"), algorithm__steps=6)
    _same(tmp_path, config, [*named, *FEATURES])
    # each node's features have a file, and so has the test set: all were computed once
    assert len(list((tmp_path / "cache" / "features").iterdir())) == 12


def _same(tmp_path, config, options):
    expected = runs.train(config, tmp_path / "one", *options)
    summary = cluster.train(tmp_path / "said", config, tmp_path / "many", 3, *options)
    for file in ("model.safetensors", *(f"nodes/{i}.safetensors" for i in range(11))):
        assert (tmp_path / "many" / file).read_bytes() == (tmp_path / "one" / file).read_bytes(), file
    for key in ("test_accuracy", "bytes_sent", "consensus_error", "weights", "model", "dim"):
        assert summary[key] == expected[key], key
