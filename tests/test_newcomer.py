"""The newcomer's path, as the README tells it: a copy of the checkout, the demo, own tables, report, predictions.

Times are printed (pytest -s) and kept as a property of the test, not judged.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

import pytest

import runs

ROOT = pathlib.Path(__file__).parent.parent
FEW = runs.changes(algorithm__steps=8, algorithm__batch=32, algorithm__step_size=0.5)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """Copy what a clone has that the path needs; this Python stands for the environment that `make` sets up."""
    for name in ("README.md", "Makefile", "pyproject.toml", "constraints.txt", "examples", "packages"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    called = tmp_path / ".venv" / "bin" / "privsgp"
    called.parent.mkdir(parents=True)
    called.write_text(f'#!/bin/sh\nexec {sys.executable} -m privsgp "$@" --set algorithm.steps=8\n')
    called.chmod(0o755)
    (tmp_path / ".venv" / ".ready").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def timed(record_property):
    """Return a function that runs a command, and notes how long it took."""
    times = {}

    def run(*arguments, call=runs.command):
        begin = time.perf_counter()
        ran = call(*arguments)
        times[arguments[0]] = times.get(arguments[0], 0) + time.perf_counter() - begin
        assert ran.code == 0, ran.err
        return ran

    yield run
    record_property("seconds", json.dumps(times))
    print(", ".join(f"{name} {seconds:.1f} s" for name, seconds in times.items()))


def own_tables(folder):
    """Write what a newcomer would bring: three sites' tables, and a public one."""
    spec = importlib.util.spec_from_file_location("make_data", folder / "examples" / "hospitals" / "make_data.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.RECORDS.update(aachen=300, basel=200, cork=150, test=400)
    module.write(folder)
    (folder / "test.csv").rename(folder / "public.csv")


def told(command):
    """Return the words of a command that the README tells, its comment left out."""
    lines = [
        line for line in pathlib.Path("README.md").read_text().splitlines() if line.startswith(f"privsgp {command}")
    ]
    assert lines, command
    return shlex.split(lines[0], comments=True)[1:]


def made(*arguments):
    """Call make, as the README tells to."""
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False)
    return runs.Ran(ran.returncode, ran.stdout, ran.stderr)


def test_from_a_clone_to_predictions(clone, timed):
    assert "\nmake demo " in pathlib.Path("README.md").read_text()
    assert "accuracy" in timed("make", "demo", call=made).out
    assert pathlib.Path("runs/digits-16/report.html").exists()

    own_tables(clone)
    asked = ["readmitted" if word == "COLUMN" else word for word in told("init")]
    timed(*asked, "--path", "{site}.csv", "--epsilon", 2, "--test", "public.csv")
    assert "300" in timed(*told("data check")).out
    planned = timed(*told("plan run.toml &&")[:2], *FEW).out
    assert re.search(r"│ cork +│ +150 │ +2 │", planned)
    timed("train", "run.toml", "--set=name=mine", *FEW)
    summary = json.loads(pathlib.Path("runs/mine/summary.json").read_text())
    assert summary["sites"] == ["aachen", "basel", "cork"]
    assert all(0 < spent <= 2 for spent in summary["epsilon_spent"])
    assert not summary["simulation"]

    timed("report", "runs/mine", "--out", "mine.html")
    assert "AUC" in pathlib.Path("runs/mine/report.html").read_text()
    found = json.loads(timed("evaluate", "runs/mine", "public.csv", "--json").out)
    assert found["auc"] == pytest.approx(summary["auc"])
    timed("predict", "runs/mine", "public.csv", "-o", "out.csv")
    with pathlib.Path("out.csv").open() as file:
        assert {row["class"] for row in csv.DictReader(file)} <= {"no", "yes"}
    assert runs.command("evaluate", "runs/mine", "aachen.csv").code == 2


def test_init_names_the_option_that_is_missing(clone):
    own_tables(clone)
    ran = runs.command("init", "--public", "public.csv", "--sites", "a,b")
    assert ran.code == 2
    assert "--target" in ran.err


def test_a_file_that_is_not_there_is_said_to_be(clone):
    runs.train(runs.small(clone), clone / "run", "--set=algorithm.steps=2")
    for name in ("nope.csv", "nope.npz", "nope"):
        ran = runs.command("predict", "run", name)
        assert f"{name} does not exist" in ran.err
        assert "run.toml" not in ran.err
