"""Schedules in run.toml: what is applied is what is counted, weights are those of the released model, and refusals."""

from __future__ import annotations

import dataclasses
import itertools
import json
import types

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privsgp import graph
from privsgp.accounting import accountant, ledger, statements
from privsgp.accounting.mechanisms import SampledMean, described
from privsgp.accounting.schedule import Schedule, Stretch
from privsgp.algorithms import Drawn, State
from privsgp.algorithms.push_sum import PrivSGP
from privsgp.engine import step
from privsgp.engine.averaging import Averaging, FinalModel
from privsgp.engine.node_randomness import NodeRandomness
from privsgp.errors import Refused
from privsgp.gradients.per_sample import PerSample
from privsgp.randomness import independent
from privsgp.runs import config as configs
from privsgp.runs import schedules
from runs import command, killed, small, train

BOTH = ("privacy.clip={schedule='linear',start=1.0,end=0.2}", "privacy.noise_schedule=optimal")
COSINE = "algorithm.step_size={schedule='cosine',start=0.5}"


def configured(**sections):
    values = {"privacy": {"sigma": 0.1}, "algorithm": {"name": "privsgp", "steps": 40}, "data": {"nodes": 4}}
    return configs.parse({key: values.get(key, {}) | sections.get(key, {}) for key in values | sections})


def run(tmp_path, name, *changes):
    out = tmp_path / name
    return out, train(small(tmp_path), out, *(f"--set={change}" for change in changes))


@pytest.mark.parametrize("seed", ["seed=7", "seed="])  # secret noise is added and the step taken in one pass
def test_every_step_is_clipped_and_noised_as_it_is_counted(tmp_path, monkeypatch, seed):
    clips, sigmas, clip_, add, both = [], [], PerSample.clip_, independent.add_noise_, independent.step_

    def clipped(self, radius, mask):
        clips.append(radius)
        clip_(self, radius, mask)

    def noised(g, source, nodes, step, *, sigma, attempt=0):
        sigmas.append(list(sigma))
        add(g, source, nodes, step, sigma=sigma, attempt=attempt)

    def stepped(*values, sigma, **named):
        done = both(*values, sigma=sigma, **named)
        sigmas.extend([list(sigma)] if done else [])
        return done

    monkeypatch.setattr(PerSample, "clip_", clipped)
    monkeypatch.setattr(independent, "add_noise_", noised)
    monkeypatch.setattr(independent, "step_", stepped)
    out, _ = run(tmp_path, "a", *BOTH, COSINE, seed)
    counted = described(ledger.first(out / "ledger" / "node-0.jsonl").mechanism)
    each = [counted.at(k) for k in range(30)]
    # A step may clip in two passes, and some neighbours are alike.
    assert [clip for clip, _ in itertools.groupby(clips)] == [c for c, _ in itertools.groupby(m.clip for m in each)]
    assert sigmas == [[one.sigma] * 4 for one in each]
    assert len(set(clips)) > 3
    assert len({row[0] for row in sigmas}) > 3


@pytest.mark.parametrize(
    "changes",
    [
        ("privacy.clip={schedule='cosine',start=0.7,end=0.7}",),
        ("privacy.clip=0.7", "privacy.noise_schedule=optimal"),
        ("privacy.clip={schedule='steps',start=0.7,end=0.7,pieces=7}", "privacy.noise_schedule=proportional"),
    ],
)
def test_a_schedule_of_equal_steps_gives_the_same_bytes_as_none(tmp_path, changes):
    (plain, told), (out, same) = (
        run(tmp_path, name, *given, "seed=3") for name, given in (("a", ["privacy.clip=0.7"]), ("b", changes))
    )
    assert (out / "model.safetensors").read_bytes() == (plain / "model.safetensors").read_bytes()
    assert same["epsilon_spent"] == told["epsilon_spent"]
    first = ledger.first(out / "ledger" / "node-0.jsonl").mechanism
    assert first == ledger.first(plain / "ledger" / "node-0.jsonl").mechanism


