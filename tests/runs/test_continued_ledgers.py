"""`--ledger` counts a record's spending only where it stands in the ledger of the record's own node."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from torch import nn

import privsgp
import runs
from privsgp.errors import Refused

SECRET = runs.SMALL.replace("seed = 7\n", "").replace("sigma = 0.05", "epsilon = [0.5, 2.0, 2.0, 2.0]")
SHORT = SECRET.replace('"privsgp"', '"privsgp-sag"').replace("steps = 30", "steps = 3")
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(400, 6)).astype(np.float32), np.arange(400) % 3


def _refused(*arguments):
    ran = runs.command(*arguments)
    assert ran.code == 2, ran.err
    return " ".join(ran.err.split())


def test_another_nodes_ledger_is_not_continued(tmp_path, monkeypatch):
    config, ledgers = runs.small(tmp_path, SHORT), tmp_path / "first" / "ledger"
    runs.train(config, tmp_path / "first")
    shutil.copy(ledgers / "node-0.jsonl", ledgers / "node-1.jsonl")  # what node 1 spent, which is more, is lost
    monkeypatch.setenv("PRIVSGP_STATE", str(tmp_path / "nothing"))
    said = _refused("train", config, "--out", tmp_path / "second", "--set=privacy.epsilon=4.0", "--ledger", ledgers)
    assert "node-1.jsonl is the ledger of node 0" in said
    assert "node-1.jsonl is the ledger of node 0" in _refused("ledger", ledgers)


def _train(out, data, epsilon, **more):
    privsgp.train(
        nn.Linear(6, 3), data, out=out, classes=3, privacy={"epsilon": epsilon},
        algorithm={"name": "privsgp-sag", "steps": 2, "batch": 8}, engine={"device": "cpu"}, **more,
    )  # fmt: skip


def test_records_that_a_partition_moved_are_not_continued(tmp_path):
    _train(tmp_path / "first", (X, Y), 1.0, nodes=4)
    ledgers = tmp_path / "first" / "ledger"
    sites = {i: (X[100 * i : 100 * i + 100], Y[100 * i : 100 * i + 100]) for i in range(4)}
    with pytest.raises(Refused, match="another layout of records"):  # as many records on each, and others
        _train(tmp_path / "second", sites, 2.0, ledger=ledgers)
    with pytest.raises(Refused, match="samples at node 0: 100, and here 99"):  # of fewer records
        _train(tmp_path / "second", (X[:396], Y[:396]), 2.0, nodes=4, ledger=ledgers)
    _train(tmp_path / "second", (X, Y), 2.0, nodes=4, ledger=ledgers)


def test_a_site_that_has_more_records_than_before_goes_on(tmp_path):
    _train(tmp_path / "first", {0: (X[:100], Y[:100]), 1: (X[100:200], Y[100:200])}, 1.0)
    _train(
        tmp_path / "second", {0: (X[:100], Y[:100]), 1: (X[100:210], Y[100:210])}, 2.0,
        ledger=tmp_path / "first" / "ledger",
    )  # fmt: skip


def test_a_ledger_that_is_a_pipe_is_refused(tmp_path, hurried):
    config, ledgers = runs.small(tmp_path, SHORT), tmp_path / "first" / "ledger"
    runs.train(config, tmp_path / "first")
    (ledgers / "node-1.jsonl").unlink()
    os.mkfifo(ledgers / "node-1.jsonl")
    assert "is no" in _refused(
        "train", config, "--out", tmp_path / "second", "--set=privacy.epsilon=4.0", "--ledger", ledgers
    )
