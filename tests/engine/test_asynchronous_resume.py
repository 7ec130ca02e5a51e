"""Asynchronous runs that are killed: the same bytes with a seed, and without one every release of a node paid for."""

from __future__ import annotations

import collections
import hashlib
import os
import random
import signal

import pytest

import runs

ASYNCHRONOUS = (
    runs.SMALL.replace("sigma = 0.05", "epsilon = 2.0\nspare = 0.5").replace('"privsgp"', '"adp2-sgd"')
    + '[graph]\nname = "ring"\n[clock]\nspread = 1.0\nstragglers = [2]\nslowdown = 4.0\n'
)
SECRET = ASYNCHRONOUS.replace("seed = 7\n", "")
FILES = ("model.safetensors", "nodes/0.safetensors", "nodes/3.safetensors")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder / "out", runs.train(runs.small(folder, ASYNCHRONOUS), folder / "out")


def test_a_seeded_run_killed_at_random_moments_ends_with_the_same_bytes(tmp_path, undisturbed):
    whole, expected = undisturbed
    config, out, draw = runs.small(tmp_path, ASYNCHRONOUS), tmp_path / "out", random.Random(1)
    arguments = ("train", config, "--out", out, "--resume")
    assert sum(runs.killed(*arguments, moments=draw.randrange(20, 160)) for _ in range(4)) >= 3
    summary = runs.train(config, out, "--resume")
    for file in FILES:
        assert (out / file).read_bytes() == (whole / file).read_bytes(), file
    assert summary["releases"] == expected["releases"] == runs.charged(out)
    assert len(set(expected["releases"])) > 1
    for node in range(4):
        assert runs.sent(out, node) == runs.sent(whole, node)
    assert runs.evaluated(out) == runs.evaluated(whole)
    assert summary["virtual_seconds"] == expected["virtual_seconds"]


def _witnessed(arguments: list[str], moments: int, log: str, state: str) -> None:
    """Train in a process that dies, and write down which releases are in the models that nodes send each other."""
    os.environ["PRIVSGP_STATE"] = state  # the fork server began before the test
    from privsgp.algorithms import Meet
    from privsgp.engine.drive import RunDriver
    from privsgp.engine.node_randomness import NodeRandomness

    noise, answer = NodeRandomness.noise, RunDriver.__call__
    file, drawn, held = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), {}, {}

    def noised(self, number, g, node):
        noise(self, number, g, node)
        drawn[node] = hashlib.sha256(g.numpy().data).hexdigest()

    def watched(self, k, event):
        if isinstance(event, Meet):
            for node in {event.i, event.j} & set(held):
                os.pwrite(file, f"{node} {held[node]}\n".encode(), os.lseek(file, 0, os.SEEK_END))
            held[event.i] = drawn[event.i]  # from the end of this event on
        return answer(self, k, event)

    NodeRandomness.noise, RunDriver.__call__ = noised, watched
    runs._dying(arguments, None, moments, state)


def _died(config, out, log, moments) -> bool:
    arguments = ["train", str(config), "--out", str(out), *runs.again(out)]
    process = runs.FORKS.Process(target=_witnessed, args=(arguments, moments, str(log), os.environ["PRIVSGP_STATE"]))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def test_without_a_seed_no_ledger_shows_less_than_what_others_have_seen(tmp_path):
    config, out, log, draw = runs.small(tmp_path, SECRET), tmp_path / "out", tmp_path / "seen", random.Random(2)
    died = 0
    for _ in range(3):
        died += _died(config, out, log, draw.randrange(90, 120))
        lines = set(log.read_text().splitlines()) if log.exists() else set()
        seen = collections.Counter(int(line.split()[0]) for line in lines)
        assert all(seen[node] <= charged for node, charged in enumerate(runs.charged(out)))
    assert died > 0
    assert sum(seen.values()) > 60
    summary = runs.train(config, out, "--resume")
    assert summary["releases"] == runs.charged(out)
    assert max(summary["epsilon_spent"]) <= 2.0
    for node, charged in enumerate(summary["releases"]):
        messages = runs.sent(out, node)
        assert len(set(messages)) == len(messages) <= charged
