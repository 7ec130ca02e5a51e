"""From a configuration to a run folder: step sizes, unequal nodes, seeds, and what may be seen of a private run."""

from __future__ import annotations

import json
import math
import stat
import tomllib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import privsgp
import runs
from privsgp.errors import Refused
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs import train as training
from privsgp.runs.budgets import calibrate_nodes

QUICK = runs.SMALL.replace("steps = 30", "steps = 8").replace("sigma = 0.05", "sigma = 0")


def _config(text=QUICK, **changes):
    values = tomllib.loads(text)
    for key, value in changes.items():
        section, _, name = key.partition("__")
        target, name = (values[section], name) if name else (values, section)
        target[name] = value
    return configs.parse(values)


def _run(config, out, **kwargs):
    return training.run(config, problems.load_problem(config), out, **kwargs)


def test_unequal_nodes_have_one_rate_and_their_own_batches():
    config = _config(data__sizes=[100, 200, 300, 400], algorithm__batch=50, privacy__sigma=[1, 2, 3, 4])
    protection = calibrate_nodes(config, [100, 200, 300, 400], 1e-6)
    assert [m.batch for m in protection.mechanisms] == pytest.approx([20, 40, 60, 80])
    assert {m.rate for m in protection.mechanisms} == {0.2}
    assert [m.samples for m in protection.mechanisms] == [100, 200, 300, 400]
    assert [m.sigma for m in protection.mechanisms] == [1, 2, 3, 4]


def test_budgets_become_noise_that_keeps_them():
    config = _config(QUICK.replace("sigma = 0", "epsilon = [0.5, 1, 2, 2]\nspare = 0.5"))
    protection = calibrate_nodes(config, [300] * 4, 0.0)
    assert protection.allowance == [12] * 4
    sigma = [m.sigma for m in protection.mechanisms]
    assert sigma[0] > sigma[1] > sigma[2] == sigma[3] > 0
    for node, budget in enumerate([0.5, 1, 2, 2]):
        assert 0.9 * budget < protection.epsilon(node, 12) <= budget


def test_published_noise_is_shown_beside_what_it_really_gives(tmp_path):
    config = _config(QUICK.replace("sigma = 0", 'epsilon = 3.0\naccountant = "published"'))
    summary = _run(config, tmp_path / "x").summary
    expected = 0.3724 * math.sqrt(8 * math.log(1e5)) / (300 * 3.0)
    assert summary["sigma"] == pytest.approx([expected] * 4)
    assert summary["epsilon_nominal"] == [3.0] * 4
    assert summary["epsilon_spent"] == [None] * 4  # a record shifts its mean by 11 σ, and noise ends at 10.2
    assert summary["accountant"] == "published"


def test_no_noise_has_no_finite_epsilon_and_sgp_none_at_all(tmp_path):
    assert _run(_config(), tmp_path / "zero").summary["epsilon_spent"] == [None] * 4
    text = QUICK.replace("sigma = 0", 'epsilon = 1.0\naccountant = "published"')
    summary = _run(_config(text, algorithm__name="sgp"), tmp_path / "sgp").summary
    assert [summary[key] for key in ("epsilon_spent", "epsilon_nominal", "epsilon_budget", "delta")] == [None] * 4
    assert list((tmp_path / "sgp" / "ledger").iterdir()) == []


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path):
    config = _config(privacy__sigma=0.1)
    for name, seed in {"a": 7, "b": 7, "c": 8}.items():
        _run(config.model_copy(update={"seed": seed}), tmp_path / name)
    for file in ("model.safetensors", "nodes/2.safetensors"):
        a, b, c = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert a == b
        assert a != c


