"""SIGKILL at random moments, with a witness outside the ledgers: no ledger ever shows less than what was sent."""

from __future__ import annotations

import collections
import os
import random
import signal

import pytest
from blake3 import blake3

import runs

SECRET = runs.SMALL.replace("seed = 7\n", "").replace("sigma = 0.05", "epsilon = 2.0\nspare = 1.0")


def _witnessed(arguments: list[str], moments: int, log: str, state: str) -> None:
    """Train in a process that dies, and write every message down as it goes into the network."""
    os.environ["PRIVSGP_STATE"] = state  # the fork server began before the test
    from privsgp.transport.in_process import InProcess

    network = InProcess.mix
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def watched(self, k, x, w, *meanwhile):
        for node, message in enumerate(x if meanwhile else ()):  # the report lets a made-up model spread
            digest = blake3(message.numpy().view("u1").data).hexdigest()
            os.pwrite(file, f"{node} {digest}\n".encode(), os.lseek(file, 0, os.SEEK_END))
        return network(self, k, x, w, *meanwhile)

    InProcess.mix = watched
    runs._dying(arguments, None, moments, state)


def _kill(kills: int, folder, draw: random.Random) -> int:
    """Kill so many processes, over as many runs as that takes; compare ledgers and witness after each."""
    config, died, run = runs.small(folder, SECRET), 0, 0
    while died < kills:
        run += 1
        out, log = folder / f"run-{run}", folder / f"seen-{run}"
        finished = False
        while not finished and died < kills:
            arguments = ["train", str(config), "--out", str(out), *runs.again(out)]
            process = runs.FORKS.Process(
                target=_witnessed, args=(arguments, draw.randrange(5, 160), str(log), os.environ["PRIVSGP_STATE"])
            )
            process.start()
            process.join()
            assert process.exitcode in (0, -signal.SIGKILL)
            finished = process.exitcode == 0
            died += not finished
            _compare(out, log)
    return died


def _compare(out, log) -> None:
    lines = log.read_text().splitlines() if log.exists() else []
    seen = collections.Counter(int(line.split()[0]) for line in set(lines))
    charged = runs.charged(out) if (out / "ledger").exists() else []
    for node, messages in seen.items():
        assert messages <= charged[node]


def test_three_kills(tmp_path):
    assert _kill(3, tmp_path, random.Random(0)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_hundred_kills(tmp_path, seed):
    assert _kill(10, tmp_path, random.Random(100 + seed)) == 10
