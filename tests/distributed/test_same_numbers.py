"""A model does not depend on where its nodes live: any number of processes gives the bytes that one gives."""

from __future__ import annotations

import cluster
import pytest

import runs


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    config = runs.small(folder, cluster.IRREGULAR)
    return config, folder / "out", runs.train(config, folder / "out")


@pytest.mark.parametrize("processes", [2, 3, 8])
def test_processes_give_the_bytes_of_one(tmp_path, alone, processes):
    config, whole, expected = alone
    summary = cluster.train(tmp_path / "said", config, tmp_path / "out", processes)
    files = ["model.safetensors", *(f"nodes/{i}.safetensors" for i in range(11))]
    for file in files:
        assert (tmp_path / "out" / file).read_bytes() == (whole / file).read_bytes(), file
    for node in range(11):
        assert runs.sent(tmp_path / "out", node) == runs.sent(whole, node)
    assert runs.charged(tmp_path / "out") == runs.charged(whole) == [24] * 11
    for key in ("test_accuracy", "worst_node_accuracy", "epsilon_spent", "bytes_sent", "consensus_error", "samples"):
        assert summary[key] == expected[key], key


@pytest.mark.parametrize(
    ("algorithm", "sigma"),
    [("sgp", 0), ("privsgp", 0.1), ("privsgp-vr", 0), ("privsgp-vr", 0.1), ("dp2-sgd", 0.1)],  # θ: 1, and "auto"
)
def test_every_algorithm(tmp_path, algorithm, sigma):
    config = runs.small(tmp_path, cluster.IRREGULAR)
    options = runs.changes(
        algorithm__name=algorithm, privacy__sigma=sigma, algorithm__steps=8,
        graph__name="ring" if algorithm == "dp2-sgd" else "exponential",
    )  # fmt: skip
    options.append("--set=graph.degree=")  # of random graphs alone
    one = runs.train(config, tmp_path / "one", *options)
    many = cluster.train(tmp_path / "said", config, tmp_path / "many", 3, *options)
    assert many["difference_scale"] == one["difference_scale"]
    assert (one["difference_scale"] or 1) == 1 or sigma
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "many")]
    assert models[0] == models[1]


@pytest.mark.parametrize(("processes", "bits", "local", "network"), [(3, 4, 3, "random"), (2, 8, 1, "exponential")])
def test_messages_of_few_bits_and_local_steps(tmp_path, processes, bits, local, network):
    """With noise that pairs share, too: every layout has the same codes."""
    config = runs.small(tmp_path, cluster.IRREGULAR.replace("checkpoint_every = 5", f"[transport]\nbits = {bits}"))
    options = runs.changes(algorithm__local_steps=local, graph__name=network, privacy__noise="pairwise")
    options += ["--set=graph.degree="] * (network != "random")
    one = runs.train(config, tmp_path / "one", *options)
    many = cluster.train(tmp_path / "said", config, tmp_path / "many", processes, *options)
    for file in ("model.safetensors", *(f"nodes/{i}.safetensors" for i in range(11))):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "many" / file).read_bytes(), file
    assert runs.charged(tmp_path / "many") == runs.charged(tmp_path / "one") == [24] * 11
    assert many["bytes_sent"] == one["bytes_sent"]


def test_budgets_are_calibrated_by_their_owners_and_known_to_all(tmp_path):
    text = cluster.IRREGULAR.replace(cluster.IRREGULAR.split("[privacy]\n")[1].split("\n")[0], "epsilon = 6.0")
    config, options = runs.small(tmp_path, text), runs.changes(algorithm__name="privsgp", algorithm__steps=6)
    expected = runs.train(config, tmp_path / "one", *options)
    summary = cluster.train(tmp_path / "said", config, tmp_path / "many", 2, *options)
    assert summary["sigma"] == expected["sigma"]
    assert summary["epsilon_spent"] == expected["epsilon_spent"]
    assert len(set(summary["sigma"])) > 1


def test_a_finished_run_is_left_alone(tmp_path):
    config, out = runs.small(tmp_path, cluster.IRREGULAR), tmp_path / "out"
    few = runs.changes(algorithm__steps=4)
    first = cluster.train(tmp_path / "said", config, out, 2, *few)
    before = runs.contents(out)
    assert cluster.train(tmp_path / "said", config, out, 2, "--resume", *few) == first
    assert runs.contents(out) == before
    again = runs.command("train", config, "--out", out, "--resume", *few)
    assert again.code == 2
    assert "processes: 2 → 1" in again.err


def test_more_processes_than_nodes_are_refused(tmp_path):
    config = runs.small(tmp_path, runs.SMALL)
    words = [["train", config, "--out", tmp_path / "out"]] * 5
    for one in cluster.ended(tmp_path / "said", cluster.start(tmp_path / "said", words)):
        assert one.code == 2
        assert "5 processes with data.nodes = 4" in one.err
    assert not (tmp_path / "out").exists()
