"""What is timed is the engine's own step, ledger included; what is printed is what was timed."""

from __future__ import annotations

import importlib
import pathlib
import socket
import time

import numpy as np
import pytest
import torch

from privsgp.sites.study import Study


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
        ledgers = training.budget_guard.ledgers
        assert not any(ledger.holds(1) for ledger in ledgers)
        assert all(ledger.holds(2) for ledger in ledgers)
        assert not training.state.x.equal(before)


def test_noise_that_is_shared_is_timed_as_it_is_counted(monkeypatch):
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent.parent / "benchmarks")
    ours, workloads = importlib.import_module("ours"), importlib.import_module("workloads")
    work = workloads.Workload(nodes=4, batch=4, samples=20, hidden=5, shape=(7,), shared=True)
    with ours.engine(work) as training:
        ours.stepper(training)()
        assert training.spec.noise.name == "pairwise"
        assert {m.shared.honest for m in training.spec.mechanisms} == {3}


PLACE = {"device": "cpu", "n": 50, "batch": 48, "samples": 1200, "dim": 79510, "memory_mb": 1.0}
RATIOS = {"opacus_ms": 300.0, "opacus_ratio": 6.0, "ghost_ratio": 2.0, "sgd_ratio": 0.7, "floor_ratio": 0.2}


def test_one_line_has_ours_with_a_seed_and_without_beside_the_others(monkeypatch):
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent.parent / "benchmarks")
    shown = importlib.import_module("shown")
    rows = [{"workload": "mlp", "ours_ms": 50.0} | PLACE | RATIOS]
    rows += [{"workload": "secret, mlp", "ours_ms": 80.0, "seeded_ms": 40.0} | PLACE]
    rows += [{"workload": "scale, mlp", "ours_ms": ms, "node_step_us": us} | PLACE for ms, us in ((1, 1e3), (9, 1500))]
    rows += [{"workload": "ledger", "n": 1, "ours_ms": 5.0, "bytes_per_release": 33.5}]
    main, below, scale, rest = shown.page(rows).split("\n\n")
    (line,) = main.splitlines()[2:]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["mlp, cpu", "50 × 48", "1,200", "79,510", "50", "80", "2.00", "300 (6)", "35 (0.7)", "10 (0.2)"]
    assert "In brackets" in below
    assert [line.split("|")[4].strip() for line in scale.splitlines()[2:]] == ["1.00", "1.50"]
    assert "bytes_per_release 33.5" in rest


def test_a_busy_machine_is_told_from_an_idle_one(monkeypatch):
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent.parent / "benchmarks")
    busy = importlib.import_module("busy")
    assert "BUSY" in busy.words(0.1, [{"others": 0.0}, {"others": 0.4}])
    assert "BUSY" in busy.words(1e3, [])
    assert "idle" in busy.words(0.0, [{"others": 0.01, "steal": 0.0}])
    monkeypatch.setattr(busy, "_look", iter([(10.0, 1.0, 20.0, 3.0), (14.0, 2.0, 30.0, 4.0)]).__next__)
    assert busy.Watch().lap() == {"others": 0.3, "steal": 0.1}


def test_the_ledger_of_a_long_run_takes_34_bytes_a_release(monkeypatch):
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent.parent / "benchmarks")
    row = importlib.import_module("scale").ledger(6400)
    assert 31 < row["bytes_per_release"] < 34


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


def test_layers_are_judged_against_autograd(monkeypatch):
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent.parent / "benchmarks")
    layers = importlib.import_module("layers")
    kinds = [
        kind for part in (layers.convolutions, layers.others, layers.sequences, layers.looked_up) for kind in part()
    ]
    assert len(kinds) == 91
    assert layers.judged(torch.nn.Linear(3, 2), (3,), tokens=False) == "by rules"
    assert layers.judged(torch.nn.InstanceNorm1d(3, affine=True), (3, 4), tokens=False) == "by torch.func"
    assert layers.judged(torch.nn.BatchNorm1d(3), (3, 4), tokens=False).startswith(
        "refused: the model is a BatchNorm1d"
    )
    monkeypatch.setattr(layers, "stack", lambda *_: lambda z, *_: _Plain(z.new_zeros(3, 4, z.shape[1])))
    assert layers.judged(torch.nn.Linear(3, 2), (3,), tokens=False).startswith("wrong by")


class _Plain:
    def __init__(self, gradients):
        self.gradients = gradients

    def dense(self):
        return self.gradients


def test_every_site_of_a_soak_has_the_rows_that_were_agreed_on(monkeypatch, tmp_path):
    """Else it refuses to join, and the others wait for it."""
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent.parent / "benchmarks")
    made = importlib.import_module("soak").Sites(tmp_path, 4)
    agreed = Study.read(tmp_path / "soak.study").samples
    assert agreed == [len(np.load(tmp_path / f"{name}.npz")["y"]) for name in made.names]