def test_without_a_seed_runs_differ_and_nothing_outside_private_tells_of_the_data(tmp_path):
    config = _config(privacy__sigma=0.1, seed=None)
    a, b = (_run(config, tmp_path / name) for name in "ab")
    assert not torch.equal(a.nodes, b.nodes)
    assert a.summary["train_loss"] is None
    assert a.summary["simulation"] is False
    assert a.summary["seconds"].is_integer()
    out = tmp_path / "a"
    assert stat.S_IMODE((out / "private").stat().st_mode) == 0o700
    outside = [path for path in out.rglob("*") if path.is_file() and "private" not in path.parts]
    words = ("train_loss", "batch_size", "drawn", "clipped", "norm")
    for path in outside:
        text = path.read_bytes().decode("latin-1")
        assert not [word for word in words if word in text and not (path.name == "summary.json" and word == words[0])]
    header = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    assert header["simulation"] is False
    assert "seed" not in (out / "config.toml").read_text()


def test_a_simulation_says_so_everywhere(tmp_path):
    result = _run(_config(privacy__sigma=0.1), tmp_path)
    assert result.summary["simulation"] is True
    assert result.summary["train_loss"] > 0
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["simulation"] is True
    assert json.loads((tmp_path / "ledger" / "node-0.jsonl").read_text().splitlines()[0])["simulation"] is True


def test_without_a_seed_public_randomness_is_the_networks(tmp_path):
    """x⁰ and the partition follow from the shared configuration, whatever a site calls its run."""
    one, other = (problems.load_problem(_config(seed=None, name=name)) for name in ("a", "b"))
    assert all(torch.equal(p, q) for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True))
    assert all(np.array_equal(p, q) for p, q in zip(one.parts, other.parts, strict=True))
    third = problems.load_problem(_config(seed=None, algorithm__steps=9))
    assert not all(torch.equal(p, q) for p, q in zip(one.model.parameters(), third.model.parameters(), strict=True))


def test_float64_is_float64_throughout(tmp_path):
    result = _run(_config(engine__dtype="float64", algorithm__name="privsgp-vr"), tmp_path / "x")
    assert result.nodes.dtype == torch.float64
    tensors = load_file(tmp_path / "x" / "private" / "checkpoint.safetensors")
    assert {tensor.dtype for name, tensor in tensors.items() if tensor.is_floating_point()} == {torch.float64}
    single = _run(_config(algorithm__name="privsgp-vr"), tmp_path / "y")
    assert single.nodes.dtype == torch.float32
    np.testing.assert_allclose(result.nodes, single.nodes, rtol=1e-3, atol=1e-4)


def _regression(rows=60):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(rows, 5)).astype(np.float32)
    return {"x": x, "y": x @ np.array([1, -2, 0.5, 0, 3], np.float32) + 1}


