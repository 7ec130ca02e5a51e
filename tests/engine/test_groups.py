"""Groups of nodes, each in a thread of its own, end where all at once end; noise is used once."""

from __future__ import annotations

import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import runs
from privsgp.algorithms import Exchange, PrivSGP, Release, State, ToServer
from privsgp.engine import groups, trainer
from privsgp.engine.drive import drive
from privsgp.engine.folder import Folder
from privsgp.engine.groups import Group, joined, together
from privsgp.engine.trainer import Trainer
from privsgp.gradients import PerSample, stack
from privsgp.models import per_sample
from privsgp.randomness import noise, pairwise
from privsgp.runs import build
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs.resolve import resolve

pytestmark = pytest.mark.usefixtures("entered")

METHODS = [
    {"name": "sgp"},
    {"name": "privsgp"},
    {"name": "privsgp", "local_steps": 5},
    {"name": "privsgp-vr", "difference_scale": 1},
    {"name": "privsgp-vr", "difference_scale": 1, "difference_clip": 0.5},
    {"name": "privsgp-vr", "difference_scale": 1, "table_dtype": "bfloat16"},
    {"name": "privsgp-sag"},
]


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _training(folder, algorithm, *, seed=7, model="mlp", privacy=None, own=None, data=None):
    values = tomllib.loads(runs.SMALL)
    values["privacy"] |= privacy or {}
    values["data"] = {"nodes": 5, "sizes": [300, 40, 60, 80, 100]} | (data or {})
    values["algorithm"] = {"steps": 5, "step_size": 0.5} | algorithm
    values["model"] = {"name": model}
    if algorithm["name"] == "sgp":
        del values["privacy"]
    if seed is None:
        del values["seed"]
    config = configs.parse(values)
    folder.mkdir(exist_ok=True)
    place = Folder(folder)
    place.prepare()
    place.identify({})
    problem = problems.load_problem(config)
    return Trainer(build.build_run(resolve(config, problem if own is None else replace(problem, model=own))), place)


class _Rows:
    """A step of some nodes: it moves its rows in place, releases and exchanges them, twice."""

    def step(self, k, s):
        yield Release(s.x.add_(k))
        x, w = yield Exchange(s.x, s.w)
        x, w = yield Exchange(2 * x, w)
        return State(x, w, s.z.copy_(x))


def test_groups_yield_the_events_of_all_nodes():
    """The steps of groups are one step: the same events, in the same order, with the rows of all."""
    state = State(torch.arange(12.0).view(4, 3), torch.ones(4), torch.zeros(4, 3))
    some = [Group(slice(0, 1), _Rows()), Group(slice(1, 4), _Rows())]
    seen = []

    def driver(k, event):
        seen.append((type(event), k, event[0].clone()))
        return None if isinstance(event, Release) else (event.x + 1, event.w)

    new = drive(together(some, 5, state), 5, driver)
    rows = torch.arange(12.0).view(4, 3) + 5
    assert [(kind, k) for kind, k, _ in seen] == [(Release, 5), (Exchange, 5), (Exchange, 5)]
    assert [torch.equal(x, wanted) for (*_, x), wanted in zip(seen, (rows, rows, 2 * (rows + 1)), strict=True)]
    assert torch.equal(new.x, 2 * (rows + 1) + 1)
    assert new.z.data_ptr() == state.z.data_ptr()
    assert torch.equal(new.z, new.x)


def test_events_that_groups_cannot_share_are_refused():
    def step(k, s):
        yield ToServer(s.x, 1)

    state = State(torch.zeros(4, 3), torch.ones(4), torch.zeros(4, 3))
    some = [Group(nodes, SimpleNamespace(step=step)) for nodes in (slice(0, 2), slice(2, 4))]
    with pytest.raises(TypeError, match="no ToServer in common"):
        drive(together(some, 0, state), 0, lambda k, event: None)


def test_rows_that_follow_each_other_are_joined_without_a_copy():
    x = torch.arange(24.0).view(4, 6)[:, :5]
    assert joined([x[:1], x[1:3], x[3:]]).data_ptr() == x.data_ptr()
    for rows in ([x[:1], x[2:]], [x[2:], x[:2]], [x[:2], x[2:].clone()], [x[:2], 2 * x[2:]]):
        assert torch.equal(joined(rows), torch.cat(rows))


