"""Noise that does not keep a budget is refused, and no ε is believed that a file holds."""

from __future__ import annotations

import runs
from privsgp.runs import config
from privsgp.runs import problem as problems
from privsgp.runs import train as training

SAG = (
    runs.SMALL.replace("seed = 7\n", "")
    .replace("sigma = 0.05", "epsilon = 2.0")
    .replace('"privsgp"', '"privsgp-sag"')
    .replace("steps = 30", "steps = 5")
)


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
    assert "6 releases of node 2 would spend" in ran.err
    assert not list((tmp_path / "out" / "ledger").iterdir())


def test_no_epsilon_is_kept_in_a_file_that_another_run_would_believe(tmp_path, monkeypatch):
    """A kept ε that was 10 % too low passed all three readings, and `train` promised it."""
    monkeypatch.setenv("PRIVSGP_CACHE", str(tmp_path / "cache"))
    options = runs.changes(algorithm__name="privsgp", algorithm__batch=60, privacy__epsilon=1.37)
    summary = runs.train(runs.small(tmp_path, SAG), tmp_path / "run", *options)
    assert 0 < summary["epsilon_spent"][0] <= 1.37
    assert not (tmp_path / "cache").exists()
