"""One budget for several runs: `--ledger` counts all that others have spent from it, or refuses."""

from __future__ import annotations

import json

import pytest

import runs
from privsgp import training
from privsgp.engine.loop import Training
from privsgp.privacy import ledger
from privsgp.privacy.statement import statements

SAG = (
    runs.SMALL.replace("seed = 7\n", "")
    .replace("sigma = 0.05", "epsilon = 2.0")
    .replace('"privsgp"', '"privsgp-sag"')
    .replace("steps = 30", "steps = 5")
)


@pytest.fixture
def first(tmp_path):
    """Train a first run; return its configuration and its ledgers."""
    path = runs.small(tmp_path, SAG)
    runs.train(path, tmp_path / "first")
    return path, tmp_path / "first" / "ledger"


def _go_on(first, out, *options, epsilon=4.0):
    path, ledgers = first
    return runs.command(
        "train", path, "--out", out, "--json", "--ledger", ledgers, f"--set=privacy.epsilon={epsilon}", *options
    )


def _meanwhile(monkeypatch, action):
    """Do `action` once, when a run has read the ledgers and chosen its noise."""
    prepare = training.prepare

    def slowly(*arguments):
        monkeypatch.setattr(training, "prepare", prepare)
        job = prepare(*arguments)
        action()
        return job

    monkeypatch.setattr(training, "prepare", slowly)


def test_what_another_run_spends_after_the_noise_was_chosen_is_not_overlooked(first, tmp_path, monkeypatch):
    _meanwhile(monkeypatch, lambda: _go_on(first, tmp_path / "quick"))
    slow = _go_on(first, tmp_path / "slow")
    assert slow.code == 2
    assert "another run has spent from this ledger meanwhile" in slow.err
    assert [len(ledger.read(path)) for path in sorted(first[1].iterdir())] == [2] * 4
    again = json.loads(_go_on(first, tmp_path / "slow", "--resume").out)
    assert max(again["epsilon_spent"]) <= 4.0
    assert again["epsilon_spent"] == pytest.approx([s.epsilon for s in statements(first[1])])


def test_nothing_is_spent_beside_a_run_that_is_still_going(first, tmp_path, monkeypatch):
    release, beside = Training._release, []

    def watched(self, *arguments):
        if not beside:
            beside.append(None)
            beside.append(_go_on(first, tmp_path / "beside", epsilon=6.0))
        return release(self, *arguments)

    monkeypatch.setattr(Training, "_release", watched)
    assert _go_on(first, tmp_path / "going").code == 0
    assert beside[1].code == 2
    assert "in use by another process" in beside[1].err
    assert [len(ledger.read(path)) for path in sorted(first[1].iterdir())] == [2] * 4


def test_what_was_spent_under_another_relation_is_not_added_up(first, tmp_path):
    ran = _go_on(first, tmp_path / "second", "--set=privacy.relation=replace-one")
    assert ran.code == 2
    assert "privacy.relation = 'replace-one', and" in ran.err
    assert "keep to 'zero-out'" in ran.err
    assert not (tmp_path / "second").exists()
