"""The hospitals' tables: made up, checked, trained on and compared, as docs/howto/tables.md says."""

from __future__ import annotations

import csv
import json
import pathlib
import re
import runpy
import shutil
import sys

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import privsgp
import runs
from privsgp.data import tables

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
    page = (place / "run" / "report.html").read_text()
    assert re.search(rf"AUC</[^<]*<[^<]*{summary['auc']:.4g}", page)
    script(monkeypatch, "compare.py", place / "run", "--data", place)
    together, pooled, *alone = [float(line.split()[1]) for line in capsys.readouterr().out.splitlines()]
    assert together == pytest.approx(summary["auc"], abs=1e-4)
    assert together > pooled - 0.02
    assert pooled > 0.74
    assert len(alone) == 3


def test_breast_cancer_comes_within_two_hundredths_of_pooled_records(tmp_path):
    """The same from tables that scikit-learn brings, as docs/howto/tables.md says."""
    records = load_breast_cancer()
    rows = [[*x, records.target_names[y]] for x, y in zip(records.data.tolist(), records.target, strict=True)]
    for at, name in enumerate(["public", "aachen", "basel", "cork"]):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([[*records.feature_names, "diagnosis"], *rows[at::4]])
    asked = ("--target", "diagnosis", "--sites", "aachen,basel,cork", "--path", "{site}.csv", "--epsilon", 2)
    public = tmp_path / "public.csv"
    assert runs.command("init", "--public", public, *asked, "--test", public, "--out", tmp_path).code == 0
    options = runs.changes(seed=0, algorithm__steps=100, algorithm__batch=32, algorithm__step_size=0.5)
    summary = runs.train(tmp_path / "run.toml", tmp_path / "run", *options)
    assert all(spent <= 2.0 for spent in summary["epsilon_spent"])
    schema = privsgp.Schema.read(tmp_path / "schema.toml")
    sites = [tables.read(tmp_path / f"{name}.csv", schema) for name in ("aachen", "basel", "cork")]
    test = tables.read(public, schema)
    pooled = LogisticRegression(max_iter=1000).fit(
        np.concatenate([s.x for s in sites]), np.concatenate([s.y for s in sites])
    )
    assert summary["auc"] > roc_auc_score(test.y, pooled.decision_function(test.x)) - 0.02
