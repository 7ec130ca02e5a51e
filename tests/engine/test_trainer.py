"""The loop: what happens around a step, when, and what it tells whom."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import runs
from privsgp.algorithms import Exchange, Release
from privsgp.engine import checkpoint
from privsgp.engine.drive import RunDriver
from privsgp.engine.folder import Folder
from privsgp.engine.trainer import Trainer
from privsgp.errors import Diverged, Interrupted, Refused
from privsgp.gradients import stack
from privsgp.runs import build
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs.resolve import resolve

pytestmark = pytest.mark.usefixtures("entered")


def _training(folder, watch=None, kind=Trainer, **changes):
    values = tomllib.loads(runs.SMALL)
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            values[section][name] = value
        else:
            values[section] = value
    config = configs.parse(values)
    spec = build.build_run(resolve(config, problems.load_problem(config)))
    place = Folder(folder)
    place.prepare()
    place.identify({})
    return kind(spec, place, watch)


class Listening(RunDriver):
    """Keeps the directions y which messages show, x − γ y being a message."""

    def __init__(self, run):
        super().__init__(run.transport, run.budget_guard)
        self.step_size, self.before, self.heard = run.spec.step_size, run.state.x.clone(), []

    def __call__(self, k, event):
        if isinstance(event, Release):
            self.heard.append((self.before - event.message) / self.step_size(k))
        answer = super().__call__(k, event)
        if isinstance(event, Exchange):
            self.before = answer[0].clone()
        return answer


class Heard(Trainer):
    def _driver(self, sent=0):
        return Listening(self)


@pytest.mark.parametrize(("algorithm", "threads"), [("privsgp", 1), ("privsgp", 2), ("dp2-sgd", 1)])
@pytest.mark.parametrize("noise", [{}, {"noise": "pairwise", "honest": 3}])
@pytest.mark.parametrize("seed", [7, None])
def test_the_messages_of_each_node_have_all_of_its_noise(seed, noise, algorithm, threads, tmp_path):
    """Whichever code adds it: gradients are clipped to next to nothing, so that messages show the noise alone."""
    changes = {"graph": {"name": "ring"}, "algorithm__name": algorithm, "algorithm__steps": 8}
    privacy = {"sigma": [0.1, 0.1, 0.2, 0.4], "clip": 1e-6} | noise
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        run = _training(tmp_path, kind=Heard, seed=seed, privacy=privacy, **changes)
        run.run()
    finally:
        torch.set_num_threads(before)
    shared = run.spec.protection.covariance
    wanted = torch.tensor([m.sigma for m in run.spec.mechanisms] if shared is None else shared.message_sigma)
    found = torch.stack(run.driver.heard, 1).flatten(1).std(1)
    assert ((found / wanted - 1).abs() < 0.06).all()  # 8 · 650 numbers a node: six standard errors


def test_evaluations_and_checkpoints_come_when_asked_and_at_the_end(tmp_path, monkeypatch):
    saved, seen = [], []
    monkeypatch.setattr(checkpoint, "save", lambda path, progress, *rest: saved.append(progress.step))
    outcome = _training(tmp_path, lambda k, row: seen.append((k, row and row["step"])), algorithm__steps=20).run()
    assert saved == [7, 14, 20]
    assert [row["step"] for row in outcome.metrics] == runs.evaluated(tmp_path) == [6, 12, 18, 20]
    assert [k for k, _ in seen] == list(range(1, 21))
    assert seen[4] == (5, None)
    assert seen[12] == (13, 12)
    assert outcome.steps == 20


def test_what_is_evaluated(tmp_path):
    """By hand from the nodes' models: average, mean, worst, the training loss over all nodes' own data."""
    run = _training(tmp_path, data__sizes=[300, 200, 100, 50], graph={"name": "random"})
    outcome = run.run()
    learning, s = run.spec.learning, outcome.state
    inputs, labels = learning.test
    assert s.w.sub(1).abs().max() > 0.01

    def loss(z, x, y):
        logits = x.flatten(1).double() @ z[:640].reshape(10, 64).double().T + z[640:].double()
        return torch.nn.functional.cross_entropy(logits, y).item(), (logits.argmax(1) == y).double().mean().item()

    mean = s.x.double().sum(0) / s.w.sum()
    row, nodes = outcome.metrics[-1], [loss(z, inputs, labels)[1] for z in s.z]
    assert row["test_loss"] == pytest.approx(loss(mean, inputs, labels)[0], rel=1e-5)
    assert row["test_accuracy"] == pytest.approx(loss(mean, inputs, labels)[1], abs=0.003)
    assert row["mean_node_accuracy"] == pytest.approx(np.mean(nodes), abs=0.003)
    assert row["worst_node_accuracy"] == pytest.approx(min(nodes), abs=0.003)
    own = [loss(mean, learning.inputs[i, :J], learning.targets[i, :J])[0] for i, J in enumerate([300, 200, 100, 50])]
    assert row["train_loss"] == pytest.approx(np.mean(own), rel=1e-5)


def test_without_a_seed_training_data_is_not_evaluated(tmp_path):
    outcome = _training(tmp_path, seed=None, algorithm__steps=6).run()
    assert set(outcome.metrics[0]) == {
        "step", "seconds", "virtual_seconds", "consensus_error", "test_loss", "test_accuracy", "mean_node_accuracy",
        "worst_node_accuracy",
    }  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment_of_a_step_leaves_a_checkpoint_of_that_step(tmp_path, number):
    """Also between the question whether to keep a checkpoint and the end of the step."""
    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run = _training(tmp_path, lambda k, _: os.kill(os.getpid(), number) if k == 10 else None)
    with pytest.raises(Interrupted) as stopped:
        run.run()
    assert checkpoint.read_progress(run.folder.checkpoint).step == stopped.value.step
    assert runs.charged(tmp_path) == [stopped.value.step] * 4
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers


def test_a_signal_in_the_last_step_does_not_stop_a_run_that_is_done(tmp_path):
    run = _training(tmp_path, lambda k, _: os.kill(os.getpid(), signal.SIGINT) if k == 6 else None, algorithm__steps=6)
    assert run.run().steps == 6


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path):
    _training(tmp_path, algorithm__steps=6, engine__checkpoint_every=6).run()
    with pytest.raises(Refused, match="another configuration"):
        _training(tmp_path, algorithm__steps=8).run()


def test_a_message_that_is_not_finite_stops_the_run_before_its_checkpoint(tmp_path):
    run = _training(tmp_path)
    noise = run.randomness.noise

    def overflow(k, g):
        noise(k, g)
        g[2] += torch.inf if k == 10 else 0.0

    run.randomness.noise = overflow
    with pytest.raises(Diverged, match="is not finite after step 14"):
        run.run()
    assert checkpoint.read_progress(run.folder.checkpoint).step == 7
    assert runs.charged(tmp_path) == [14] * 4


def test_metrics_hold_no_nan(tmp_path):
    run = _training(tmp_path, algorithm__step_size=1e38, privacy__sigma=1.0, engine__evaluate_every=1)
    with contextlib.suppress(Diverged):
        run.run()
    lines = run.folder.metrics.read_text().splitlines()
    assert all("NaN" not in line and "Infinity" not in line for line in lines)
    assert json.loads(lines[-1])["test_loss"] is None


def test_noise_is_each_nodes_and_each_steps_own(tmp_path):
    """With every gradient 0 what is left of a step is its noise: σ_i as asked, nothing repeated."""
    sigma = [0.5, 1.0, 2.0, 0.0]
    run = _training(tmp_path, privacy__sigma=sigma, algorithm__steps=8, algorithm__step_size=1.0)
    noises = []
    run.algorithm.recorded = lambda z, batch: torch.zeros_like(z)
    noise = run.randomness.noise

    def keep(k, g):
        noise(k, g)
        noises.append(g.clone())

    run.randomness.noise = keep
    run.run()
    drawn = torch.stack(noises).double()  # [steps, nodes, d]
    np.testing.assert_allclose(drawn.std((0, 2)).numpy(), sigma, rtol=0.05)
    rows = drawn[:, :3].reshape(-1, drawn.shape[2])
    assert torch.corrcoef(rows).sub(torch.eye(len(rows))).abs().max() < 0.25


class _EighthBefore(nn.Module):
    """Adds to each sample the one eight places before: in a batch of 1, 2, 4 or 8 that is the sample itself."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        h = self.layer(x.flatten(1))
        return h + torch.roll(h, 8, 0)


