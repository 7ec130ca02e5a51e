"""The examples run as they are, in fewer steps."""

from __future__ import annotations

import os
import pathlib
import runpy
import subprocess
import sys

from privsgp.accounting.statements import statements

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


def _run(monkeypatch, name, *options):
    monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_every_example_can_be_read_in_one_sitting():
    lines = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert sorted(lines) == ["hospitals.py", "own_module.py", "sequences.py", "three_sites.py", "two_machines.py"]
    assert max(lines.values()) <= 150


def test_hospitals(monkeypatch, tmp_path, capsys):
    _run(monkeypatch, "hospitals.py", "--steps", 20, "--out", tmp_path)
    said = capsys.readouterr().out
    assert said.startswith("together: ")
    pairs = list(zip(*(statements(tmp_path / run) for run in ("together", "alone")), strict=True))
    budgets, spent = ([sum(getattr(s, of) for s in pair) for pair in pairs] for of in ("budget", "epsilon"))
    assert budgets == [0.2, 0.3, 0.3, 0.5, 1.0, 1.0]
    assert all(s.epsilon <= s.budget for pair in pairs for s in pair)
    assert (tmp_path / "together" / "report.html").exists()
    rows = [line.split() for line in said.splitlines() if "%" in line][1:]
    assert [(row[2], row[4]) for row in rows] == [(f"{b}", f"{e:.3f}") for b, e in zip(budgets, spent, strict=True)]
    assert len(said.splitlines()) == 2 + 1 + 6 + 2


def test_sequences(monkeypatch, tmp_path, capsys):
    _run(monkeypatch, "sequences.py", "--steps", 2, "--records", 200, "--out", tmp_path)
    transformer, adapters = capsys.readouterr().out.splitlines()
    assert transformer.startswith("transformer: ")
    assert "130 of 3,330 numbers learn, 520 bytes a message" in adapters
    for name in ("transformer", "adapters"):
        assert all(s.epsilon <= 3.0 for s in statements(tmp_path / name))


def test_own_module(monkeypatch, tmp_path, capsys):
    _run(monkeypatch, "own_module.py", "--steps", 20, "--out", tmp_path)
    said = capsys.readouterr().out
    assert "an ordinary module: Residual" in said
    assert "use nn.GroupNorm or nn.LayerNorm" in said
    assert not (tmp_path / "refused").exists()


def test_two_machines(tmp_path):
    command = [sys.executable, EXAMPLES / "two_machines.py", "--steps", "10", "--out", tmp_path]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "100"})
    assert ran.returncode == 0, ran.stderr
    last = ran.stdout.splitlines()[-2:]
    assert "node-0.jsonl, node-1.jsonl; the average model" in last[0]
    assert "node-2.jsonl, node-3.jsonl, node-4.jsonl; no average model" in last[1]
    assert not (tmp_path / "machine-0" / "site-2.npz").exists()
    assert (tmp_path / "machine-0" / "run" / "report.html").exists()


def test_three_sites(tmp_path):
    command = [sys.executable, EXAMPLES / "three_sites.py", "--steps", "40", "--out", tmp_path / "sites"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    first, *sites, _ = ran.stdout.splitlines()
    assert "basel was killed at step" in first
    assert [line.split(",")[1] for line in sites] == [" 40 releases"] * 3
    assert [line.split()[-1] for line in sites] == ["1", "2", "1"]
