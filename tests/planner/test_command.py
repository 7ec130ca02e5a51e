from __future__ import annotations

import json
from unittest import mock

import pytest
from typer.testing import CliRunner

import runs
from privsgp import data
from privsgp.cli import app
from privsgp.errors import Refused

PAPER = (
    "plan --nodes 16 --samples 3125 --dim 11173962 --epsilon 3 --delta 1e-5 --smoothness 25 --clip 10 --gap 2.8 "
    "--heterogeneity 500000 --norm 780000 --accountant published --json"
)
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


def test_the_papers_plan_needs_no_config():
    found = json.loads(answer(*PAPER.split()))
    assert found["steps"] == 3120
    assert found["sigma"] == pytest.approx(0.2259, abs=5e-5)


def test_it_is_all_or_a_config():
    with pytest.raises(Refused, match="--smoothness"):
        CliRunner().invoke(app, ["plan", "--samples", "10"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("option", "value"), [("--epsilon", "0"), ("--delta", "1"), ("--dim", "0"), ("--batch", "9999")]
)
def test_impossible_numbers_are_refused(option, value):
    with pytest.raises(Refused):
        CliRunner().invoke(app, [*PAPER.split(), option, value], catch_exceptions=False)


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