def test_a_run_that_goes_on_is_the_run_that_never_stopped_and_its_ledger_counts_the_same(tmp_path):
    whole, told = run(tmp_path, "whole", *BOTH, COSINE)
    config, out = small(tmp_path), tmp_path / "cut"
    asked = ("train", config, "--out", out, *(f"--set={change}" for change in (*BOTH, COSINE)))
    assert killed(*asked, steps=11)
    assert command(*asked, "--resume").code == 0
    assert (out / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    spent = [one.epsilon for one in statements.statements(out)]
    assert spent == told["epsilon_spent"] == json.loads((out / "summary.json").read_text())["epsilon_spent"]


@pytest.mark.parametrize("change", ["algorithm.steps=31", "privacy.noise_schedule=constant", "privacy.clip=1.0"])
def test_a_run_does_not_go_on_under_another_schedule(tmp_path, change):
    config, out = small(tmp_path), tmp_path / "cut"
    asked = ("train", config, "--out", out, *(f"--set={one}" for one in (*BOTH, COSINE)))
    assert killed(*asked, steps=11)
    ended = command(*asked, f"--set={change}", "--resume")
    assert ended.code == 2
    assert change.split("=")[0] in ended.err


@pytest.mark.parametrize("kind", ["privsgp-sag", "privsgp-vr"])
def test_tables_go_with_noise_that_changes_and_not_with_a_clip(tmp_path, kind):
    name = f"algorithm.name={kind}"
    out, told = run(tmp_path, "noise", name, "privacy.noise_schedule=optimal", COSINE, "algorithm.steps=3")
    mechanism = described(ledger.first(out / "ledger" / "node-0.jsonl").mechanism)
    assert mechanism.schedule is not None
    assert told["epsilon_spent"][0] == accountant.epsilon(mechanism, 3, 1e-5).epsilon
    ended = command("train", small(tmp_path), "--out", tmp_path / "clip", f"--set={name}", f"--set={BOTH[0]}")
    assert ended.code == 2
    assert "older clips" in ended.err


def test_secret_noise_keeps_to_a_budget_with_a_schedule(tmp_path):
    budget = ("seed=", "privacy.sigma=", "privacy.epsilon=3.0", "algorithm.steps=20")
    _, told = run(tmp_path, "secret", *BOTH, COSINE, *budget)
    assert all(2.7 < spent <= 3.0 for spent in told["epsilon_spent"])


def test_a_crash_of_a_run_with_noise_by_hand_is_covered_by_the_repeats_that_were_counted(tmp_path):
    config, out, length = small(tmp_path), tmp_path / "cut", ("algorithm.steps=60", "privacy.spare=0.1")
    changes = (*BOTH, COSINE, "seed=", *length, "engine.checkpoint_every=")
    asked = ("train", config, "--out", out, *(f"--set={change}" for change in changes))
    assert killed(*asked, steps=23)
    assert command(*asked, "--resume").code == 0
    assert json.loads((out / "summary.json").read_text())["steps"] == 60
    assert 60 < ledger.read(out / "ledger" / "node-0.jsonl")[0].charged <= 66


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ({}, {"average": "none"}),
        ({"average": "tail", "average_share": 0.3}, {"average": "tail", "share": 0.3}),
        ({"average": "exponential", "average_decay": 0.9}, {"average": "exponential", "decay": 0.9}),
    ],
)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("step_size", [0.2, {"schedule": "linear", "start": 0.4, "end": 0.1}])
def test_weights_are_what_a_unit_of_noise_leaves_in_the_released_model(algorithm, options, momentum, step_size):
    config = configured(algorithm=algorithm | {"momentum": momentum, "step_size": step_size})
    gamma, found = schedules.step_size(config), []
    for k in range(40):
        x, velocity = torch.zeros(1, 1, dtype=torch.float64), 0.0
        averaging = Averaging(FinalModel(**options), 40, State.debiased(x, torch.ones(1, dtype=torch.float64)))
        for j in range(40):
            velocity = momentum * velocity + (1 - momentum) * float(j == k)
            x = x + gamma(j) * velocity
            state = State.debiased(x, torch.ones(1, dtype=torch.float64))
            averaging.add(j, state)
        released = averaging.released(state)
        found.append(float(released.x))
    assert schedules.weights(config) == pytest.approx(found, rel=1e-9)


