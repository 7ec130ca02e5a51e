"""Runs that are killed, stopped or taken up again: the same model, and ledgers that never show less than was sent."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

import runs
from privsgp.engine import checkpoint

SELDOM = "--set=engine.checkpoint_every=30"
RING = '[graph]\nname = "ring"\n'
UNSEEDED = runs.SMALL.replace("seed = 7\n", "")


def _budget(text):
    return text.replace("sigma = 0.05", "epsilon = 2.0\nspare = 0.2")


def _kill_often(config, out, times, draw, *options):
    """Kill up to `times` processes of one run at random moments; return how many died."""
    arguments = ("train", config, "--out", out, *options)
    return sum(runs.killed(*arguments, *runs.again(out), moments=draw.randrange(10, 130)) for _ in range(times))


@pytest.mark.parametrize(
    ("algorithm", "text"),
    [
        ("privsgp-vr", runs.SMALL),
        ("privsgp-vr", _budget(runs.SMALL).replace("[engine]", "difference_scale = 0.2\n[engine]")),
        ("privsgp-sag", _budget(runs.SMALL)),
        ("privsgp-vr", runs.SMALL.replace("[engine]", "local_steps = 3\n[transport]\nbits = 4\n[engine]")),
        ("privsgp", _budget(runs.SMALL)),
        ("dp2-sgd", _budget(runs.SMALL) + RING),
        ("ldp-svrg", _budget(runs.SMALL)),
        ("soteriafl-saga", runs.SMALL.replace("[engine]", "kept = 0.05\n[engine]")),
    ],
)
def test_a_seeded_run_killed_at_random_moments_ends_with_the_same_bytes(tmp_path, algorithm, text):
    config = runs.small(tmp_path, text)
    name = runs.changes(algorithm__name=algorithm)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = runs.train(config, whole, *name)
    died = _kill_often(config, broken, 4, random.Random(algorithm), *name)
    assert died >= 2
    summary = runs.train(config, broken, *name, "--resume")
    for file in ("model.safetensors", "nodes/0.safetensors", "nodes/3.safetensors", "config.toml"):
        assert (broken / file).read_bytes() == (whole / file).read_bytes(), file
    assert runs.charged(broken) == runs.charged(whole) == [30] * 4
    assert summary["releases"] == expected["releases"] == [30] * 4
    assert summary["epsilon_spent"] == expected["epsilon_spent"]
    assert runs.sent(broken) == runs.sent(whole)
    assert runs.evaluated(broken) == runs.evaluated(whole) == [6, 12, 18, 24, 30]
    assert {p.name for p in (broken / "private").iterdir()} == {"checkpoint.safetensors"}
    assert not list(broken.glob(".*tmp*"))


def test_an_unseeded_run_killed_at_random_moments_pays_for_every_message(tmp_path):
    config, out, draw = runs.small(tmp_path, _budget(UNSEEDED)), tmp_path / "out", random.Random(3)
    assert _kill_often(config, out, 3, draw) >= 1
    summary = runs.train(config, out, "--resume")
    for node, charged in enumerate(runs.charged(out)):
        messages = runs.sent(out, node)
        assert len(set(messages)) == len(messages)
        assert len(messages) <= charged <= 36
    assert summary["releases"] == runs.charged(out)
    assert summary["steps"] == 30 or max(summary["releases"]) == 36
    assert max(summary["epsilon_spent"]) <= 2.0
    assert runs.evaluated(out)[-1] == summary["steps"]


def test_an_unseeded_run_that_crashes_too_often_stops_within_its_budget(tmp_path):
    config, out = runs.small(tmp_path, _budget(UNSEEDED)), tmp_path / "out"
    assert runs.killed("train", config, "--out", out, SELDOM, steps=20)
    assert min(runs.charged(out)) >= 20
    summary = runs.train(config, out, "--resume", SELDOM)
    assert 0 < summary["steps"] <= 16
    assert max(runs.charged(out)) == 36
    assert {attempt for _, attempt, _ in runs.sent(out)} == {1}  # a killed process has noted none
    assert {digest for _, _, digest in runs.sent(out)} == {""}  # secret, and nobody else's: nothing to compare with
    before = runs.contents(out)
    assert runs.train(config, out, "--resume") == summary
    assert runs.contents(out) == before
    _says_that_it_ended_early(config, out, summary)


def _says_that_it_ended_early(config, out, summary):
    """Summary, terminal and report tell how many steps were taken, why no more, and what would help."""
    assert summary["steps_planned"] == 30
    assert "crashes undid" in summary["ended"]
    assert "privacy.spare" in summary["ended"]
    for shown in (runs.command("train", config, "--out", out, "--resume").out, (out / "report.html").read_text()):
        assert f"{summary['steps']} of 30 steps" in shown
        assert "privacy.spare" in shown
        assert "30 steps" not in shown.replace("of 30 steps", "")


def test_a_run_that_took_all_its_steps_says_nothing_of_that(tmp_path):
    config, out = runs.small(tmp_path), tmp_path / "out"
    summary = runs.train(config, out)
    assert (summary["steps"], summary["steps_planned"], summary["ended"]) == (30, 30, None)
    for shown in (runs.command("train", config, "--out", out, "--resume").out, (out / "report.html").read_text()):
        assert "30 steps" in shown
        assert "of 30 steps" not in shown
        assert "privacy.spare" not in shown


def test_an_unseeded_run_with_anchors_repeats_no_more_steps_than_were_counted_as_both(tmp_path):
    """Noise fixed by hand: no budget would stop it, but the ε it reports covers ⌈0.02 · 30⌉ steps made again."""
    config, out = runs.small(tmp_path, UNSEEDED.replace('"privsgp"', '"ldp-svrg"')), tmp_path / "out"
    assert runs.killed("train", config, "--out", out, SELDOM, steps=20)
    assert runs.train(config, out, "--resume", SELDOM)["steps"] == 0
    assert {attempt for _, attempt, _ in runs.sent(out)} == set()  # nothing was sent again


def test_killed_after_the_ledgers_closed_and_before_the_summary(tmp_path):
    config, out = runs.small(tmp_path, _budget(UNSEEDED)), tmp_path / "out"
    assert runs.killed("train", config, "--out", out, SELDOM, steps=20)
    early = runs.train(config, out, "--resume", SELDOM)
    assert early["steps"] < 30
    (out / "summary.json").unlink()
    again = runs.train(config, out, "--resume", SELDOM)
    assert (again["steps"], again["releases"]) == (early["steps"], early["releases"])


def test_resume_without_a_checkpoint_starts_over(tmp_path):
    config = runs.small(tmp_path)
    runs.train(config, tmp_path / "whole")
    runs.train(config, tmp_path / "new", "--resume")
    assert runs.killed("train", config, "--out", tmp_path / "early", steps=5)
    assert not (tmp_path / "early" / "private" / "checkpoint.safetensors").exists()
    assert (tmp_path / "early" / "config.toml").exists()
    runs.train(config, tmp_path / "early", "--resume")
    models = {(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "new", "early")}
    assert len(models) == 1


def test_resume_of_a_finished_run_changes_nothing(tmp_path):
    config, out = runs.small(tmp_path), tmp_path / "out"
    summary = runs.train(config, out)
    before = runs.contents(out)
    assert runs.train(config, out, "--resume") == summary
    assert runs.contents(out) == before


CHANGES = {
    "algorithm.batch=32": "algorithm.batch: 16.0 → 32.0",
    "seed=8": "seed: 7 → 8",
    "algorithm.step_size=0.25": "algorithm.step_size: 0.5 → 0.25",
    "privacy.sigma=[0.05, 0.05, 0.05, 0.06]": "privacy.sigma: 0.05 → [0.05, 0.05, 0.05, 0.06]",
}


def test_resume_with_a_changed_config_names_the_key_and_both_values(tmp_path):
    config, out = runs.small(tmp_path), tmp_path / "out"
    assert runs.killed("train", config, "--out", out, steps=10)
    before = runs.contents(out)
    for change, words in CHANGES.items():
        ran = runs.command("train", config, "--out", out, "--resume", "--set", change)
        assert (ran.code, ran.out) == (2, "")
        assert words in ran.err
    assert runs.contents(out) == before


def test_what_does_not_change_the_result_may_change(tmp_path):
    config = runs.small(tmp_path)
    runs.train(config, tmp_path / "whole")
    assert runs.killed("train", config, "--out", tmp_path / "out", steps=20)
    runs.train(config, tmp_path / "out", "--resume", *runs.changes(name="other", engine__evaluate_every=1))
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()


def test_a_folder_that_holds_a_run_is_left_alone_without_resume(tmp_path):
    config, out = runs.small(tmp_path), tmp_path / "out"
    runs.train(config, out)
    before = runs.contents(out)
    ran = runs.command("train", config, "--out", out)
    assert ran.code == 2
    assert "already holds a run" in ran.err
    assert "--resume" in ran.err
    assert "already holds a run" in runs.command("train", config, "--out", out, "--set", "data.name=missing.npz").err
    assert runs.contents(out) == before


def _start(config, out, *options):
    command = [sys.executable, "-m", "privsgp", "train", str(config), "--out", str(out), *options]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )


def _wait_for_steps(process, out, steps):
    path = out / "ledger" / "node-3.jsonl"
    while not path.exists() or path.read_text().count('\n"') < steps:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)


LONG = runs.SMALL.replace("steps = 30", "steps = 300").replace("evaluate_every = 6", "evaluate_every = 50")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    runs.train(runs.small(folder, LONG), folder / "out")
    return (folder / "out" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_real_process_stopped_by_a_signal_goes_on_where_it_was(tmp_path, undisturbed, number):
    config, out = runs.small(tmp_path, LONG), tmp_path / "out"
    process = _start(config, out, "--json")
    try:
        _wait_for_steps(process, out, 80)
        process.send_signal(signal.SIGSTOP)  # it holds its lock while it sleeps
        second = runs.command("train", config, "--out", out, "--resume")
        assert second.code == 2
        assert "in use by another process" in second.err
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        stdout, stderr = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert stdout == ""
    counted, messages = runs.charged(out), [len(runs.sent(out, node)) for node in range(4)]
    if number == signal.SIGKILL:
        assert all(c >= m for c, m in zip(counted, messages, strict=True))
    else:
        assert process.returncode == 130
        assert "--resume" in stderr
        assert "Traceback" not in stderr
        stopped = checkpoint.read_progress(out / "private" / "checkpoint.safetensors").step
        assert f"stopped after step {stopped}" in stderr
        assert counted == messages == [stopped] * 4
    runs.train(config, out, "--resume")
    assert (out / "model.safetensors").read_bytes() == undisturbed
    assert runs.charged(out) == [300] * 4
    assert runs.evaluated(out) == list(range(50, 301, 50))


def _no_space(*_):
    raise OSError(28, "No space left on device")
