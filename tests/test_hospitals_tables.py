"""The hospitals' tables: made up, checked, trained on and compared, as docs/howto/tables.md says."""

from __future__ import annotations

import json
import pathlib
import runpy
import shutil
import sys

import pytest

import runs

EXAMPLE = pathlib.Path(__file__).parent.parent / "examples" / "hospitals"


def script(monkeypatch, name, *options):
    monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
    runpy.run_path(str(EXAMPLE / name), run_name="__main__")


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name in ("run.toml", "schema.toml"):
        shutil.copy(EXAMPLE / name, tmp_path)
    script(monkeypatch, "make_data.py", "--out", tmp_path)
    return tmp_path


def test_three_hospitals_come_within_two_hundredths_of_pooled_records(place, monkeypatch, capsys):
    told = json.loads(runs.command("data", "check", place / "schema.toml", place / "cork.csv", "--json").out)
    assert told["counts"]["hba1c"]["missing"] > told["rows"] / 3
    assert told["counts"]["ward"]["other"] > 0
    assert 0.05 < told["classes"]["yes"] / told["rows"] < 0.15
    summary = runs.train(place / "run.toml", place / "run")
    assert summary["sites"] == ["aachen", "basel", "cork"]
    assert all(spent <= 2.0 for spent in summary["epsilon_spent"])
    assert (place / "run" / "report.html").exists()
    script(monkeypatch, "compare.py", place / "run", "--data", place)
    together, pooled, *alone = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert together > pooled - 0.02
    assert pooled > 0.74
    assert len(alone) == 3
