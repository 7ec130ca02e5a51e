"""Many runs at once: what is done is not done again, what is half done goes on, and nothing outlives the pool."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

import runs
from privsgp.engine import budget_guard
from privsgp.engine.folder import Folder
from privsgp.errors import Refused
from privsgp.runs import config as configs
from privsgp_research import bench as pool

LONG = "--set=algorithm.steps=100000"


def configured(**algorithm):
    values = {
        "seed": 7,
        "data": {"nodes": 3, "sizes": [100, 100, 100]},
        "model": {"name": "logistic"},
        "privacy": {"sigma": 0.05},
        "algorithm": {"name": "privsgp", "steps": 20, "step_size": 0.5} | algorithm,
        "engine": {"device": "cpu"},
    }
    return configs.parse(values)


def test_runs_are_done_once_and_come_back_in_their_order(tmp_path):
    tasks = [(configured(step_size=s), tmp_path / str(s)) for s in (0.5, 0.1)]
    told = []
    first = pool.run_all(tasks, jobs=2, watch=told.append)
    assert told[-1] == 2
    assert [run.summary["name"] for run in first] == ["run", "run"]
    assert first[0].summary["test_loss"] < first[1].summary["test_loss"]
    before = runs.contents(tmp_path)
    assert pool.run_all(tasks) == first
    assert runs.contents(tmp_path) == before


def test_a_half_done_run_goes_on_to_the_same_end(tmp_path):
    whole = runs.train(runs.small(tmp_path), tmp_path / "whole")
    assert runs.killed("train", tmp_path / "run.toml", "--out", tmp_path / "half", steps=20)
    task = (configs.read(tmp_path / "run.toml"), tmp_path / "half")
    (found,) = pool.run_all([task])
    assert found.summary["test_loss"] == whole["test_loss"]
    assert not (tmp_path / "half" / "private").exists()


def test_a_run_whose_crash_left_no_budget_is_made_again_whole(tmp_path, monkeypatch):
    """As on a GPU, where nobody can tell that a step made again is the same message."""
    path = runs.small(tmp_path, runs.SMALL.replace("sigma = 0.05", "epsilon = 1.0\nspare = 0.0") + "\n")
    path.write_text(path.read_text().replace("checkpoint_every = 7", "checkpoint_every = 0"))
    assert runs.killed("train", path, "--out", tmp_path / "half", steps=20)
    monkeypatch.setattr(budget_guard, "device_of", lambda _: SimpleNamespace(in_host_memory=False))
    pool._run(configs.read(path), tmp_path / "half", None)
    monkeypatch.undo()
    (found,) = pool.run_all([(configs.read(path), tmp_path / "half")])
    assert (found.summary["steps"], found.summary["ended"]) == (30, None)


def test_a_run_that_diverges_is_finished_and_says_so(tmp_path):
    task = (configured(name="sgp", step_size=3e38), tmp_path / "x")
    for _ in range(2):
        (found,) = pool.run_all([task])
        assert found.summary is None
        assert found.metrics == []
    assert "diverged" in (tmp_path / "x" / "diverged.json").read_text()


def test_what_is_refused_in_a_process_is_refused_here(tmp_path):
    with pytest.raises(Refused, match=r"algorithm\.batch = 101"):
        pool.run_all([(configured(batch=101), tmp_path / "x")])


def test_another_configurations_folder_is_refused(tmp_path):
    pool.run_all([(configured(), tmp_path / "x")])
    with pytest.raises(Refused, match=r"algorithm\.batch: 16\.0 → 20\.0"):
        pool.run_all([(configured(batch=20), tmp_path / "x")])


def test_without_a_seed_nothing_is_run(tmp_path):
    with pytest.raises(Refused, match="seed"):
        pool.run_all([(configured().model_copy(update={"seed": None}), tmp_path / "x")])
    assert not (tmp_path / "x").exists()


def test_a_signal_that_comes_where_exceptions_are_lost_is_heard_all_the_same(tmp_path):
    """In a finaliser, say: the runs went on to their last step."""
    came = []

    def watch(_steps):
        if not came:
            came.append(True)
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        pool.run_all([(configured(steps=3000), tmp_path / "x")], watch=watch)
    assert not (tmp_path / "x" / "summary.json").exists()


def test_a_signal_that_comes_with_the_last_run_is_heard(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        pool.run_all([(configured(), tmp_path / "x")], watch=lambda n: n == 1 and os.kill(os.getpid(), signal.SIGINT))


@contextlib.contextmanager
def _begun(line):
    """A process with its children, gone in the end even if the test fails."""
    with subprocess.Popen(line, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("kill", [os.kill, os.killpg])
def test_a_stopped_comparison_leaves_checkpoints_and_no_process(tmp_path, kill):
    """Ctrl-C in a terminal goes to the runs themselves too: that they end by it is no failure of theirs."""
    text = runs.SMALL.replace("sigma = 0.05", "epsilon = 3.0").replace('"privsgp"', '"sgp"')
    out = tmp_path / "out"
    arguments = [str(runs.small(tmp_path, text)), "--algorithms=sgp", LONG, f"--out={out}", "--jobs=1"]
    line = [sys.executable, "-m", "privsgp", "compare", *arguments]
    with _begun(line) as process:
        while not (found := list(out.glob("runs/*/*/*/private/checkpoint.safetensors"))):
            time.sleep(0.05)
            assert process.poll() is None
        second = runs.command("compare", *arguments)
        assert second.code == 2
        assert f"{out} is in use by another process" in second.err
        kill(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command continues" in err.decode()
    with Folder(found[0].parent.parent).locked():
        pass  # nobody holds it any more
