"""Processes that die: the others say so, nothing is lost, and started again they end where they would have ended."""

from __future__ import annotations

import random
import re
import signal

import cluster
import pytest

import runs
from privsgp.accounting import ledger

PATIENCE = 8.0
DIGITS = """
name = "digits"
seed = 0
[data]
nodes = 16
[model]
name = "logistic"
[privacy]
sigma = 0.05
[algorithm]
name = "privsgp-sag"
batch = 45
steps = 30
step_size = 0.3
[engine]
device = "cpu"
evaluate_every = 15
checkpoint_every = 4
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    runs.train(runs.small(folder, DIGITS), folder / "out")
    return folder / "out"


def _killed(said, config, out, processes, restart, draw):
    """Start the run, kill one process at a random moment, and return (who, how all ended)."""
    victim, moments = draw.randrange(processes), draw.randrange(5, 90)
    words = [["train", config, "--out", out]] * processes
    started = cluster.start(said, words, "cluster.die", restart, victim=victim, moments=moments, patience=PATIENCE)
    return victim, cluster.ended(said, started)


def _never_short(out):
    """Every message that some ledger notes as sent is paid for; and what is charged is at least that."""
    for node in range(16):
        path = out / "ledger" / f"node-{node}.jsonl"
        if path.exists() and path.read_bytes().count(b"\n"):
            assert ledger.read(path)[-1].charged >= len({(k, a) for k, a, _ in runs.sent(out, node)})


def _kill_and_restart(tmp_path, undisturbed, kills, processes, draw):
    config, out, died = runs.small(tmp_path, DIGITS), tmp_path / "out", 0
    for restart in range(kills):
        victim, all_ended = _killed(tmp_path / f"said{restart}", config, out, processes, restart, draw)
        _never_short(out)
        if all_ended[victim].code == 0:
            continue
        died, named = died + 1, set[int]()
        assert all_ended[victim].code == -signal.SIGKILL
        for rank, one in enumerate(all_ended):
            if rank != victim:
                assert one.code == 5, one.err
                how = rf"its connection broke|silent for {PATIENCE:g} s|it ended: see its own message"
                said = re.search(rf"process(?:es)? ([\d, ]+) (?:is|are) gone \((?:{how})\); noticed at step", one.err)
                assert said is not None, one.err
                named |= {int(rank) for rank in said[1].split(",")}
        assert victim in named  # one that leaves because of another may be missed too
    cluster.train(tmp_path / "last", config, out, processes, restart=kills)
    assert (out / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()
    assert runs.charged(out) == runs.charged(undisturbed) == [30] * 16
    return died


def test_two_kills_of_eight_processes(tmp_path, undisturbed):
    assert _kill_and_restart(tmp_path, undisturbed, 2, 8, random.Random(2)) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_twenty_kills(tmp_path, undisturbed, seed):
    assert _kill_and_restart(tmp_path, undisturbed, 1, 8, random.Random(100 + seed)) == 1


def test_a_silent_process_is_given_up_after_the_set_time(tmp_path):
    config = runs.small(tmp_path, DIGITS)
    words = [["train", config, "--out", tmp_path / "out"]] * 3
    started = cluster.start(tmp_path / "said", words, "cluster.sleep", victim=1, step=6, patience=2.0)
    for rank in (0, 2):
        started[rank].join(60)
    started[1].kill()
    said = cluster.ended(tmp_path / "said", started)
    for rank in (0, 2):
        assert said[rank].code == 5
        assert re.search(r"process \d is gone \((no message within 2 s|its connection broke|it ended)", said[rank].err)
    assert any("process 1 is gone (no message within 2 s)" in one.err for one in said)


def test_a_secret_run_resumes_together_and_pays_for_what_it_repeats(tmp_path):
    text = DIGITS.replace("seed = 0\n", "").replace("sigma = 0.05", "epsilon = 3.0\nspare = 1.0")
    config, out = runs.small(tmp_path, text.replace('"privsgp-vr"', '"privsgp"')), tmp_path / "out"
    words = [["train", config, "--out", out]] * 3
    started = cluster.start(tmp_path / "said", words, "cluster.die", victim=2, moments=95)
    assert cluster.ended(tmp_path / "said", started)[2].code == -signal.SIGKILL
    _never_short(out)
    summary = cluster.train(tmp_path / "last", config, out, 3, restart=1)
    assert summary["steps"] == 30
    charged = runs.charged(out)
    assert summary["releases"] == charged
    assert max(charged) > 30  # what was repeated was paid for again
    assert max(summary["epsilon_spent"]) <= 3.0
    for node in range(16):
        messages = runs.sent(out, node)
        assert len({digest for _, _, digest in messages}) == len(messages) <= charged[node]


def test_where_one_has_lost_a_ledger_none_goes_on(tmp_path):
    text = DIGITS.replace("seed = 0\n", "").replace("sigma = 0.05", "epsilon = 3.0\nspare = 1.0")
    config, out = runs.small(tmp_path, text), tmp_path / "out"
    words = [["train", config, "--out", out]] * 2
    cluster.ended(tmp_path / "a", cluster.start(tmp_path / "a", words, "cluster.interrupt", victim=1, step=9))
    (out / "ledger" / "node-15.jsonl").unlink()
    said = cluster.ended(tmp_path / "b", cluster.start(tmp_path / "b", words, restart=1))
    assert [one.code for one in said] == [2, 2]
    assert "process 1 was refused" in said[0].err
    assert "node-15.jsonl has lost lines" in said[1].err
    assert not (out / "ledger" / "node-15.jsonl").exists()


def test_a_stop_is_agreed_on_and_taken_at_a_common_checkpoint(tmp_path, undisturbed):
    config, out = runs.small(tmp_path, DIGITS), tmp_path / "out"
    words = [["train", config, "--out", out]] * 3
    started = cluster.start(tmp_path / "said", words, "cluster.interrupt", victim=1, step=9)
    said = cluster.ended(tmp_path / "said", started)
    assert [one.code for one in said] == [130] * 3
    assert all("stopped after step 12" in one.err for one in said)
    assert runs.charged(out) == [12] * 16
    cluster.train(tmp_path / "last", config, out, 3, "--resume")
    assert (out / "model.safetensors").read_bytes() == (undisturbed / "model.safetensors").read_bytes()


def test_without_checkpoints_a_stop_is_agreed_on_too(tmp_path):
    config = runs.small(tmp_path, DIGITS.replace("checkpoint_every = 4", "checkpoint_every = 0"))
    words = [["train", config, "--out", tmp_path / "out", "--set=algorithm.steps=80"]] * 2
    started = cluster.start(tmp_path / "said", words, "cluster.interrupt", victim=1, step=9)
    said = cluster.ended(tmp_path / "said", started)
    assert [one.code for one in said] == [130] * 2
    assert all("stopped after step 64; there is no checkpoint" in one.err for one in said)