def test_curvature_pulls_old_noise_back():
    config = configured(privacy={"noise_schedule": "optimal", "noise_curvature": 0.05}, algorithm={"step_size": 0.4})
    x = [0.4 * (1 - 0.4 * 0.05) ** (39 - k) for k in range(40)]  # a quadratic of curvature 0.05
    assert schedules.weights(config) == pytest.approx(x, rel=0.02)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), start=st.floats(0.1, 1.0))
def test_no_other_noise_of_the_same_cost_leaves_less_in_the_model(seed, start):
    config = configured(
        privacy={"noise_schedule": "optimal", "clip": {"schedule": "linear", "start": start, "end": 0.5}},
        algorithm={"step_size": {"schedule": "linear", "start": 1.0, "end": 0.2}},
    )
    clips, w = np.array(schedules.clip_values(config)), np.array(schedules.weights(config))
    best = np.array(schedules.noise_values(config, clips.tolist()))

    def left(sigma):
        return float((w**2 * sigma**2).sum() * ((clips / sigma) ** 2).sum())

    other = best * np.exp(np.random.default_rng(seed).normal(0, 0.3, 40))
    assert left(best) <= left(other)
    assert left(best) <= left(np.ones(40))


def test_noise_is_at_most_four_times_the_least():
    config = configured(
        privacy={"noise_schedule": "optimal"}, algorithm={"step_size": {"schedule": "cosine", "start": 1.0}}
    )
    made = schedules.schedule(config, 0)
    assert 1 < len(made.stretches) <= schedules.STRETCHES
    assert 2 < made.largest_sigma <= 4
    assert made.steps == 40


@pytest.mark.parametrize("curvature", [0.0, 1e9])
def test_weights_are_known_where_the_step_size_ends_at_nothing(curvature):
    privacy = {"sigma": 0.1, "noise_schedule": "optimal", "noise_curvature": curvature}
    config = configured(algorithm={"step_size": {"schedule": "linear", "start": 1.0}}, privacy=privacy)
    assert 1 < schedules.schedule(config, 0).largest_sigma <= 4


def test_noise_that_weighs_nothing_is_the_same_at_every_step():
    step_size = {"schedule": "linear", "start": 5e-324}
    config = configured(algorithm={"step_size": step_size}, privacy={"sigma": 0.1, "noise_schedule": "optimal"})
    assert schedules.schedule(config, 0) is None


@pytest.mark.parametrize("ends", [(2.0**-60, 2.0**60), (1.0, 1e-7), (1e-17, 1.0)])
@pytest.mark.parametrize("shape", ["linear", "cosine", "steps"])
def test_a_clip_that_goes_too_far_is_refused_by_name(shape, ends):
    with pytest.raises(Refused, match=r"privacy\.clip"):
        configured(privacy={"sigma": 0.1, "clip": {"schedule": shape, "start": ends[0], "end": ends[1]}})


def test_steps_of_a_clip_go_by_equal_factors():
    config = configured(privacy={"clip": {"schedule": "steps", "start": 1.0, "end": 0.125}})
    made = schedules.schedule(config, 1)
    assert [one.steps for one in made.stretches] == [10, 10, 10, 10]
    assert [one.clip for one in made.stretches] == pytest.approx([1, 0.5, 0.25, 0.125])
    assert schedules.largest_clip(config) == 1.0
    assert made.spare == 1


