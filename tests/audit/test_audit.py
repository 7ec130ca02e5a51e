"""The audit as a whole: quiet about the shipped code, loud about planted bugs, and on nobody's data."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from planted import BUGS, PERSON_BUGS, PERSONS_NOTHING, QUIET, SHARED_BUGS, SHARED_NOTHING, attack
from privsgp.algorithms import Block, Drawn
from privsgp.audit import attack as canary
from privsgp.audit.attack import Attacked, _turn, _unit
from privsgp.audit.audit import audit
from privsgp.errors import Refused
from privsgp.gradients import Layout
from privsgp.runs import build, config
from privsgp.runs import problem as problems
from privsgp.runs.resolve import resolve


def configured(algorithm="privsgp", *, seed=0, model="logistic", loss="cross-entropy", **more):
    values = {
        "data": {"name": "digits", "nodes": 3, "sizes": [60, 50, 40]},
        "model": {"name": model, "loss": loss} | ({"hidden": 8} if model == "mlp" else {}),
        "privacy": {"sigma": 0.1},
        "algorithm": {"name": algorithm, "batch": 10, "steps": 30},
    } | more
    return config.parse(values | ({} if seed is None else {"seed": seed}))


def prepared(settings, *, lures=2, canaries=8):
    rng = np.random.default_rng(0)
    problem = problems.load_problem(settings)
    drawn = canary.draw(problem, canaries, rng, lures=lures)
    return drawn, build.build_run(resolve(settings, canary.plant(problem, drawn, rng)))


def attacked(settings, **kinds):
    drawn, spec = prepared(settings, **kinds)
    run = Attacked(spec, drawn)
    run.run()
    return run


SHIPPED = [(bug, algorithm) for bug in QUIET for algorithm in bug.algorithms]


@pytest.mark.parametrize(("bug", "algorithm"), SHIPPED, ids=[f"{bug.name}, {algorithm}" for bug, algorithm in SHIPPED])
def test_the_shipped_code_raises_no_alarm(bug, algorithm):
    report = attack(bug, algorithm, seed=1)
    assert not report.alarm
    for node in report.nodes:
        assert node.white_box <= node.epsilon_certified < math.inf


def test_shared_noise_as_it_is_raises_no_alarm():
    report = attack(SHARED_NOTHING, "privsgp", seed=1)
    assert not report.alarm
    assert all(node.white_box <= node.epsilon_certified < math.inf for node in report.nodes)


@pytest.mark.parametrize("algorithm", PERSONS_NOTHING.algorithms)
def test_persons_as_they_are_raise_no_alarm(algorithm):
    report = attack(PERSONS_NOTHING, algorithm, seed=1)
    assert not report.alarm
    assert all(node.shift <= 1 + 1e-3 for node in report.nodes)
    assert algorithm == "privsgp-vr" or all(node.shift > 0.9 for node in report.nodes)


@pytest.mark.parametrize(
    ("bug", "algorithm"), [(bug, name) for bug in PERSON_BUGS for name in bug.algorithms], ids=lambda one: str(one)[:30]
)
def test_bugs_in_persons_are_caught(bug, algorithm):
    assert all(node.alarms for node in attack(bug, algorithm, seed=2).nodes)


@pytest.mark.parametrize("bug", SHARED_BUGS, ids=[bug.name for bug in SHARED_BUGS])
def test_bugs_in_shared_noise_are_caught(bug):
    report = attack(bug, "privsgp", seed=2)
    assert all(node.alarms for node in report.nodes)


def test_shared_secret_noise_is_audited_with_unequal_needs_and_weights():
    values = {
        "data": {"name": "digits", "nodes": 4},
        "model": {"name": "logistic"},
        "privacy": {"sigma": [0.1, 0.2, 0.1, 0.3], "noise": "pairwise", "honest": 3},
        "algorithm": {"name": "privsgp", "batch": 10, "steps": 30, "weights": "noise"},
    }
    assert not audit(config.parse(values), observations=1).alarm


# All algorithms share the code of noise and of coins: `make audit` breaks it in each of them, here one is enough.
ONE_LINE = ("noise ", "coin", "shuffled")
CASES = [
    (bug, algorithm)
    for bug in BUGS
    for algorithm in bug.algorithms[: 1 if any(word in bug.name for word in ONE_LINE) else None]
]


@pytest.mark.parametrize(("bug", "algorithm"), CASES, ids=[f"{bug.name}, {algorithm}" for bug, algorithm in CASES])
def test_planted_bugs_are_caught(bug, algorithm):
    report = attack(bug, algorithm, seed=2)
    assert report.alarm
    assert all(node.alarms for node in report.nodes)


def test_on_two_cores_the_same_is_seen_as_on_one():
    """Elsewhere each thread takes nodes of its own; what is looked at is all nodes'."""
    settings = configured(data={"name": "digits", "nodes": 4})
    before, seen = torch.get_num_threads(), []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            seen.append(attacked(settings).scores)
        finally:
            torch.set_num_threads(before)
    np.testing.assert_array_equal(*seen)


