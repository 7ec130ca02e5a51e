"""What others may have written, run folders and configurations above all: refused by name, never a traceback."""

from __future__ import annotations

import json
import os
import shutil

import pytest

import runs

DEEP = "[" * 100_000
SPOILT = {
    "cut": '{"run": "a", "st',
    "deep": '{"run": ' + DEEP,
    "a list": "[1, 2]",
    "a number": "7",
    "not UTF-8": b'{"run": "\xff\xfe"}',
    "NaN": '{"steps": NaN, "seconds": NaN, "nodes": NaN}',
    "too large": '{"steps": 1e999, "nodes": 1' + 400 * "0" + "}",
    "digits": '{"nodes": ' + 5000 * "9" + "}",
    "other types": '{"run": 3, "ledgers": 4, "versions": 5, "command": 6, "circumstances": 7, "nodes": "x"}',
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One small finished run and its configuration."""
    place = tmp_path_factory.mktemp("finished")
    config = runs.small(place)
    runs.train(config, place / "run", *runs.changes(algorithm__steps=6, engine__evaluate_every=3))
    return place


@pytest.fixture
def copied(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    (tmp_path / "run" / "report.html").unlink()
    return tmp_path


def _commands(place):
    resumed = runs.changes(algorithm__steps=6, engine__evaluate_every=3)
    return [("report", place / "run"), ("train", place / "run.toml", "--out", place / "run", "--resume", *resumed)]


def _spoil(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize("name", ["run.json", "summary.json"])
@pytest.mark.parametrize("how", SPOILT)
def test_a_damaged_file_of_a_run_folder_is_refused_by_name(copied, name, how):
    _spoil(copied / "run" / name, SPOILT[how])
    for command in _commands(copied):
        ran = runs.command(*command)
        assert ran.code == 2, (command[0], ran)
        assert name in ran.err


@pytest.mark.parametrize("change", [{"seconds": "long"}, {"bytes_sent": None}, {"test_loss": [1]}, {"sigma": 3}])
def test_a_summary_of_the_wrong_kind_is_refused_by_name(copied, change):
    path = copied / "run" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    for command in _commands(copied):
        ran = runs.command(*command)
        assert ran.code == 2
        assert "summary.json" in ran.err
        assert next(iter(change)) in ran.err


@pytest.mark.parametrize(
    "line",
    ["7", '"step"', '{"step": "one"}', '{"step": 3, "test_loss": "low"}', '{"step": 3, "test_loss": NaN}', "{", DEEP,
     b'{"step": 3, "\xff": 1}'],
    ids=range(8),
)  # fmt: skip
def test_damaged_metrics_are_refused_with_their_line(copied, line):
    path = copied / "run" / "metrics.jsonl"
    raw = line if isinstance(line, bytes) else line.encode()
    path.write_bytes(path.read_bytes().replace(b"\n", b"\n" + raw + b"\n", 1))
    for command in _commands(copied):
        ran = runs.command(*command)
        assert ran.code == 2
        assert "metrics.jsonl, line 2" in ran.err


@pytest.mark.parametrize("plan", [{}, {"asked": 1}, {"estimated_on": {"kind": "private"}, "asked": {}}])
def test_a_damaged_plan_is_refused_by_name(copied, plan):
    (copied / "run" / "plan.json").write_text(json.dumps(plan))
    ran = runs.command("report", copied / "run")
    assert ran.code == 2
    assert "plan.json" in ran.err


def _endless(folder, how):
    if how == "device":
        return "/dev/zero"
    path = folder / "endless.toml"
    if how == "pipe":
        os.mkfifo(path)
    elif how == "sparse":
        with path.open("wb") as file:
            file.truncate(10**10)
    elif how == "deep":
        path.write_text(f"x = {DEEP}")
    elif how == "digits":
        path.write_text("seed = " + 5000 * "9")
    elif how == "nested":
        path.write_text("\n".join("[" + ".".join(["x"] * 900) + f".y{i}]" for i in range(2)))
    return path


@pytest.mark.parametrize("how", ["device", "pipe", "sparse", "deep", "digits", "nested"])
@pytest.mark.usefixtures("hurried")
def test_a_configuration_that_never_ends_is_refused(tmp_path, how):
    path = _endless(tmp_path, how)
    ran = runs.command("train", path, "--out", tmp_path / "out")
    assert ran.code == 2, ran.err[-300:]
    assert str(path) in ran.err or "unknown key" in ran.err


def test_a_change_that_never_ends_is_refused(tmp_path):
    ran = runs.command("train", runs.small(tmp_path), f"--set=name={DEEP[:20_000]}")
    assert ran.code == 2
