"""One budget for several runs: `--ledger` counts all that others have spent from it, or refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

import runs
from privsgp.accounting import ledger
from privsgp.accounting.statements import statements
from privsgp.engine.budget_guard import BudgetGuard
from privsgp.runs import config
from privsgp.runs import problem as problems
from privsgp.runs import train as training

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


@pytest.fixture
def sites(tmp_path):
    """Train a first run on a file of each node; return its configuration and its ledgers."""
    for i in range(3):
        x = np.random.default_rng(i).standard_normal((60, 3), np.float32)
        for name in ("site", "other"):
            np.savez(tmp_path / f"{name}-{i}.npz", x=x, y=np.arange(60) % 2, classes=2)
    own = f'nodes = 2\npath = "{tmp_path}/site-{{node}}.npz"\n'
    path = runs.small(tmp_path, SAG.replace("nodes = 4\nsizes = [300, 300, 300, 300]\n", own))
    runs.train(path, tmp_path / "first")
    return path, tmp_path / "first" / "ledger"


def _go_on(first, out, *options, epsilon=4.0):
    path, ledgers = first
    return runs.command(
        "train", path, "--out", out, "--json", "--ledger", ledgers, f"--set=privacy.epsilon={epsilon}", *options
    )


def _meanwhile(monkeypatch, action):
    """Do `action` once, when a run has read the ledgers and chosen its noise."""
    prepare = training.build_run

    def slowly(*arguments, **named):
        monkeypatch.setattr(training, "build_run", prepare)
        spec = prepare(*arguments, **named)
        action()
        return spec

    monkeypatch.setattr(training, "build_run", slowly)


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
    record, beside = BudgetGuard.record, []

    def watched(self, *arguments):
        if not beside:
            beside.append(None)
            beside.append(_go_on(first, tmp_path / "beside", epsilon=6.0))
        return record(self, *arguments)

    monkeypatch.setattr(BudgetGuard, "record", watched)
    assert _go_on(first, tmp_path / "going").code == 0
    assert beside[1].code == 2
    assert "in use by another process" in beside[1].err
    assert [len(ledger.read(path)) for path in sorted(first[1].iterdir())] == [2] * 4


def test_what_was_spent_under_another_relation_is_not_added_up(first, tmp_path):
    ran = _go_on(first, tmp_path / "second", "--set=privacy.relation=replace-one")
    assert ran.code == 2
    assert "another relation: zero-out, and here replace-one" in " ".join(ran.err.split())
    assert not (tmp_path / "second").exists()


def test_what_was_spent_before_those_who_see_sums_is_not_added_up_for_those_who_see_messages(first, tmp_path):
    ran = _go_on(first, tmp_path / "second", "--set=algorithm.name=dp-srm")
    assert ran.code == 2
    assert "seen as one sum: 1, and here 4" in ran.err
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (["--set=seed=3"], [], ("simulation: True, and here False",)),
        ([], ["--set=seed=3"], ("simulation: False, and here True",)),
    ],
)
def test_a_simulation_and_a_private_run_have_no_budget_in_common(sites, tmp_path, before, now, words):
    runs.train(sites[0], tmp_path / "before", *before)
    ran = _go_on((sites[0], tmp_path / "before" / "ledger"), tmp_path / "now", *now)
    assert ran.code == 2
    assert all(word in ran.err for word in words)


def test_files_of_another_name_are_other_records(sites, tmp_path):
    other = _go_on(sites, tmp_path / "other", f"--set=data.path={tmp_path}/other-{{node}}.npz")
    assert other.code == 2
    assert "another layout of records" in other.err
    assert _go_on(sites, tmp_path / "second").code == 0


def test_a_layout_of_files_is_their_path_and_their_number():
    def layout(**changed):
        data = {"path": "site-{node}.npz", "nodes": 3} | changed
        return problems.layout(config.parse({"data": data, "privacy": {"epsilon": 1.0}}))

    assert len({layout(), layout(path="{node}.npz"), layout(nodes=2)}) == 3


def test_noise_that_does_not_keep_a_budget_is_refused_before_anything_is_sent(tmp_path, monkeypatch):
    """Whoever chose it: what may be spent is counted once more from the noise that is really added."""

    def prepare(*arguments, **named):
        spec = training_prepare(*arguments, **named)
        spec.protection.mechanisms[2] = spec.protection.mechanisms[2].with_sigma(1e-9)
        return spec

    training_prepare = training.build_run
    monkeypatch.setattr(training, "build_run", prepare)
    ran = runs.command("train", runs.small(tmp_path, SAG), "--out", tmp_path / "out")
    assert ran.code == 2
    assert "sigma = 1e-09 of node 2: its 6 releases would spend" in ran.err
    assert not list((tmp_path / "out" / "ledger").iterdir())


def test_no_epsilon_is_kept_in_a_file_that_another_run_would_believe(tmp_path, monkeypatch):
    """A kept ε that was 10 % too low passed all three readings, and `train` promised it."""
    monkeypatch.setenv("PRIVSGP_CACHE", str(tmp_path / "cache"))
    options = runs.changes(algorithm__name="privsgp", algorithm__batch=60, privacy__epsilon=1.37)
    summary = runs.train(runs.small(tmp_path, SAG), tmp_path / "run", *options)
    assert 0 < summary["epsilon_spent"][0] <= 1.37
    assert not (tmp_path / "cache").exists()
