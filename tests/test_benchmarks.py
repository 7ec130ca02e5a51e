"""What is timed is the engine's own step, ledger included."""

from __future__ import annotations

import importlib
import pathlib
import socket
import time

import pytest


@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("algorithm", ["privsgp", "privsgp-vr"])
def test_a_timed_step_is_paid_for_and_noted(monkeypatch, algorithm, seed):
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent.parent / "benchmarks")
    ours, workloads = importlib.import_module("ours"), importlib.import_module("workloads")
    work = workloads.Workload(nodes=3, batch=4, samples=20, hidden=5, shape=(7,))
    with ours.engine(work, algorithm, seed=seed) as training:
        assert training.randomness.source.secret == (seed is None)
        before, step = training.state.x.clone(), ours.stepper(training)
        step()
        step()
        assert [ledger.segment.sent_at(1) for ledger in training.budget_guard.ledgers] == [0, 0, 0]
        assert not training.state.x.equal(before)


def test_noise_that_is_shared_is_timed_as_it_is_counted(monkeypatch):
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent.parent / "benchmarks")
    ours, workloads = importlib.import_module("ours"), importlib.import_module("workloads")
    work = workloads.Workload(nodes=4, batch=4, samples=20, hidden=5, shape=(7,), shared=True)
    with ours.engine(work) as training:
        ours.stepper(training)()
        assert training.spec.noise.name == "pairwise"
        assert {m.honest for m in training.spec.mechanisms} == {3}


def test_a_slow_wire_carries_all_and_no_faster_than_it_says(monkeypatch):
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent.parent / "benchmarks")
    sites, text = importlib.import_module("sites"), bytes(range(256)) * 200
    with socket.create_server(("127.0.0.1", 0)) as far, sites.wire(4e6, 0.02) as wire:
        wire.target = far.getsockname()[1]
        with socket.create_connection(("127.0.0.1", wire.port)) as near:
            began, there = time.monotonic(), far.accept()[0]
            near.sendall(text)
            near.shutdown(socket.SHUT_WR)
            with there, there.makefile("rb") as read:
                assert read.read() == text
    assert time.monotonic() - began >= 8 * len(text) / 4e6
