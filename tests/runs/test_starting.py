"""A run that starts from an earlier model: on the same records one budget pays for both, or it is refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import privsgp
import runs
from privsgp.accounting.statements import statements
from privsgp.errors import Refused
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs.starting import Start

STEPS = ("--set=algorithm.steps=4",)
SECRET = (*STEPS, "--set=seed=", "--set=privacy.sigma=", "--set=privacy.epsilon=1.0",
          "--set=algorithm.name=privsgp-sag")  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A simulation and a private run on digits."""
    folder = tmp_path_factory.mktemp("starts")
    config = runs.small(folder)
    runs.train(config, folder / "simulated", *STEPS)
    runs.train(config, folder / "secret", *SECRET)
    return folder


def _train(place, out, *options):
    return runs.command("train", place / "run.toml", "--out", out, "--json", *options)


def test_it_starts_from_the_weights_of_the_earlier_model(place, tmp_path):
    config = configs.read(place / "run.toml")
    problem = Start.of(place / "simulated").put_into(problems.load_problem(config))
    tensors = load_file(place / "simulated" / "model.safetensors")
    assert all(torch.equal(value, tensors[name]) for name, value in problem.model.state_dict().items())
    ran = _train(place, tmp_path / "on", *STEPS, "--from", place / "simulated")
    assert ran.code == 0, ran.err
    before = json.loads((place / "simulated" / "summary.json").read_text())
    after = json.loads(ran.out)
    assert after["test_loss"] < before["test_loss"]
    assert after["started_from"] == {"run": json.loads((place / "simulated" / "run.json").read_text())["run"],
                                     "counted": False}  # fmt: skip


def test_a_private_run_on_the_same_records_needs_the_ledger(place, tmp_path):
    ran = _train(place, tmp_path / "on", *SECRET, "--from", place / "secret")
    assert ran.code == 2
    assert "add up" in ran.err
    assert "--ledger" in ran.err
    assert not (tmp_path / "on").exists()


def test_with_the_ledger_one_budget_pays_for_both(place, tmp_path):
    first = max(s.epsilon for s in statements(place / "secret"))
    more = ("--set=privacy.epsilon=4.0", "--ledger", place / "secret")  # the run folder stands for its ledgers
    ran = _train(place, tmp_path / "on", *SECRET, "--from", place / "secret", *more)
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert told["started_from"]["counted"] is True
    spent = statements(place / "secret")
    assert all(s.runs == 2 and first < s.epsilon <= 4.0 for s in spent)
    assert max(told["epsilon_spent"]) == pytest.approx(max(s.epsilon for s in spent))
    assert "is counted here" in (tmp_path / "on" / "model-card.md").read_text()


def test_a_model_that_protects_nobody_is_no_start_for_a_private_run(place, tmp_path):
    ran = _train(place, tmp_path / "on", *SECRET, "--from", place / "simulated", "--from-records", "public")
    assert ran.code == 2  # public or not: it is of these records
    assert "add up" in ran.err


def _sites(folder):
    rng = np.random.default_rng(0)
    for node in range(2):
        x, y = rng.normal(size=(60, 64)), np.arange(60) % 10
        np.savez(folder / f"site-{node}.npz", x=x, y=y, classes=10)
    return ("--set=data.nodes=2", "--set=data.sizes=", f"--set=data.path={folder}/site-{{node}}.npz")


def test_on_other_records_it_is_said_loudly(place, tmp_path):
    ran = _train(place, tmp_path / "on", *SECRET, *_sites(tmp_path), "--from", place / "secret")
    assert ran.code == 2
    others = ("--from-records", "others")
    ran = _train(place, tmp_path / "on", *SECRET, *_sites(tmp_path), "--from", place / "secret", *others)
    assert ran.code == 0, ran.err
    assert "not counted here" in " ".join(ran.err.split())
    own = _train(place, tmp_path / "sim", *STEPS, *_sites(tmp_path))
    assert own.code == 0, own.err
    ran = _train(place, tmp_path / "again", *SECRET, "--from", tmp_path / "sim", *others)
    assert ran.code == 2
    assert "protects nobody" in ran.err
    ran = _train(place, tmp_path / "again", *SECRET, "--from", tmp_path / "sim", "--from-records", "public")
    assert ran.code == 0, ran.err


