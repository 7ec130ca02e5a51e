"""The methods the paper compares with, as whole runs: what they refuse, and what they leave behind."""

from __future__ import annotations

import numpy as np
import pytest

import runs
from privsgp import config, training
from privsgp.errors import Refused

BUDGETS = [3.0, 1.0, 2.0, 4.0]


def small(tmp_path, **values):
    changes = [change.removeprefix("--set=") for change in runs.changes(**values)]
    return config.read(runs.small(tmp_path), ["privacy.sigma=", "privacy.epsilon=2.0", *changes])


def test_dp_sgd_pools_all_data_at_the_same_rate_and_the_strictest_budget(tmp_path):
    delta = [1e-5, 1e-6, 1e-5, 1e-4]
    told = small(tmp_path, algorithm__name="dp-sgd", privacy__epsilon=BUDGETS, privacy__delta=delta)
    problem = training.load_problem(told)
    job = training.prepare(told, problem)
    (mechanism,) = job.protection.mechanisms
    assert (mechanism.samples, mechanism.batch, mechanism.rate) == (1200, 64, 16 / 300)
    assert (job.protection.budgets, job.protection.deltas) == ([1.0], [1e-6])
    rows = np.concatenate(problem.parts)
    assert np.array_equal(job.learning.inputs[0, :-1].numpy(), problem.dataset.x[rows])


def test_dp_sgd_is_one_node_and_everything_else_is_as_ever(tmp_path):
    summary = runs.train(runs.small(tmp_path), tmp_path / "out", *runs.changes(algorithm__name="dp-sgd"))
    assert (summary["nodes"], summary["samples"], summary["trust"]) == (1, [1200], "curator")
    assert len(summary["epsilon_spent"]) == 1
    assert summary["bytes_sent"] == 0
    assert runs.charged(tmp_path / "out") == [30]


def test_alone_every_node_has_its_own_model_and_budget(tmp_path):
    options = ["--set=privacy.sigma=", *runs.changes(privacy__epsilon=BUDGETS, algorithm__name="local")]
    summary = runs.train(runs.small(tmp_path), tmp_path / "out", *options)
    assert summary["test_accuracy"] == summary["mean_node_accuracy"] > summary["worst_node_accuracy"]
    assert summary["bytes_sent"] == 0
    assert summary["train_loss"] is None
    assert all(spent <= budget for spent, budget in zip(summary["epsilon_spent"], BUDGETS, strict=True))
    assert summary["epsilon_spent"][3] > 3
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert len(list((tmp_path / "out" / "nodes").iterdir())) == 4


@pytest.mark.parametrize("name", ["d-psgd", "dp2-sgd"])
@pytest.mark.parametrize("graph", ["exponential", "ring-directed", "random"])
def test_links_that_do_not_go_both_ways_are_refused(tmp_path, name, graph):
    with pytest.raises(Refused, match=f"graph.name = '{graph}'") as refused:
        training.make_graph(small(tmp_path, algorithm__name=name, graph__name=graph))
    assert "graph.name = 'ring'" in refused.value.remedy


def test_methods_without_noise_say_that_privacy_is_ignored(tmp_path):
    changes = runs.changes(algorithm__name="d-psgd", graph__name="ring")
    ran = runs.command("train", runs.small(tmp_path), "--out", tmp_path / "out", *changes)
    assert "d-psgd adds no noise and does not clip: [privacy] is ignored" in ran.err
    assert runs.train(runs.small(tmp_path), tmp_path / "out", "--resume", *changes)["epsilon_spent"] is None


@pytest.mark.parametrize("name", ["local", "dp2-sgd"])
def test_faults_need_push_sum(tmp_path, name):
    changes = runs.changes(algorithm__name=name, graph__name="ring")
    ran = runs.command("train", runs.small(tmp_path), "--out", tmp_path / "out", "--drop", "0.1", *changes)
    assert ran.code == 2
    assert f"faults with algorithm.name = '{name}'" in ran.err


def test_the_planner_refuses_what_it_cannot_rehearse(tmp_path):
    path = runs.small(tmp_path)
    for command, told in (("train", "algorithm.steps = 'auto' with"), ("plan", "a plan for")):
        auto = runs.changes(algorithm__steps="auto") if command == "train" else []
        options = ["--set=privacy.sigma=", *runs.changes(privacy__epsilon=2.0, algorithm__name="local"), *auto]
        ran = runs.command(command, path, *options)
        assert ran.code == 2
        assert f"{told} algorithm.name = 'local'" in ran.err
