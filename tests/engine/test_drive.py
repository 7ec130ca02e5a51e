"""A step's events and its drivers: what is released is paid for first, and what comes back belongs to the step."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import privsgp
import runs
from privsgp.algorithms import ALGORITHMS, Algorithm, Exchange, Meet, PrivSGP, Pushed, Release, State, ToServer
from privsgp.algorithms.block import clipped_mean
from privsgp.engine.drive import RunDriver, drive, rehearsed
from privsgp.engine.trainer import Trainer
from privsgp.errors import Refused

X, W = torch.arange(12.0).view(4, 3), torch.ones(4, dtype=torch.float64)


class _World:
    """Notes what a driver does, and mixes by doubling."""

    local, message_bytes = True, 10

    def __init__(self):
        self.done = []

    def record(self, number, message, node=None):
        self.done.append(("record", number, message.shape, node))

    def messages(self, _k):
        return 3

    def mix(self, k, x, w):
        self.done.append(("mix", k))
        return 2 * x, w


@pytest.fixture
def world():
    return _World()


@pytest.fixture
def driver(world):
    return RunDriver(world, world, sent=1000)


def _step(answers, *events):
    for event in events:
        answers.append((yield event))
    return State(X, W, X)


def test_messages_are_recorded_before_they_are_mixed(world, driver):
    answers = []
    state = drive(_step(answers, Release(X), Exchange(X, W), Exchange(X + 1, W)), 7, driver)
    assert state.x is X
    assert world.done == [
        ("record", 7, (4, 3), None), ("mix", 7), ("mix", 7),
    ]  # fmt: skip
    assert answers[0] is None
    assert torch.equal(answers[1][0], 2 * X)
    assert torch.equal(answers[2][0], 2 * X + 2)
    assert driver.bytes_sent == 1000 + 2 * 3 * 10


def test_servers_pairs_and_kernels(world, driver):
    answers, x = [], X.clone()
    drive(_step(answers, ToServer(X, 5), Meet(0, 2, x), Meet(1, 1, x), Release(x[1], 1, 9), Pushed()), 3, driver)
    assert torch.equal(answers[0], X.mean(0))
    assert torch.equal(x[0], (X[0] + X[2]) / 2)
    assert torch.equal(x[0], x[2])
    assert torch.equal(x[1], X[1])
    assert world.done == [("record", 9, (1, 3), 1)]
    assert driver.bytes_sent == 1000 + 4 * (5 + 12) + 2 * 12 + 3 * 10


def test_what_is_no_event_is_refused(driver):
    with pytest.raises(TypeError, match="no event"):
        drive(_step([], X), 0, driver)


def test_a_rehearsal_gets_back_what_it_sends():
    answers = []
    drive(_step(answers, Release(X), Exchange(X, W), ToServer(X, 5)), 0, rehearsed)
    assert answers[0] is None
    assert answers[1] == (X, W)
    assert torch.equal(answers[2], X.mean(0))


class Tracking(Algorithm):
    """Gradient tracking, written as its formula: y ← W y + g − g', x ← W x − γ y; both x and y are mixed."""

    name = "tracking"
    network = "undirected"
    mechanism = staticmethod(PrivSGP.mechanism)

    def begin(self, z):
        self.y, self.g = torch.zeros_like(z), torch.zeros_like(z)

    def arrays(self):
        return {"y": self.y, "g": self.g}

    def step(self, k, s):
        g = clipped_mean(self.block, s.z, self.block.random.sample(k))
        self.block.random.noise(k, g)
        yield Release(g)
        y, _ = yield Exchange(self.y, s.w)
        x, _ = yield Exchange(s.x, s.w)
        y += g - self.g
        self.y.copy_(y)
        self.g.copy_(g)
        x -= self.block.step_size(k) * y
        return State(x, s.w, s.z.copy_(x))


@pytest.fixture
def tracking():
    privsgp.register(Tracking)
    yield
    del ALGORITHMS._registered["tracking"]


TRACKING = runs.changes(algorithm__name="tracking", algorithm__steps=40, graph__name="ring", privacy__sigma=0.01)


def test_a_method_that_mixes_twice_a_step_is_its_plain_loop(tmp_path, tracking, monkeypatch):
    """The loop is in float64 and takes the run's own noised gradients at its own models."""
    noised, seen, noise = [], {}, Trainer._block

    def watched(self, *given):
        add = self.randomness.noise

        def keep(k, g):
            add(k, g)
            noised.append(g.double().numpy().copy())

        self.randomness.noise = keep
        seen.update(graph=self.spec.graph, step_size=self.spec.step_size, x0=self.state.x[0].double().numpy())
        return noise(self, *given)

    monkeypatch.setattr(Trainer, "_block", watched)
    summary = runs.train(runs.small(tmp_path), tmp_path / "out", *TRACKING)
    x = np.tile(seen["x0"], (4, 1))
    y, before = np.zeros_like(x), np.zeros_like(x)
    for k, g in enumerate(noised):
        P = seen["graph"].matrix(k)
        y = P @ y + g - before
        x, before = P @ x - seen["step_size"](k) * y, g
    models = privsgp.load(tmp_path / "out").nodes
    np.testing.assert_allclose(models.numpy(), x, rtol=0, atol=1e-4)
    assert summary["test_accuracy"] > 0.85


def test_a_step_that_is_no_generator_is_not_registered():
    class Called(PrivSGP):
        name = "called"

        def step(self, k, s):
            del k
            return s

    with pytest.raises(Refused, match="no generator"):
        privsgp.register(Called)


def test_a_site_commits_records_posts_and_waits():
    from privsgp.sites.trainer import SiteDriver

    done = []

    def noted(name, answer=None):
        return lambda *given: done.append((name, *given[:1])) or answer

    transport = SimpleNamespace(
        prepare=noted("prepare", "messages"), post=noted("post"), arrive=noted("wait", (X, W)),
        outbox=SimpleNamespace(bytes_to=Counter({1: 40})),
    )  # fmt: skip
    guard = SimpleNamespace(digests=lambda _x: ["a hash"], record_digests=noted("record"), heads=noted("heads"))
    site = SiteDriver(transport, guard, noted("commit"), sent=2)
    answers = []
    drive(_step(answers, Release(X), Exchange(X, W)), 5, site)
    names = ["prepare", "commit", "record", "heads", "post", "wait"]
    assert [name for name, *_ in done] == names
    assert answers[1] == (X, W)
    assert site.bytes_sent == 42
    done.clear()
    for events in ([Exchange(X, W)], [Release(X), Exchange(X + 1, W)], [Release(X), Exchange(X, W), Exchange(X, W)]):
        with pytest.raises(TypeError, match="may send what it has released, once"):
            drive(_step([], *events), 6, site)
    # the second step's message was refused, and its release is paid with the third: too much, never too little
    assert [name for name, *_ in done] == ["prepare", "commit", "record", "record", "heads", "post", "wait"]
    done.clear()
    site.send(8, X, W, paid=False)
    assert [name for name, *_ in done] == ["prepare", "commit", "post", "wait"]
