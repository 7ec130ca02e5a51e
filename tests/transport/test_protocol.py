"""A kind of transport that the trainer never heard of: it is asked by the protocol alone."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

import runs
from privsgp.engine import trainer
from privsgp.transport.in_process import InProcess
from privsgp.transport.protocol import Transport


class _Carrier(Transport):
    """Mixes as one process does, and keeps who was asked what."""

    local: ClassVar[bool] = False
    message_bytes = 1000

    def __init__(self, network, like):
        self.inner, self.sums = InProcess(network, like), torch.zeros(1)
        self.asked, self.noted = [], lambda _k: []

    def mix(self, k, x, w):
        self.asked.append((k, self.noted(k)))
        self.sums += 1
        return self.inner.mix(k, x, w)

    def messages(self, _k):
        return 3

    def arrays(self):
        return {"sums": self.sums}


def _carried(run, kind=_Carrier):
    return kind(run.spec.graph, run.state.x)


@pytest.mark.parametrize("local", [False, True])
def test_messages_are_noted_before_they_leave(tmp_path, monkeypatch, local):
    kind, made = type("Kind", (_Carrier,), {"local": local}), []
    monkeypatch.setattr(trainer.Trainer, "_connect", lambda run: made.append(_carried(run, kind)) or made[-1])
    begin = trainer.Trainer._begin

    def watched(self):
        ledgers = self.budget_guard
        made[0].noted = lambda k: [ledger.next == k + 1 for ledger in ledgers.ledgers]
        return begin(self)

    monkeypatch.setattr(trainer.Trainer, "_begin", watched)
    summary = runs.train(runs.small(tmp_path), tmp_path / "out")
    (carrier,) = made
    assert [k for k, _ in carrier.asked] == list(range(30))
    assert all(noted == [True] * 4 for _, noted in carrier.asked)
    assert [step for step, _, _ in runs.sent(tmp_path / "out")] == list(range(30))
    assert summary["bytes_sent"] == 30 * 3 * 1000


def test_the_model_does_not_depend_on_the_kind(tmp_path, monkeypatch):
    runs.train(runs.small(tmp_path), tmp_path / "plain")
    monkeypatch.setattr(trainer.Trainer, "_connect", _carried)
    runs.train(runs.small(tmp_path), tmp_path / "carried")
    plain, carried = (tmp_path / name / "model.safetensors" for name in ("plain", "carried"))
    assert plain.read_bytes() == carried.read_bytes()
