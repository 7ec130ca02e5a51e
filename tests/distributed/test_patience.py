"""Every wait has a deadline: a process that stands still ends the run after the set time, and not before."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import cluster
import pytest

import runs


def _started(tmp_path, processes, **told):
    config = runs.small(tmp_path, runs.SMALL)
    words = [["train", config, "--out", tmp_path / "out"]] * processes
    return cluster.start(tmp_path / "said", words, **told)


def _stopped(process):
    """Wait until a process has stopped itself."""
    begun = time.monotonic()
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() - begun < 30
        time.sleep(0.01)


@pytest.mark.parametrize("step", [3, 13])
def test_the_others_leave_when_the_process_that_holds_the_meeting_place_stands_still(tmp_path, step):
    started = _started(tmp_path, 3, hook="hostile.pause", victim=0, step=step, hosted=True, patience=2.0)
    _stopped(started[0])
    begun = time.monotonic()
    for rank in (1, 2):
        started[rank].join(20)
    seconds, codes = time.monotonic() - begun, [started[rank].exitcode for rank in (1, 2)]
    for process in started:
        process.kill()
    assert codes == [5, 5]
    assert seconds < 3 + 8
    for one in cluster.ended(tmp_path / "said", started)[1:]:
        assert "is gone" in one.err
        assert "Traceback" not in one.err


def test_an_exchange_does_not_outlast_patience_either(tmp_path):
    """Process 0 stops before anybody has said anything: survivors hang in the store, not in a message."""
    started = _started(tmp_path, 2, hook="hostile.pause_at_exchange", victim=0, number=4, hosted=True, patience=2.0)
    _stopped(started[0])
    started[1].join(20)
    code = started[1].exitcode
    started[0].kill()
    if code is None:
        started[1].kill()
    assert code == 5
    assert "the meeting point does not answer" in cluster.ended(tmp_path / "said", started)[1].err


def test_a_cut_that_is_shorter_than_patience_does_not_end_a_run(tmp_path):
    started = _started(tmp_path, 2, hook="hostile.pause_at_exchange", victim=1, number=8, patience=32.0)
    _stopped(started[1])
    time.sleep(6.5)
    os.kill(started[1].pid, signal.SIGCONT)
    assert [one.code for one in cluster.ended(tmp_path / "said", started)] == [0, 0]


def test_process_0_is_absent(tmp_path):
    started = _started(tmp_path, 2, hosted=True, absent=[0], patience=2.0)
    begun = time.monotonic()
    started[0].join(30)
    assert time.monotonic() - begun < 15
    assert started[0].exitcode == 2
    said = (tmp_path / "said" / "1.err").read_text()
    assert "do not meet at 127.0.0.1:" in said
    assert "Traceback" not in said
