"""Peers are adversaries: what one says or sends cannot change what another site promises, nor crash it."""

from __future__ import annotations

import json
import signal

import cluster
import numpy as np
import pytest

import runs
from privsgp.accounting import ledger
from privsgp.runs import summary

# Four nodes in two processes, whose noise is calibrated.
BUDGETS = (
    runs.SMALL.replace("sigma = 0.05", "epsilon = 4.0")
    .replace("steps = 30", "steps = 8")
    .replace('"privsgp"', '"privsgp-sag"')
)


def _ran(tmp_path, text, hook, processes=2, options=(), **told):
    config = runs.small(tmp_path, text)
    words = [["train", config, "--out", tmp_path / f"out{rank}", *options] for rank in range(processes)]
    said = tmp_path / "said"
    return cluster.ended(said, cluster.start(said, words, hook, **{"patience": 4.0} | told))


def _no_traceback(all_ended):
    for one in all_ended:
        assert "Traceback" not in one.err
        assert one.code in (0, 2, 4, 5), (one.code, one.err)


def _sites(tmp_path):
    rng = np.random.default_rng(0)
    for node in range(4):
        y = np.arange(100) % 3
        np.savez(tmp_path / f"site-{node}.npz", x=rng.normal(size=(100, 6)).astype(np.float32), y=y, classes=3)
    return runs.SMALL.replace("sizes = [300, 300, 300, 300]\n", f'path = "{tmp_path}/site-{{node}}.npz"\n')


@pytest.mark.parametrize(("about", "word"), [(1, "[150, 50]"), (0, "[0, 200]")])
def test_nobody_else_sets_a_sites_sizes(tmp_path, about, word):
    text = _sites(tmp_path)
    all_ended = _ran(tmp_path, text, "hostile.say", liar=0, about=about, pattern=r"\[100, 100\]", word=word)
    assert all_ended[1].code == 2, all_ended[1].err
    assert ("changed at the meeting point" if about else "process 0 says") in all_ended[1].err
    _no_traceback(all_ended)


@pytest.mark.parametrize("word", ['"../../up"'])
def test_the_number_of_a_run_is_a_number(tmp_path, word):
    all_ended = _ran(tmp_path, BUDGETS, "hostile.say", liar=0, about=0, pattern='"[0-9a-f]{32}"', word=word)
    assert all_ended[1].code == 2, all_ended[1].err
    assert "process 0 says" in all_ended[1].err
    _no_traceback(all_ended)


def test_a_site_writes_its_own_releases_and_epsilon(tmp_path):
    """The first process lies about its own nodes and would write everybody's summary."""
    all_ended = _ran(tmp_path, BUDGETS, "hostile.say", liar=0, about=0, pattern=r"\[8, 8\]", word="[1, 1]")
    assert [one.code for one in all_ended] == [0, 0], all_ended[0].err + all_ended[1].err
    summary = json.loads((tmp_path / "out1" / "summary.json").read_text())
    assert summary["releases"] == [1, 1, 8, 8]
    assert summary["reported"] == [0, 1]
    segments = [ledger.read(tmp_path / "out1" / "ledger" / f"node-{i}.jsonl")[-1] for i in (2, 3)]
    assert [segment.charged for segment in segments] == [8, 8]
    assert summary["sigma"][2:] == [segment.header.mechanism["sigma"] for segment in segments]
    assert all(0.1 < epsilon <= 4.0 for epsilon in summary["epsilon_spent"][2:])


def test_a_summary_that_could_not_be_read_again_is_not_written(tmp_path):
    """The first process says when the run ended, and how long it took: `seconds` is not null."""
    seen = dict.fromkeys(("virtual_seconds", "seconds", *summary._MEASURED))
    word = json.dumps(seen | {"finished": "2026-01-01T00:00:00Z"})
    all_ended = _ran(tmp_path, BUDGETS, "hostile.say", liar=0, about=0, pattern=r'\{"test_accuracy".*', word=word)
    assert all_ended[1].code == 2, all_ended[1].err
    assert "process 0 says" in all_ended[1].err
    assert not (tmp_path / "out1" / "summary.json").exists()


@pytest.mark.parametrize("how", ["short", "flipped", "w=-1"])
def test_what_is_no_message_is_not_mixed_in(tmp_path, how):
    all_ended = _ran(tmp_path, BUDGETS, "hostile.send", liar=1, step=3, how=how)
    assert all_ended[0].code == 2, all_ended[0].err
    assert "process 1" in all_ended[0].err
    assert not (tmp_path / "out0" / "summary.json").exists()
    _no_traceback(all_ended)


@pytest.mark.parametrize("how", ["nan", "1e38"])
def test_a_message_that_is_no_model_is_blamed_on_its_sender(tmp_path, how):
    all_ended = _ran(tmp_path, BUDGETS, "hostile.send", liar=1, step=3, how=how)
    assert all_ended[0].code == 4, all_ended[0].err
    assert "the message of node 3 (process 1)" in all_ended[0].err
    assert not (tmp_path / "out0" / "summary.json").exists()
    _no_traceback(all_ended)


def test_a_message_that_is_too_long_ends_the_process_that_gets_it(tmp_path):
    """Gloo aborts in a thread of its own. No byte beyond the memory that it was given is written."""
    all_ended = _ran(tmp_path, BUDGETS, "hostile.send", liar=1, step=3, how="long")
    assert all_ended[0].code == -signal.SIGABRT
    assert all_ended[1].code == 5
    assert "process 0 is gone (its connection broke)" in all_ended[1].err
    assert not (tmp_path / "out0" / "summary.json").exists()