CLIP = {"schedule": "linear", "start": 1.0, "end": 0.5}


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"privacy": {"noise_curvature": 0.1}}, "take 'optimal'"),
        ({"privacy": {"clip": CLIP, "noise": "pairwise"}, "data": {"nodes": 4}}, "shared noise"),
        ({"privacy": {"clip": CLIP, "sigma": None, "epsilon": 1.0, "accountant": "published"}}, "equal steps"),
        ({"privacy": {"clip": CLIP}, "algorithm": {"name": "adp2-sgd"}}, "no common step"),
        ({"privacy": {"clip": CLIP}, "algorithm": {"name": "sgp"}}, "nothing is clipped"),
        ({"privacy": {"clip": CLIP, "sigma": None, "epsilon": 1.0}, "algorithm": {"steps": "auto"}}, "planner"),
        ({"privacy": {"noise_schedule": "optimal"}, "algorithm": {"unit_steps": True}}, "not known"),
        ({"privacy": {"clip": CLIP | {"end": 0.0}}}, "greater than 0"),
        ({"privacy": {"clip": CLIP | {"ende": 0.1}}}, "known keys here: schedule, start, end, pieces"),
        ({"privacy": {"clip": CLIP | {"start": 2.0**70}}}, "2⁶⁰"),
    ],
)
def test_schedules_that_nothing_covers_are_refused(sections, why):
    with pytest.raises(Refused) as refused:
        configured(**sections)
    assert why in str(refused.value)


def test_what_all_sites_share_holds_the_schedule_and_is_as_it_was_without_one():
    plain, clip, noise = (
        configured(privacy=one) for one in ({}, {"clip": CLIP}, {"noise_schedule": "optimal", "noise_curvature": 0.1})
    )
    assert "noise_schedule" not in plain.shared()["privacy"]
    assert clip.shared()["privacy"]["clip"]["end"] == 0.5
    assert configs.parse(clip.shared()).privacy == clip.privacy
    assert configs.parse(noise.shared()).privacy == noise.privacy
    assert len({one.shared_hash() for one in (plain, clip, noise)}) == 3


def test_a_written_configuration_is_read_back(tmp_path):
    config = configured(privacy={"clip": CLIP, "noise_schedule": "optimal"})
    (tmp_path / "c.toml").write_text(config.toml())
    assert configs.read(tmp_path / "c.toml") == config


def test_tuning_and_planning_refuse_schedules(tmp_path):
    config = small(tmp_path)
    for asked in (["tune", config, "--public", "synthetic"], ["plan", config]):
        ended = command(*asked, f"--set={BOTH[0]}", "--set=privacy.sigma=", "--set=privacy.epsilon=1.0")
        assert ended.code == 2
        assert "equal steps" in ended.err


def test_no_kernel_that_has_one_sigma_takes_the_steps(monkeypatch):
    monkeypatch.setattr(step, "runs_on", lambda _x: True)
    algorithm, x = object.__new__(PrivSGP), torch.zeros(4, 3)
    plain = SampledMean(sigma=0.1, clip=1.0, batch=1, samples=10)
    made = dataclasses.replace(plain, schedule=Schedule((Stretch(5), Stretch(5, 1.0, 2.0))))
    for mechanism, suits in ((plain, True), (made, False)):
        algorithm.block = types.SimpleNamespace(mechanisms=[mechanism] * 4, update_rule=None)
        assert step.suits(algorithm, graph.make("exponential", 4), x) is suits


def test_no_clip_that_changes_is_recorded():
    drawn = Drawn(torch.zeros(1, 1), torch.zeros(1, 1), clip=0.5)
    with pytest.raises(RuntimeError, match="cannot be recorded"):
        step.Recorded(lambda z, _batch: z, dict)._record(torch.zeros(1), drawn)


def test_samples_that_lost_the_clip_of_their_step_are_refused(tmp_path, monkeypatch):
    draw = NodeRandomness._draw
    monkeypatch.setattr(NodeRandomness, "_draw", lambda self, k: [d._replace(clip=None) for d in draw(self, k)])
    ended = command("train", small(tmp_path), "--out", tmp_path / "a", f"--set={BOTH[0]}")
    assert ended.code == 2
    assert "clip of their step" in ended.err