def test_without_a_seed_the_secure_source_is_audited_and_keeps_its_word():
    report = audit(configured(seed=None), observations=1)
    assert not report.alarm
    assert report.observations == 30 * report.canaries


def test_more_observations_take_more_runs_and_bring_the_bound_closer():
    loud = configured(privacy={"sigma": 0.05})
    few, many = audit(loud, observations=1), audit(loud, observations=10_000)
    assert many.observations >= 10_000 > few.observations
    assert not many.alarm
    assert sum(node.white_box for node in many.nodes) > sum(node.white_box for node in few.nodes)
    assert all(0.5 * node.epsilon_certified < node.white_box <= node.epsilon_certified for node in many.nodes)


def test_the_report_is_json_and_a_published_budget_is_held_to():
    told = audit(configured(privacy={"epsilon": 0.5, "accountant": "published"}), observations=1).to_json()
    assert json.loads(json.dumps(told, allow_nan=False)) == json.loads(json.dumps(told))
    assert told["format"] == "privsgp-audit"
    assert [node["epsilon_claimed"] for node in told["nodes"]] == [0.5] * 3
    assert all(node["epsilon_certified"] > 0.5 for node in told["nodes"])


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_only_the_canary_moves_its_own_column(model):
    """A present canary's clipped gradient lies in its column, an absent one's is 0, all others' there are 0."""
    run = attacked(configured("privsgp-vr", model=model))
    block, M = run.algorithm.block, run.canaries.count
    z = run.lures[0]
    rows = torch.arange(40).expand(3, 40)
    everything = Drawn(rows, torch.ones_like(rows, dtype=torch.bool))
    dense = block.gradients(z, everything).dense()
    columns = canary.first_layer(dense.flatten(0, 1), Layout.of(run.model)).reshape(3, 40, -1, 64)
    own = torch.diagonal(columns[:, :M, :, :M], dim1=1, dim2=3).transpose(1, 2)
    present = torch.from_numpy(run.canaries.present)
    assert torch.allclose(own.norm(dim=-1), present.float(), atol=1e-2)
    assert (dense[:, :M].norm(dim=-1)[~present] == 0).all()
    assert (columns[:, M:, :, :M] == 0).all()
    assert Block.gradients(block, z, everything).norm()[:, :M].min() > 0.99


def test_absent_canaries_leave_no_trace_in_the_table():
    run = attacked(configured("privsgp-vr"))
    entries = run.algorithm.table.parts[0]["delta"][:, : run.canaries.count].norm(dim=-1)
    assert (entries[torch.from_numpy(~run.canaries.present)] == 0).all()
    assert (entries[torch.from_numpy(run.canaries.present)] > 0).all()