def test_a_resumed_run_starts_from_the_same(place, tmp_path):
    out = tmp_path / "on"
    assert runs.killed("train", place / "run.toml", "--out", out, "--from", place / "simulated", steps=10)
    ran = _train(place, out, "--resume")
    assert ran.code == 2
    assert "start: {" in ran.err
    assert _train(place, out, "--resume", "--from", place / "simulated").code == 0


def test_another_model_and_no_run_are_refused(place, tmp_path):
    (tmp_path / "none").mkdir()
    assert "no finished run" in _train(place, tmp_path / "on", "--from", tmp_path / "none").err
    ran = _train(place, tmp_path / "on", *STEPS, "--set=model.name=mlp", "--from", place / "simulated")
    assert (ran.code, "other weights" in ran.err) == (2, True)


def test_a_module_from_a_private_run_is_known_for_what_it_is(place, tmp_path):
    """From Python a model is handed over: it says where it comes from."""
    result = privsgp.load(place / "secret")
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(100, 64)).astype(np.float32), np.arange(100) % 10
    settings = {
        "nodes": 2,
        "classes": 10,
        "privacy": {"epsilon": 1.0},
        "algorithm": {"name": "privsgp-sag", "steps": 2},
    }
    first = privsgp.train(result.model, arrays, out=tmp_path / "a", start_records="others", **settings)
    with pytest.raises(Refused, match="add up") as refused:
        privsgp.train(first.model, arrays, out=tmp_path / "b", **settings)
    assert "ledger=" in refused.value.remedy
    assert "--" not in str(refused.value)
    more = settings | {"privacy": {"epsilon": 3.0}}
    both = privsgp.train(first.model, arrays, out=tmp_path / "b", ledger=tmp_path / "a", **more)
    assert both.summary["started_from"]["counted"]
    again = privsgp.train(result.model, arrays, start=tmp_path / "a", ledger=tmp_path / "a", out=tmp_path / "c",
                          **settings | {"privacy": {"epsilon": 9.0}})  # fmt: skip
    assert again.summary["started_from"]["counted"]


def test_layers_of_a_private_model_and_features_made_by_one_are_known_too(place, tmp_path):
    model, rng = privsgp.load(place / "secret").model, np.random.default_rng(0)
    arrays = rng.normal(size=(100, 64)).astype(np.float32), np.arange(100) % 10
    settings = {"nodes": 2, "classes": 10, "privacy": {"epsilon": 1.0}, "algorithm": {"name": "privsgp", "steps": 2}}
    layers = nn.Sequential(*model.children(), nn.Linear(10, 10))
    for name, given in {
        "layers": {"model": layers},
        "features": {"model": nn.Linear(10, 10), "features": model},
    }.items():
        with pytest.raises(Refused, match="add up"):
            privsgp.train(data=arrays, out=tmp_path / name, **given, **settings)
        assert not (tmp_path / name).exists()


def test_a_ledger_that_does_not_know_the_run_that_is_started_from_pays_for_nothing(place, tmp_path):
    other = tmp_path / "other"
    assert _train(place, other, *SECRET).code == 0
    copy = tmp_path / "copy"
    shutil.copytree(place / "secret", copy)
    shutil.rmtree(copy / "ledger")
    shutil.copytree(other / "ledger", copy / "ledger")  # of the same records, and of another run
    more = ("--set=privacy.epsilon=4.0", "--from", copy, "--ledger", copy)
    ran = _train(place, tmp_path / "on", *SECRET, *more)
    assert ran.code == 2
    assert "knows nothing of the run" in ran.err