def test_regression_has_no_accuracy(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    train, test = _regression(), _regression(20)
    np.savez(tmp_path / "r.npz", **train, x_test=test["x"], y_test=test["y"])
    text = QUICK.replace("nodes = 4", f'name = "{tmp_path / "r.npz"}"\nnodes = 4').replace(
        "300, 300, 300, 300", "15, 15, 15, 15"
    )
    changes = runs.changes(model__name="linear", model__loss="mse", algorithm__batch=15, algorithm__name="sgp")
    config = runs.small(tmp_path, text)
    ran = runs.command(
        "train", config, "--out", tmp_path / "x", *changes, *runs.changes(algorithm__step_size=0.2, algorithm__steps=60)
    )
    assert ran.code == 0, ran.err
    assert "accuracy" not in ran.out
    assert "–" not in ran.out
    summary = json.loads((tmp_path / "x" / "summary.json").read_text())
    assert [summary[key] for key in ("test_accuracy", "mean_node_accuracy", "worst_node_accuracy")] == [None] * 3
    assert summary["test_loss"] < 1e-3
    model = load_file(tmp_path / "x" / "model.safetensors")
    weight = next(tensor for tensor in model.values() if tensor.ndim == 2)
    np.testing.assert_allclose(weight[0], [1, -2, 0.5, 0, 3], atol=0.05)


def test_each_site_its_own_file(tmp_path):
    for node, rows in enumerate((10, 25, 40)):
        test = {f"{key}_test": value for key, value in _regression(5).items()} if node == 1 else {}
        np.savez(tmp_path / f"site-{node}.npz", **_regression(rows), **test)
    values = {"nodes": 3, "path": str(tmp_path / "site-{node}.npz")}
    config = _config(data=values, model={"name": "linear", "loss": "mse"}, algorithm__batch=5)
    result = _run(config, tmp_path / "x")
    assert result.summary["samples"] == [10, 25, 40]
    assert result.summary["test_loss"] > 0
    (tmp_path / "site-2.npz").unlink()
    with pytest.raises(Refused, match=r"site-2\.npz"):
        problems.load_problem(config)


def test_without_test_data_there_is_nothing_to_tell_but_the_consensus(tmp_path):
    np.savez(tmp_path / "r.npz", **_regression())
    data = {"name": str(tmp_path / "r.npz"), "nodes": 3}
    config = _config(data=data, model={"name": "linear", "loss": "mse"}, algorithm__batch=5, seed=None)
    summary = _run(config, tmp_path / "x").summary
    assert [summary[key] for key in ("test_loss", "test_accuracy", "train_loss")] == [None] * 3
    assert summary["consensus_error"] > 0


def test_the_result_is_what_lies_in_the_folder(tmp_path):
    config = _config(model={"name": "mlp", "hidden": [16, 8]})
    result = _run(config, tmp_path / "x")
    again = privsgp.load(tmp_path / "x")
    assert again.summary == result.summary == json.loads((tmp_path / "x" / "summary.json").read_text())
    assert [row["step"] for row in result.metrics] == [6, 8]
    assert torch.equal(again.nodes, result.nodes)
    state = load_file(tmp_path / "x" / "model.safetensors")
    assert all(torch.equal(value, state[name]) for name, value in result.model.state_dict().items())
    assert configs.read(tmp_path / "x" / "config.toml") == config


@pytest.mark.parametrize("name", ["model.safetensors", "nodes/1.safetensors"])
@pytest.mark.parametrize("damage", ["cut", "garbage", "another"])
def test_a_damaged_model_of_a_finished_run_is_refused_by_name(tmp_path, name, damage):
    config = _config()
    _run(config, tmp_path / "x")
    path = tmp_path / "x" / name
    whole = path.read_bytes()
    if damage == "another":
        save_file({"weight": torch.zeros(2)}, path)
    else:
        path.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"no model at all")
    with pytest.raises(Refused, match=rf"{name}.*\n.*put a copy of it back"):
        _run(config, tmp_path / "x", resume=True)


def test_the_saved_model_is_the_average_of_the_nodes(tmp_path):
    """On a graph that is not doubly stochastic: Σx/Σw with x = w z, weights from the checkpoint."""
    result = _run(_config(graph={"name": "random"}), tmp_path / "x")
    kept = load_file(tmp_path / "x" / "private" / "checkpoint.safetensors")
    assert kept["w"].sub(1).abs().max() > 0.01
    flat = torch.cat([p.detach().flatten() for p in result.model.parameters()])
    mean = kept["x"].double().sum(0) / kept["w"].sum()
    np.testing.assert_allclose(flat, mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(result.nodes, kept["x"] / kept["w"][:, None].float(), rtol=1e-6)


@pytest.mark.parametrize("algorithm", ["sgp", "privsgp", "privsgp-vr", "privsgp-sag"])
def test_every_algorithm_learns(tmp_path, algorithm):
    config = _config(algorithm__name=algorithm, algorithm__steps=40)
    assert _run(config, tmp_path / "x").summary["test_accuracy"] > 0.75


def test_a_graph_that_cannot_be_is_refused_before_anything_is_written(tmp_path):
    config = _config(data={"nodes": 7}, graph={"name": "torus"})
    with pytest.raises(Refused, match="prime"):
        _run(config, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_model_worse_than_the_base_rate_is_warned_of(tmp_path, caplog):
    _run(_config(runs.SMALL, privacy__sigma=50.0, algorithm__steps=2), tmp_path / "run")
    assert any("worse than predicting the base rate" in line for line in caplog.messages)
