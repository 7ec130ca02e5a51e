"""`make results`: what ended well is not run again, what was killed goes on, and runs belong to one commit."""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib

import pytest
import typer

from privsgp.cli import command_line
from privsgp.errors import Refused

ROOT = pathlib.Path(__file__).parent.parent
EXPERIMENT = "results"
GIVEN = {"data": "data", "out": "runs", "device": "cpu", "jobs": 2}
# these keep no runs, and begin anew
ALONE = {
    "additive",
    "class-weights",
    "first-model",
    "first-study",
    "flower",
    "hospitals",
    "persons",
    "private-evaluation",
    "survival",
    "trust",
    "stragglers",
    "soteriafl",
    "planning",
    "signals",
    "wire",
}
PLAN = """
[[step]]
name = "first"
words = "a file"
rough = "no time"
pages = []
commands = ["{{python}} -c 'open(\\"{log}\\", \\"a\\").write(\\"x\\")'"]

[[step]]
name = "runs"
words = "four runs"
rough = "seconds"
pages = []
commands = ["{{python}} {script} {{out}}"]
"""
SCRIPT = """
import sys
from pathlib import Path
from privsgp.runs import config as configs

sys.path.insert(0, EXPERIMENTS)
from privsgp_research.bench import Bench

if __name__ == "__main__":
    changes = ["data.nodes=2", "algorithm.name=privsgp", "algorithm.steps=3", "privacy.epsilon=", "privacy.sigma=0.1"]
    config = configs.read(Path(DIGITS), changes)
    Bench(Path(sys.argv[1]), jobs=1).several({"one": config}, range(4), "")
"""


@pytest.fixture
def asked(tmp_path):
    """The command of a small plan: one that is over at once, and one of four runs."""
    runs, plan = tmp_path / "runs.py", tmp_path / "plan.toml"
    places = {"DIGITS": ROOT / "examples" / "digits.toml", "EXPERIMENTS": ROOT / "experiments"}
    text = SCRIPT
    for name, path in places.items():
        text = text.replace(name, repr(str(path)))
    runs.write_text(text)
    plan.write_text(PLAN.format(log=tmp_path / "log", script=runs))
    return [sys.executable, ROOT / "experiments" / "results.py", "--plan", plan, "--out", tmp_path / "out"]


def begun(asked, commit="abc"):
    env = os.environ | {"PRIVSGP_COMMIT": commit}
    return subprocess.Popen(asked, env=env, start_new_session=True, stdout=subprocess.PIPE, text=True)


def finished(place):
    return {path.parent.name: path.stat().st_mtime_ns for path in place.glob("runs/runs/one/*/summary.json")}


def test_after_a_kill_it_goes_on_and_makes_no_finished_run_again(asked, tmp_path):
    place, process = tmp_path / "out" / "abc", begun(asked)
    while len(finished(place)) < 2 and process.poll() is None:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = finished(place)
    assert 2 <= len(before) < 4, "it was over before the kill"
    again = begun(asked)
    said, _ = again.communicate()
    assert again.returncode == 0
    assert {seed: finished(place)[seed] for seed in before} == before
    assert len(finished(place)) == 4
    assert "first: done before" in said
    assert (tmp_path / "log").read_text() == "x"
    assert len(json.loads((place / "done.json").read_text())) == 2


def test_another_commit_has_runs_of_its_own_and_one_that_nobody_has_is_refused(experiment):
    assert experiment.folder_of("abc", uncommitted=False) == "abc"
    assert experiment.folder_of("abc+", uncommitted=True) == "abc+"
    for made_by in ("abc+", None):
        with pytest.raises(Refused):
            experiment.folder_of(made_by, uncommitted=False)


def test_what_a_later_step_needs_is_missed_before_the_first_begins(experiment, tmp_path):
    for need, said in (
        ("data:mnist", "train-images"),
        ("file:texts.whl", "texts.whl does not exist"),
        ("package:no_such_package", "no_such_package is not installed"),
    ):
        with pytest.raises(Refused, match=said):
            experiment.refuse_missing([{"needs": ["data:digits"]}, {"needs": [need]}], tmp_path)


def test_every_step_says_what_it_is_and_runs_what_is_there(experiment, monkeypatch):
    plan = tomllib.loads(experiment.PLAN.read_text())["step"]
    for step in plan:
        assert {"name", "words", "rough", "pages", "makes", "commands"} <= step.keys()
        assert step.keys() <= {"name", "words", "rough", "pages", "makes", "commands", "copies", "needs"}
        assert {one.partition(":")[0] for one in step.get("needs", ())} <= {"data", "file", "package"}
        assert ("data:" in " ".join(step.get("needs", ()))) == any("{data}" in one for one in step["commands"])
        assert all((ROOT / page).exists() for page in step["pages"])
        for command in step["commands"]:
            parts = shlex.split(command)
            assert parts[0] == "{python}"
            if step["name"] not in ALONE:
                assert "{out}" in command
                assert "{data}" in command
            assert parts[1] == "-m" or (ROOT / parts[1]).exists()
            if parts[1] != "-m":
                monkeypatch.syspath_prepend((ROOT / parts[1]).parent)
                monkeypatch.setattr(sys, "argv", [part.format(**GIVEN) for part in parts[1:]])
                script = importlib.import_module(pathlib.Path(parts[1]).stem)
                script.arguments()
            else:
                assert parts[2] == "privsgp"
                words = [part.format(**GIVEN) for part in parts[4:]]
                typer.main.get_command(command_line()).commands[parts[3]].make_context(parts[3], words)
    written = set(re.findall(r"[\w./-]+\.md", " ".join(experiment.PAGES)))
    assert {page for step in plan for page in step["pages"]} <= written


def test_every_number_belongs_to_a_step_and_every_table_is_written_from_the_plan(experiment):
    plan = tomllib.loads(experiment.PLAN.read_text())["step"]
    owners = [path for step in plan for path in experiment.made(step)]
    assert sorted(owners) == sorted(experiment.RESULTS.rglob("*.json"))  # each of them once
    marked = {
        page
        for page in (ROOT / "docs").rglob("*.md")
        if re.search(r"^<!-- end of (?!the )", page.read_text(), re.MULTILINE)
    }
    assert {page.relative_to(ROOT).as_posix() for page in marked} <= {page for step in plan for page in step["pages"]}


def test_every_number_names_its_commit_its_versions_and_its_device(experiment):
    needed = {"commit", "versions", "device"}
    for path in experiment.RESULTS.rglob("*.json"):
        told = json.loads(path.read_text())
        for one in [told] if needed <= told.keys() else told["rows"]:
            assert all(one.get(key) for key in needed), path.name
    with pytest.raises(SystemExit, match="names no commit"):
        importlib.import_module("pages").commits([{"accuracy": 0.9, "device": "one core"}])


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout")
def test_the_list_says_how_old_the_numbers_are(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "RESULTS", tmp_path)
    now = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    (tmp_path / "new.json").write_text(json.dumps({"rows": [{"commit": now}]}))
    (tmp_path / "lost.json").write_text(json.dumps({"commit": "0" * 12, "rows": []}))
    (tmp_path / "old.json").write_text("{}")
    (tmp_path / "half.json").write_text(json.dumps({"rows": [{"commit": now}, {}]}))
    step = {"name": "a", "words": "b", "rough": "c", "pages": [], "makes": ["*.json"]}
    said = "\n".join(experiment.listed(step))
    assert f"{now}, as src/ is now: new.json" in said
    assert "000000000000, which is not here: lost.json" in said
    assert "no commit is named: old.json" in said
    assert f"{now}, as src/ is now; 1 of 2 name none: half.json" in said
