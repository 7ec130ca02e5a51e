"""What cannot be recorded on a GPU is computed instead; kernels are launched on the run's own device."""

from __future__ import annotations

import contextlib
import warnings
from types import SimpleNamespace

import pytest
import torch

from privsgp import devices
from privsgp.algorithms import Drawn
from privsgp.engine import step

Z, BATCH = torch.ones(2, 3), [Drawn(torch.tensor([[1], [2]]), torch.ones(2, 1, dtype=torch.bool))]


class _Graph:
    """Keeps what it is shown, and runs that again."""

    def replay(self):
        self.again()


@pytest.fixture
def recorded(monkeypatch):
    """A direction, and a GPU that records: the test says how the direction fares while it does."""
    recording = []

    @contextlib.contextmanager
    def graph(made, *, stream):
        assert stream == "a stream on cpu"
        recording.append(made)
        try:
            yield
        finally:
            recording.pop()
        if seen.empty:
            warnings.warn("The CUDA Graph is empty. This usually means…", stacklevel=1)

    def direction(z, batch):
        if recording and seen.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        out = z * batch[0].rows
        if recording:
            recording[0].again = lambda: out.copy_(z * batch[0].rows)
        return out

    for name, fake in (("CUDAGraph", _Graph), ("graph", graph), ("Stream", "a stream on {}".format)):
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(step, "_twice_a_step_fits", lambda: True)
    seen = SimpleNamespace(fails=False, empty=False)
    return step.Recorded(direction, dict), seen


@pytest.mark.parametrize(("fails", "empty"), [(False, False), (True, False), (False, True)])
def test_every_step_has_its_own_batch_whether_it_is_recorded_or_not(recorded, fails, empty):
    take, seen = recorded
    seen.fails, seen.empty = fails, empty
    for k in range(7):
        rows = torch.tensor([[k], [2 * k]])
        assert torch.equal(take(Z, [Drawn(rows, BATCH[0].mask)]), Z * rows)
    assert (take._graph is None) == (fails or empty)


def test_a_named_gpu_becomes_the_current_one(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name in ("cpu", "cuda", "cuda:1"):
        assert devices.current(torch.device(name)) == torch.device(name)
    assert chosen == [torch.device("cuda:1")]
