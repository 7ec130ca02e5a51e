"""TensorBoard logs: every metric of a simulation, and of a private run only what a report may show."""

from __future__ import annotations

import builtins

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import runs
from privsgp.engine.folder import read_metrics
from privsgp.report.tensorboard import Log


def _events(place):
    events = EventAccumulator(str(place))
    events.Reload()
    return {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}


def _logged(place):
    return {tag: [(e.step, e.value) for e in curve] for tag, curve in _events(place).items()}


@pytest.mark.parametrize("seed", ["7", ""])
def test_a_run_logs_what_it_measured(tmp_path, seed):
    out = tmp_path / "x"
    runs.train(runs.small(tmp_path), out, "--tensorboard", f"--set=seed={seed}")
    rows, logged = read_metrics(out / "metrics.jsonl"), _logged(out / "tensorboard")
    assert set(logged) == set(rows[0]) - {"step", "seconds", "virtual_seconds"}
    assert ("train_loss" in logged) == bool(seed)
    for name, curve in logged.items():
        assert curve == [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in rows]
    times = [event.wall_time for curve in _events(out / "tensorboard").values() for event in curve]
    assert all(time.is_integer() for time in times) != bool(seed)


def test_what_is_private_stays_out_even_if_it_is_in_a_row(tmp_path):
    row = {"step": 3, "test_loss": 0.5, "train_loss": 0.25, "clipped_fraction": 0.1}
    log = Log(tmp_path, simulation=False)
    log.beside(lambda _step, _row: None)(3, row)
    log.finish(row)
    assert _logged(tmp_path / "tensorboard") == {"test_loss": [(3, 0.5)]}


def test_a_resumed_run_goes_on_and_a_finished_one_is_left_alone(tmp_path):
    config, out = runs.small(tmp_path), tmp_path / "x"
    assert runs.killed("train", config, "--out", out, "--tensorboard", steps=20)
    runs.train(config, out, "--resume", "--tensorboard")
    attempts = [_logged(file)["test_loss"] for file in (out / "tensorboard").iterdir()]
    assert sorted(step for curve in attempts for step, _ in curve) == [6, 12, 12, 18, 18, 24, 30]  # again from step 14
    before = runs.contents(out)
    runs.train(config, out, "--resume", "--tensorboard")
    assert runs.contents(out) == before


def test_without_the_package_it_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    whole = builtins.__import__

    def poor(name, *rest):
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError(name)
        return whole(name, *rest)

    monkeypatch.setattr(builtins, "__import__", poor)
    ran = runs.command("train", runs.small(tmp_path), "--out", tmp_path / "x", "--tensorboard")
    assert ran.code == 2
    assert "pip install 'privsgp[tensorboard]'" in ran.err
    assert not (tmp_path / "x").exists()