def test_scores_are_the_noise_where_the_canary_is_absent():
    run = attacked(configured("privsgp", data={"nodes": 2, "sizes": [200, 200]}), lures=1, canaries=40)
    absent = np.concatenate([np.stack(run.scores)[:, i][..., ~run.canaries.present[i]].ravel() for i in range(2)])
    assert abs(absent.mean()) < 4 / math.sqrt(absent.size)
    assert abs(absent.std() - 1) < 4 / math.sqrt(2 * absent.size)


def test_lures_swing_the_gradient():
    """In turn they must ask for different gradients, or SAGA has nothing to send."""
    for model, most in (("logistic", 0.51), ("mlp", 0.01)):
        run = attacked(configured("privsgp-vr", model=model))
        a, b = (_unit(g) for g in run._lured)
        assert float((a * b).sum(1).max()) <= most


def test_a_reflection_brings_the_direction_first():
    rng = torch.Generator().manual_seed(0)
    y, u = torch.randn(2, 5, 7, generator=rng), _unit(torch.randn(2, 5, 7, generator=rng))
    u[0, :, 0] = torch.eye(5)[0]
    turned = _turn(y, u)
    assert torch.allclose(turned[:, 0], (y * u).sum(1), atol=1e-5)
    assert torch.allclose(turned.norm(dim=1), y.norm(dim=1), atol=1e-5)


@pytest.mark.parametrize("loss", ["mse", "binary"])
def test_a_single_output_can_be_audited_too(loss, tmp_path):
    rng = np.random.default_rng(0)
    y = rng.standard_normal(60) if loss == "mse" else rng.integers(2, size=60)
    for node in range(3):
        np.savez(tmp_path / f"site-{node}.npz", x=rng.standard_normal((60, 12)), y=y, x_test=np.eye(12), y_test=y[:12])
    data = {"nodes": 3, "path": str(tmp_path / "site-{node}.npz")}
    name = "linear" if loss == "mse" else "logistic"
    report = audit(configured("privsgp-vr", model=name, loss=loss, data=data), observations=1)
    assert not report.alarm
    assert report.canaries == 9


def test_real_records_are_not_used():
    settings = configured()
    drawn, spec = prepared(settings)
    real = problems.load_problem(settings)
    real.dataset.x[:] = np.nan
    rng = np.random.default_rng(0)
    again = canary.plant(real, canary.draw(real, 8, rng, lures=2), rng)
    placed = torch.from_numpy(again.dataset.x[:60])
    assert torch.equal(spec.learning.inputs[0, :60].reshape(60, -1), placed.reshape(60, -1))
    assert drawn.count == 8


@pytest.mark.parametrize(
    ("given", "arguments", "told"),
    [
        ({"algorithm": "sgp"}, {}, "audit an algorithm that adds noise"),
        ({"algorithm": "adp2-sgd"}, {}, "in step"),
        ({"privacy": {"sigma": 0.0}}, {}, "sigma = 0"),
        ({}, {"canaries": 0}, "canaries = 0"),
        ({}, {"canaries": 41}, "canaries = 41"),
        ({}, {"confidence": 1.0}, "confidence = 1"),
    ],
)
def test_what_cannot_be_audited_is_refused(given, arguments, told):
    with pytest.raises(Refused, match=told):
        audit(configured(**given), **arguments)


def test_models_without_a_linear_first_layer_are_refused():
    problem = problems.load_problem(configured())
    convolution = torch.nn.Sequential(torch.nn.Unflatten(1, (1, 8, 8)), torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten())
    with pytest.raises(Refused, match="first parameter"):
        canary.draw(dataclasses.replace(problem, model=convolution), None, np.random.default_rng(0))


def test_what_is_made_of_noised_directions_does_not_change_an_audit():
    plain = configured()
    steered = plain.with_section("algorithm", weights=[1.0, 3.0, 8.0], momentum=0.9, average="tail", final_mixing=2)
    reports = [audit(settings, observations=2_000).to_json() for settings in (plain, steered)]
    assert reports[0] == reports[1]
    assert not reports[0]["alarm"]
