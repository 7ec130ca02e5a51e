"""Evaluation: x̄ = Σx / Σw in float64, the consensus error of the paper, means over any number of samples."""

from __future__ import annotations

import dataclasses
import json
import tomllib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import runs
from privsgp import data
from privsgp.algorithms import State
from privsgp.engine.evaluate import Evaluator, average, consensus_error
from privsgp.engine.folder import read_metrics
from privsgp.gradients import Layout
from privsgp.outside import exactly, parse
from privsgp.runs import build
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs.resolve import resolve


def _state(seed, nodes=5, dim=7, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    x, w = torch.from_numpy(rng.normal(size=(nodes, dim))).to(dtype), torch.from_numpy(rng.uniform(0.2, 2, nodes))
    return State(x, w, x / w.to(dtype)[:, None])


@given(st.integers(0, 2**32 - 1))
def test_average_and_consensus_error_are_the_formulas(seed):
    s = _state(seed)
    x, w = s.x.numpy(), s.w.numpy()
    mean = x.sum(0) / w.sum()
    np.testing.assert_allclose(average(s).numpy(), mean, rtol=1e-13, atol=1e-13)
    apart = np.mean([np.linalg.norm(x[i] / w[i] - mean) ** 2 for i in range(len(w))])
    np.testing.assert_allclose(consensus_error(s), apart, rtol=1e-12)


def test_the_average_is_summed_in_float64():
    x = torch.tensor([[1e8], [1.0], [-1e8]])
    assert (x[0] + x[1] + x[2]).item() == 0  # float32 loses the small one
    s = State(x, torch.ones(3, dtype=torch.float64), x)
    assert average(s).item() == torch.tensor(1 / 3).item()
    assert average(s).dtype == torch.float32


def test_nodes_that_agree_have_no_consensus_error():
    w = torch.tensor([0.5, 1.5], dtype=torch.float64)
    z = torch.tensor([[1.0, -2.0]] * 2)
    assert consensus_error(State(z * w.float()[:, None], w, z)) == pytest.approx(0, abs=1e-13)


@pytest.mark.parametrize("samples", [1, 2047, 2048, 2049, 5000])
def test_a_mean_over_many_samples_is_the_mean(samples):
    model = nn.Linear(3, 2)
    layout = Layout.of(model)
    generator = torch.Generator().manual_seed(samples)
    inputs, targets = torch.randn(samples, 3, generator=generator), torch.randint(2, (samples,), generator=generator)
    x = torch.randn(8, generator=generator)
    loss = nn.CrossEntropyLoss(reduction="none")
    weight, bias = x[:6].reshape(2, 3), x[6:]
    got = Evaluator(model, layout, spec=None, world=None).mean(loss, x, inputs, targets)
    expected = loss(inputs @ weight.T + bias, targets).double().mean().item()
    assert got == pytest.approx(expected, rel=1e-6)


TESTED = ("test_accuracy", "test_loss", "mean_node_accuracy", "worst_node_accuracy")


def _own(tmp_path, **changes):
    """Train without a seed on a file that has test records of its own."""
    d = data.load("digits")
    np.savez(tmp_path / "own.npz", x=d.x, y=d.y, x_test=d.x_test, y_test=d.y_test, classes=10)
    config = runs.small(tmp_path, runs.SMALL.replace("seed = 7\n", "").replace("steps = 30", "steps = 12"))
    changed = runs.changes(data__name=str(tmp_path / "own.npz"), **changes)
    ran = runs.command("train", config, "--out", tmp_path / "run", "--json", *changed)
    assert ran.code == 0, ran.err
    return json.loads(ran.out), ran.err


def test_metrics_on_test_records_stay_in_private_unless_they_are_declared_public(tmp_path):
    summary, said = _own(tmp_path)
    assert [summary[key] for key in TESTED] == [None] * 4
    assert "data.test = 'private'" in said
    assert summary["test_data"].startswith("private")
    kept = read_metrics(tmp_path / "run" / "private" / "metrics.jsonl")
    assert [row["step"] for row in kept] == [6, 12]
    assert all(set(TESTED) < set(row) for row in kept)
    told = [number.encode() for row in kept for key in TESTED if len(number := str(row[key])) > 8]  # 0.25 is anywhere
    outside = [p for p in (tmp_path / "run").rglob("*") if p.is_file() and "private" not in p.parts]
    for path in outside:
        raw = path.read_bytes()
        assert not any(value in raw for value in told), path
        assert path.suffix in (".json", ".html", ".toml") or not any(key.encode() in raw for key in TESTED), path


def test_a_test_set_that_is_declared_public_is_shown(tmp_path):
    summary, said = _own(tmp_path, data__test="public")
    assert summary["test_accuracy"] > 0.25  # twelve steps, with noise that nobody knows
    assert "data.test = 'public'" in said
    assert summary["test_data"].startswith("public")
    assert not (tmp_path / "run" / "private" / "metrics.jsonl").exists()


def test_published_test_sets_and_simulations_are_as_they_were(tmp_path):
    config = runs.small(tmp_path, runs.SMALL.replace("seed = 7\n", "").replace("steps = 30", "steps = 3"))
    ran = runs.command("train", config, "--out", tmp_path / "digits", "--json")
    assert json.loads(ran.out)["test_accuracy"] > 0.1
    assert "data.test" not in ran.err
    summary, said = _own(tmp_path, seed=3)
    assert summary["test_accuracy"] > 0.5
    assert "data.test" not in said


def test_a_report_of_an_older_run_does_not_show_them_either(tmp_path):
    _own(tmp_path)
    run = tmp_path / "run"
    summary, marks = json.loads((run / "summary.json").read_text()), dict.fromkeys(TESTED, 0.123456)
    (run / "summary.json").write_text(json.dumps(summary | marks))
    rows = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(rows + json.dumps({"step": 12} | marks) + "\n")
    assert runs.command("report", run).code == 0
    assert "12.3" not in (run / "report.html").read_text()


class _Others:
    """Another process with two more nodes, which has told its own accuracies; what is said to it is kept."""

    alone = False

    def all_gather_nodes(self, own, kind, nodes):
        for said in ([*own], [0.0, 1.0, None, 0.5]):
            assert parse(exactly(4, kind), json.dumps(said)) == said
        with pytest.raises(ValueError, match="less than or equal to 1"):
            parse(exactly(4, kind), "[0.0, 1.1, 0.5, 0.5]")
        self.said = own
        return own


def test_how_well_a_site_does_on_its_own_test_data_is_told_only_where_it_is_to_be():
    config = configs.parse(tomllib.loads(runs.SMALL))
    spec, world = build.build_run(resolve(config, problems.load_problem(config))), _Others()
    model = spec.learning.model
    s = State.start(Layout.of(model).flatten(model), 4)
    row = Evaluator(model, Layout.of(model), spec, world).row(3, 1.0, s)
    assert row["mean_node_accuracy"] == pytest.approx(np.mean(world.said))
    row = Evaluator(model, Layout.of(model), dataclasses.replace(spec, share_metrics=False), world).row(3, 1.0, s)
    assert world.said == [None] * 4
    assert not [key for key in row if "accuracy" in key or "loss" in key]