def _whole(spec, _gradient):
    return [slice(0, len(spec.here))]


def _persons(folder):
    """Write digits of persons with up to four rows, of which a run uses three, and return how to read them."""
    rng = np.random.default_rng(0)
    whose = np.repeat(np.arange(580), rng.integers(1, 5, 580))
    np.savez(folder / "a.npz", x=rng.random((len(whose), 64)), y=rng.integers(0, 10, len(whose)), person=whose)
    return {"name": str(folder / "a.npz"), "classes": 10, "person": "person", "rows_per_person": 3}


@pytest.mark.parametrize("persons", [False, True])
@pytest.mark.parametrize("algorithm", METHODS, ids=lambda a: "-".join(map(str, a.values())))
def test_groups_have_the_bits_of_all_nodes_at_once(tmp_path, monkeypatch, algorithm, persons):
    data = _persons(tmp_path) if persons else None
    split = _training(tmp_path / "groups", algorithm, data=data)
    assert [group.nodes for group in split.groups] == [slice(0, 2), slice(2, 5)]
    monkeypatch.setattr(trainer, "split", _whole)
    whole = _training(tmp_path / "whole", algorithm, data=data)
    assert len(whole.groups) == 1
    ends = [split.run()]
    torch.set_num_threads(1)
    ends.append(whole.run())
    for name in ("x", "w", "z"):
        torch.testing.assert_close(*(getattr(end.state, name) for end in ends), rtol=0, atol=0)
    memories = [{name: torch.cat(rows) for name, rows in run._memory().items()} for run in (split, whole)]
    torch.testing.assert_close(*memories, rtol=0, atol=0)


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2), (2, 2)])
def test_a_run_goes_on_with_another_number_of_cores(tmp_path, first, then):
    algorithm = {"name": "privsgp-vr", "difference_scale": 1}
    torch.set_num_threads(2)
    wanted = _training(tmp_path / "whole", algorithm).run().state.x
    torch.set_num_threads(first)
    stopped = _training(tmp_path / "stopped", algorithm)
    stopped.watch = lambda k, _row: setattr(stopped.stopping, "asked", k == 2)
    with pytest.raises(trainer.Interrupted):
        stopped.run()
    torch.set_num_threads(then)
    torch.testing.assert_close(_training(tmp_path / "stopped", algorithm).run().state.x, wanted, rtol=0, atol=0)


SHARED = {"noise": "pairwise", "honest": 4}


@pytest.mark.parametrize("long", [0, 1 << 60])
def test_groups_that_share_noise_have_the_bits_of_all_nodes_at_once(tmp_path, monkeypatch, long):
    monkeypatch.setattr(pairwise, "_LONG", long)
    ends = [_training(tmp_path / "groups", {"name": "privsgp"}, privacy=SHARED).run().state.x]
    monkeypatch.setattr(trainer, "split", _whole)
    ends.append(_training(tmp_path / "whole", {"name": "privsgp"}, privacy=SHARED).run().state.x)
    torch.testing.assert_close(*ends, rtol=0, atol=0)


@pytest.mark.parametrize(("privacy", "draws"), [({}, 4), (SHARED, 5)], ids=["independent", "shared"])
def test_secret_noise_of_groups_has_a_key_for_each_draw(tmp_path, monkeypatch, privacy, draws):
    """Two threads that draw at once share no key: one used twice would be noise that cancels."""
    monkeypatch.setattr(pairwise, "_LONG", 0)
    keys, claimed, inner = [], [], noise.Secure.claim

    def claim(self, purpose, nodes, step):
        found = inner(self, purpose, nodes, step)
        keys.extend(found[1]._keys.values())
        claimed.extend((purpose, node, step) for node in nodes)
        return found

    monkeypatch.setattr(noise.Secure, "claim", claim)
    run = _training(tmp_path, {"name": "privsgp-vr", "difference_scale": 1}, seed=None, privacy=privacy)
    assert len(run.groups) == 2
    run.run()
    assert len(keys) == len(set(keys)) >= 5 * draws  # of two groups' coins and own noise, and of what all share
    assert len(claimed) == len(set(claimed))


