"""The methods the paper compares with, as whole runs: what they refuse, and what they leave behind."""

from __future__ import annotations

import math

import numpy as np
import pytest

import runs
from privsgp.accounting import accountant, calibration
from privsgp.algorithms import ALGORITHMS
from privsgp.errors import Refused
from privsgp.runs import build, config
from privsgp.runs import problem as problems
from privsgp.runs.resolve import make_graph, resolve
from settings import settings_of

BUDGETS = [3.0, 1.0, 2.0, 4.0]


def small(tmp_path, **values):
    changes = [change.removeprefix("--set=") for change in runs.changes(**values)]
    return config.read(runs.small(tmp_path), ["privacy.sigma=", "privacy.epsilon=2.0", *changes])


def test_dp_sgd_pools_all_data_at_the_same_rate_and_the_strictest_budget(tmp_path):
    delta = [1e-5, 1e-6, 1e-5, 1e-4]
    told = small(tmp_path, algorithm__name="dp-sgd", privacy__epsilon=BUDGETS, privacy__delta=delta)
    problem = problems.load_problem(told)
    spec = build.build_run(resolve(told, problem))
    (mechanism,) = spec.protection.mechanisms
    assert (mechanism.samples, mechanism.batch, mechanism.rate) == (1200, 64, 16 / 300)
    assert (spec.protection.budgets, spec.protection.deltas) == ([1.0], [1e-6])
    rows = np.concatenate(problem.parts)
    assert np.array_equal(spec.learning.inputs[0, :-1].numpy(), problem.dataset.x[rows])


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
@pytest.mark.parametrize("network", ["exponential", "ring-directed", "random"])
def test_links_that_do_not_go_both_ways_are_refused(tmp_path, name, network):
    with pytest.raises(Refused, match=f"graph.name = '{network}'") as refused:
        make_graph(small(tmp_path, algorithm__name=name, graph__name=network))
    assert "graph.name = 'ring'" in refused.value.remedy


def test_methods_without_noise_say_that_privacy_is_ignored(tmp_path):
    changes = runs.changes(algorithm__name="d-psgd", graph__name="ring")
    ran = runs.command("train", runs.small(tmp_path), "--out", tmp_path / "out", *changes)
    assert "d-psgd adds no noise and does not clip: [privacy] is ignored" in ran.err
    assert runs.train(runs.small(tmp_path), tmp_path / "out", "--resume", *changes)["epsilon_spent"] is None


def test_the_planner_refuses_what_it_cannot_rehearse(tmp_path):
    path = runs.small(tmp_path)
    for command, told in (
        ("train", "algorithm.steps = 'auto' with algorithm.name ="),
        ("plan", "the planner does not know"),
    ):
        auto = runs.changes(algorithm__steps="auto") if command == "train" else []
        options = ["--set=privacy.sigma=", *runs.changes(privacy__epsilon=2.0, algorithm__name="local"), *auto]
        ran = runs.command(command, path, *options)
        assert ran.code == 2
        assert told in ran.err


def test_a_server_gets_and_sends_a_vector_per_node_and_step(tmp_path):
    summary = runs.train(runs.small(tmp_path), tmp_path / "out", *runs.changes(algorithm__name="ldp-spider"))
    assert (summary["graph"], summary["trust"]) == ("server", "per-node")
    assert summary["bytes_sent"] == 30 * 4 * 2 * 4 * summary["dim"]
    assert summary["consensus_error"] == 0


def test_behind_secure_aggregation_all_nodes_add_the_most_noise_any_of_them_needs(tmp_path):
    sizes = runs.changes(data__sizes=[300, 200, 300, 300], algorithm__batch=16.5)
    options = ["--set=privacy.sigma=", *runs.changes(privacy__epsilon=2.0, algorithm__name="dp-srm"), *sizes]
    together = runs.train(runs.small(tmp_path), tmp_path / "together", *options)
    apart = runs.train(runs.small(tmp_path), tmp_path / "apart", *options, "--set=algorithm.trust=per-node")
    assert (together["trust"], apart["trust"]) == ("secure aggregation", "per-node")
    assert len(set(together["sigma"])) == 1
    assert together["sigma"][1] == pytest.approx(apart["sigma"][1] / 2, rel=0.01)
    assert together["epsilon_spent"][0] < together["epsilon_spent"][1] <= 2.0
    assert len(set(apart["sigma"])) == 2


