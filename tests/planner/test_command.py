from __future__ import annotations

import json
from unittest import mock

from typer.testing import CliRunner

import runs
from privsgp import data
from privsgp.cli import app

RUN = """
seed = 0
[data]
name = "digits"
nodes = 4
[model]
name = "logistic"
[privacy]
epsilon = [1.0, 2.0, 2.0, 4.0]
[algorithm]
name = "privsgp"
batch = 64
"""


def answer(*arguments):
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_a_config_is_planned_and_shown(tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    shown = answer("plan", str(tmp_path / "run.toml"))
    assert "steps K*" in shown
    found = json.loads(answer("plan", str(tmp_path / "run.toml"), "--json"))
    assert found["algorithm"] == "privsgp"
    assert found["steps"] >= 1024
    assert found["sigma"][0] > 1.5 * found["sigma"][1] > 2 * found["sigma"][3]


def test_train_with_auto_reads_the_data_once(tmp_path, monkeypatch):
    read = mock.Mock(wraps=data.load)
    monkeypatch.setattr(data, "load", read)
    summary = runs.train(runs.small(tmp_path, RUN), tmp_path / "run", "--set=algorithm.steps=auto")
    assert summary["steps"] > 0
    assert read.call_count == 1