def test_simulated_noise_is_the_same_from_many_threads():
    source, d = noise.Keyed(3), 3001
    wanted = torch.empty(32, d)
    noise.Keyed(3).fill_normal(wanted, range(32), 5)
    found = torch.empty(32, d)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: source.fill_normal(found[i : i + 1], [i], 5), range(32)))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_another_direction_is_not_taken_in_groups(tmp_path):
    class Remembering(PrivSGP):
        def direction(self, z, batch):
            return super().direction(z, batch)

    run = _training(tmp_path, {"name": "privsgp"})
    gradient = run.algorithm.block.gradient
    assert len(groups.split(run.spec, gradient)) == 2
    assert len(groups.split(replace(run.spec, algorithm=Remembering), gradient)) == 1
    torch.set_num_threads(1)
    assert len(groups.split(run.spec, gradient)) == 1


def test_convolutions_and_models_without_a_rule_go_at_once(tmp_path):
    convolution = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))
    recurrent = nn.Sequential(nn.Unflatten(1, (8, 8)), _Last(), nn.Linear(5, 10))
    for number, own in enumerate((convolution, recurrent)):
        assert len(_training(tmp_path / str(number), {"name": "privsgp"}, own=own).groups) == 1


class _Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(8, 5, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0][:, -1]


class _Holding:
    """A loss of the user's own, which keeps outputs while it uses them, and cannot be copied."""

    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, outputs, targets):
        self.outputs = outputs
        time.sleep(1e-4)
        return per_sample("cross-entropy")(self.outputs, targets)


def test_a_loss_of_the_users_own_sees_the_outputs_of_one_group_at_a_time():
    """Else a node's gradient could be that of another node's samples."""
    loss, model = _Holding(), nn.Linear(6, 3)
    sample = torch.randn(4, 6), torch.randint(3, (4,))
    locked = groups.one_at_a_time(loss)
    both = [stack(model, locked, sample) for _ in range(2)]
    z, inputs, targets = torch.randn(4, both[0].layout.dim), torch.randn(4, 8, 6), torch.randint(3, (4, 8))
    wanted = both[0](z, inputs, targets).dense()

    def take(i):
        pair = slice(i, i + 2)
        found = both[i // 2](z[pair], inputs[pair], targets[pair]).dense()
        return torch.equal(found, wanted[pair])

    for _ in range(10):
        with ThreadPoolExecutor(2) as threads:
            assert all(threads.map(take, [0, 2]))


class _Attention(nn.Module):
    """Products of the user's own, whose bits depend on where in the stack a sample stands."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(7, 13), nn.Linear(7, 13), nn.Linear(7, 13), nn.Linear(13, 10))

    def forward(self, x):
        x = x.flatten(1)[:, :35].reshape(-1, 5, 7)
        return self.out((torch.softmax(self.q(x) @ self.k(x).transpose(1, 2), -1) @ self.v(x)).mean(1))


class _Tokens(nn.Module):
    """A linear layer on every row of an image, whose gradients are kept as factors."""

    def __init__(self):
        super().__init__()
        self.token, self.head = nn.Linear(8, 13), nn.Linear(13, 10)

    def forward(self, x):
        return self.head(torch.tanh(self.token(x.flatten(1).view(-1, 8, 8))).mean(1))


@pytest.mark.parametrize(("own", "split"), [(_Attention, None), (_Tokens, 2)])
@pytest.mark.parametrize("algorithm", [METHODS[1], METHODS[3]], ids=lambda a: a["name"])
def test_models_of_the_users_own_have_the_bits_of_all_nodes_at_once(tmp_path, monkeypatch, algorithm, own, split):
    torch.manual_seed(1)
    model = own()
    first = _training(tmp_path / "groups", algorithm, own=model)
    assert split is None or len(first.groups) == split
    ends = [first.run().state.x]
    monkeypatch.setattr(trainer, "split", _whole)
    ends.append(_training(tmp_path / "whole", algorithm, own=model).run().state.x)
    torch.testing.assert_close(*ends, rtol=0, atol=0)


def test_lengths_that_round_by_their_place_are_noticed(tmp_path, monkeypatch):
    run = _training(tmp_path, {"name": "privsgp"})
    gradient = stack(run.model, per_sample("cross-entropy"), run.spec.learning.made_up())
    assert groups.same_alone(gradient, run.spec, 2, 8)
    inner = PerSample.norm
    monkeypatch.setattr(PerSample, "norm", lambda self: inner(self) * (1 + 1e-6 * len(self.pieces[0].delta)))
    assert not groups.same_alone(gradient, run.spec, 2, 8)