@pytest.mark.parametrize(("key", "value"), [("epsilon", [1.0, 2.0]), ("delta", [1e-5, 1e-6])])
def test_budgets_of_their_own_are_refused_where_nodes_share_their_noise(key, value):
    values = {
        "data": {"nodes": 2},
        "privacy": {"epsilon": 1.0} | {key: value},
        "algorithm": {"name": "dp-srm"},
    }
    with pytest.raises(Refused, match=f"privacy.{key}"):
        config.parse(values)
    config.parse(values | {"algorithm": {"name": "dp-srm", "trust": "per-node"}})


@pytest.mark.parametrize(
    ("name", "key", "value", "users"),
    [
        ("privsgp", "period", 5, "'ldp-spider' or 'ldp-svrg'"),
        ("ldp-svrg", "alpha", 0.5, "'dp-srm'"),
        ("ldp-spider", "trust", "per-node", "'dp-srm'"),
        ("dp2-sgd", "difference_clip", 0.5, "'privsgp-vr' or 'dp-srm'"),
        ("privsgp-vr", "kept", 0.1, "'soteriafl-saga' or 'soteriafl-sgd' or 'soteriafl-svrg'"),
        ("ldp-svrg", "kept", 0.5, "'soteriafl-svrg'"),
    ],
)
def test_a_key_without_a_use_is_refused_with_those_that_have_one(name, key, value, users):
    with pytest.raises(Refused, match=f"algorithm.{key}") as refused:
        config.parse({"privacy": {"sigma": 1.0}, "algorithm": {"name": name, key: value}})
    assert users in refused.value.remedy


def test_a_clipped_mean_is_refused():
    with pytest.raises(Refused, match=r"privacy\.clip_what = 'mean'"):
        config.parse({"seed": 7, "privacy": {"sigma": 1.0, "clip_what": "mean"}})


def test_compressed_messages_are_what_is_counted(tmp_path):
    options = runs.changes(algorithm__name="soteriafl-sgd", algorithm__kept=0.1)
    summary = runs.train(runs.small(tmp_path), tmp_path / "out", *options)
    assert summary["bytes_sent"] == 30 * 4 * 4 * (summary["dim"] // 10 + summary["dim"])


def test_a_published_calibration_is_printed_with_what_it_is_worth(tmp_path):
    changes = runs.changes(
        algorithm__name="dp2-sgd", graph__name="ring", privacy__epsilon=1.0, privacy__accountant="published"
    )
    summary = runs.train(runs.small(tmp_path), tmp_path / "out", "--set=privacy.sigma=", *changes)
    assert summary["epsilon_nominal"] == [1.0] * 4
    assert max(summary["epsilon_spent"]) < 0.5
    ran = runs.command(
        "train", runs.small(tmp_path), "--out", tmp_path / "no", "--set=privacy.sigma=",
        *runs.changes(algorithm__name="local", privacy__epsilon=1.0, privacy__accountant="published"),
    )  # fmt: skip
    assert ran.code == 2
    assert "has no formula for local" in ran.err


def periodic(algorithm):
    return {"period": 5} if "period" in algorithm.Options.model_fields else {}


def test_every_declared_mechanism_is_counted_twice_and_calibrated():
    """By composition and by Rényi divergences: `accountant.epsilon` refuses where they contradict each other."""
    declared = {
        algorithm.mechanism(
            settings_of(algorithm.name, nodes=4, trust=algorithm.trust, spare=1, **periodic(algorithm)),
            sigma=0.0,
            batch=30.0,
            samples=300,
            kappa=1e-6,
        )
        for algorithm in ALGORITHMS.values()
        if algorithm.private
    }
    assert len(declared) == 5
    for bare in declared:
        sigma = calibration.sigma(bare, 21, 2.0, 1e-5)
        spent = accountant.epsilon(bare.with_sigma(sigma), 21, 1e-5)
        assert 1.98 < spent.epsilon <= 2.0
        assert spent.epsilon <= spent.rdp_epsilon < math.inf