class _BySlot:
    """Gradients that round by their slot, as a matrix product of rows of 33 numbers does on some CPUs."""

    def __init__(self, gradient):
        self.gradient, self.layout, self.how = gradient, gradient.layout, gradient.how

    def __call__(self, z, x, y):
        g = self.gradient(z, x, y)
        g.pieces[0].delta[:, 1::16] *= 1 + 2.0**-20
        return g


def test_samples_are_scattered_where_a_gradient_depends_on_its_slot(tmp_path, monkeypatch):
    amplified = {"seed": None, "algorithm": {"name": "privsgp", "batch": 4, "steps": 2, "step_size": 0.5}}
    for name in ("plain", "scattered", "seeded"):
        (tmp_path / name).mkdir()
    plain = _training(tmp_path / "plain", **amplified).spec
    assert not plain.scattered
    gradient = Trainer._gradient
    monkeypatch.setattr(Trainer, "_gradient", lambda self, spec: _BySlot(gradient(self, spec)))
    training = _training(tmp_path / "scattered", **amplified)
    assert training.spec.scattered
    [drawn] = training.randomness.sample(0)
    assert drawn.mask.shape[1] == training.spec.slots > plain.slots
    assert not _training(tmp_path / "seeded").spec.scattered  # a simulation protects nobody


def test_the_probe_has_enough_samples_to_see_a_model_that_mixes_distant_ones():
    config = configs.parse(tomllib.loads(runs.SMALL))
    problem = replace(problems.load_problem(config), model=_EighthBefore())
    learning = build.build_run(resolve(config, problem)).learning
    with pytest.raises(Refused, match="depends on the other samples"):
        stack(learning.model, learning.loss, learning.made_up())
