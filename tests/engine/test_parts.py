"""Nodes that are taken a few at a time, by several threads, end where all at once end; noise is used once."""

from __future__ import annotations

import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import runs
from privsgp.algorithms import Drawn, PrivSGP
from privsgp.engine import parts, trainer
from privsgp.engine.folder import Folder
from privsgp.engine.trainer import Trainer
from privsgp.errors import Refused
from privsgp.gradients import PerSample, stack
from privsgp.models import per_sample
from privsgp.randomness import noise, pairwise
from privsgp.runs import build
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs.resolve import resolve
from privsgp.threads import one_thread_each

METHODS = [
    {"name": "sgp"},
    {"name": "privsgp"},
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


def _training(folder, algorithm, *, seed=7, model="mlp", privacy=None, own=None):
    values = tomllib.loads(runs.SMALL)
    values["privacy"] |= privacy or {}
    values["data"] = {"nodes": 5, "sizes": [300, 40, 60, 80, 100]}
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
    place.identify({}, None)
    problem = problems.load_problem(config)
    return Trainer(build.build_run(resolve(config, problem if own is None else replace(problem, model=own))), place)


@pytest.mark.parametrize("algorithm", METHODS, ids=lambda a: "-".join(map(str, a.values())))
def test_parts_have_the_bits_of_all_nodes_at_once(tmp_path, monkeypatch, algorithm):
    parted = _training(tmp_path / "parts", algorithm)
    assert parted.algorithm.block.execution.parts == [slice(0, 2), slice(2, 5)]
    with monkeypatch.context() as patched:
        patched.setattr(trainer, "divided", lambda *_: ())
        whole = _training(tmp_path / "whole", algorithm)
    assert whole.algorithm.parts == [whole.algorithm]
    ends = [parted.run()]
    torch.set_num_threads(1)
    ends.append(whole.run())
    for name in ("x", "w", "z"):
        torch.testing.assert_close(*(getattr(end.state, name) for end in ends), rtol=0, atol=0)
    memories = [run.algorithm.arrays() for run in (parted, whole)]
    for name, array in memories[0].items():
        torch.testing.assert_close(array, memories[1][name], rtol=0, atol=0)


SHARED = {"noise": "pairwise", "honest": 4}


@pytest.mark.parametrize("method", ["privsgp", "privsgp-vr"])
def test_parts_that_share_noise_have_the_bits_of_all_nodes_at_once(tmp_path, monkeypatch, method):
    monkeypatch.setattr(pairwise, "_LONG", 0)
    monkeypatch.setattr(pairwise, "_CACHED", 1 << 12)  # several pieces, so that both threads have some
    ends = []
    for parted in (True, False):
        with monkeypatch.context() as patched:
            if not parted:
                patched.setattr(trainer, "divided", lambda *_: ())
            training = _training(tmp_path / str(parted), {"name": method}, privacy=SHARED)
        assert bool(training.algorithm.block.execution.parts) is parted
        ends.append(training.run().state.x)
        torch.set_num_threads(1)
    torch.testing.assert_close(*ends, rtol=0, atol=0)


def test_nodes_whose_pairs_are_drawn_one_by_one_go_at_once(tmp_path):
    assert _training(tmp_path, {"name": "privsgp"}, privacy=SHARED).algorithm.block.execution.parts == ()


@pytest.mark.parametrize("nodes", [1, 2, 3, 16, 33, 50, 1024])
@pytest.mark.parametrize("allowed", [1, 2, 3, 16])
def test_parts_are_all_nodes_and_none_is_a_node_alone(nodes, allowed):
    found = parts.divided(nodes, allowed)
    everyone = [i for part in found for i in range(nodes)[part]]
    assert everyone == (list(range(nodes)) if found else [])
    lengths = [len(range(nodes)[part]) for part in found]
    assert not lengths or (min(lengths) > 1 and max(lengths) - min(lengths) < 2 and max(lengths) <= 33)
    assert found or nodes <= max(3, 32 // allowed)


@pytest.mark.parametrize(("privacy", "draws", "each"), [({}, 2, 2), (SHARED, 2 + 5, 3)], ids=["independent", "shared"])
def test_secret_noise_of_parts_has_a_key_for_each_draw(tmp_path, monkeypatch, privacy, draws, each):
    """Two threads that draw at once share no key: one used twice would be noise that cancels."""
    monkeypatch.setattr(pairwise, "_LONG", 0)
    monkeypatch.setattr(pairwise, "_CACHED", 1)  # numbers that all share are drawn row by row
    keys, claimed, inner = [], [], noise.Secure._claim_all

    def claim(self, purpose, nodes, step, attempt):
        found = inner(self, purpose, nodes, step, attempt)
        keys.extend(found[1]._keys.values())
        claimed.extend((purpose, node, step) for node in nodes)
        return found

    monkeypatch.setattr(noise.Secure, "_claim_all", claim)
    run = _training(tmp_path, {"name": "privsgp-vr", "difference_scale": 1}, seed=None, privacy=privacy)
    assert len(run.algorithm.block.execution.parts) == 2
    run.run()
    assert len(keys) == len(set(keys)) == 5 * (5 + draws)  # of five nodes' coins, of two parts' own noise, and of rows
    assert len(claimed) == len(set(claimed)) == 5 * 5 * each


def test_many_threads_draw_each_number_once():
    source, wrong = noise.Secure(), []

    def draw(node):
        for step in range(20):
            rough = source.rough([node], 40, step, 0)
            wrong.extend([node] if not np.isfinite(rough.everything()).all() else [])
        with pytest.raises(Refused, match="already used"):
            source.rough([node], 40, 19, 0)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(draw, range(32)))
    assert not wrong


def test_simulated_noise_is_the_same_from_many_threads():
    source, d = noise.Keyed(3), 3001
    wanted = torch.empty(32, d)
    noise.Keyed(3).fill_normal(wanted, range(32), 5)
    found = torch.empty(32, d)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: source.fill_normal(found[i : i + 1], [i], 5), range(32)))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_what_was_drawn_for_some_nodes_keeps_what_is_of_all():
    rows = torch.arange(12).view(4, 3)
    some = Drawn(rows, rows > 4, rows + 7).of(slice(1, 3))
    assert (some.rows.tolist(), some.keys.tolist()) == ([[3, 4, 5], [6, 7, 8]], [[10, 11, 12], [13, 14, 15]])
    assert some.mask.tolist() == [[False, False, True], [True, True, True]]


def test_another_direction_is_not_taken_in_parts(monkeypatch):
    class Remembering(PrivSGP):
        def direction(self, z, batch):
            return super().direction(z, batch)

    assert PrivSGP.direction.of_each_node
    assert not hasattr(Remembering.direction, "of_each_node")


def test_gradients_that_are_lent_share_what_does_not_change_and_nothing_else():
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4), nn.Linear(4, 3))
    model[1].requires_grad_(requires_grad=False)
    sample = torch.randn(4, 6), torch.randint(3, (4,))
    gradient = stack(model, per_sample("cross-entropy"), sample)
    assert parts.can_be_parted(gradient, torch.device("cpu"))
    lent = parts.Lent(gradient, 2)
    first, second = lent._free.get(), lent._free.get()
    assert first.model is not second.model
    assert [p.data_ptr() for p in first.model.parameters()] == [p.data_ptr() for p in second.model.parameters()]
    lent = parts.Lent(gradient, 2)
    z, inputs, targets = torch.randn(4, gradient.layout.dim), torch.randn(4, 8, 6), torch.randint(3, (4, 8))
    wanted, barrier, found = gradient(z, inputs, targets).dense(), threading.Barrier(2), {}

    def take(i):
        barrier.wait()
        for _ in range(20):
            found[i] = lent(z[2 * i : 2 * i + 2], inputs[2 * i : 2 * i + 2], targets[2 * i : 2 * i + 2]).dense()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(take, range(2)))
    torch.testing.assert_close(torch.cat([found[0], found[1]]), wanted, rtol=0, atol=0)


def test_convolutions_and_models_without_a_rule_go_at_once():
    images, labels = torch.randn(2, 3, 8, 8), torch.randint(3, (2,))
    convolved = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 3))
    loss = per_sample("cross-entropy")
    assert not parts.can_be_parted(stack(convolved, loss, (images, labels)), torch.device("cpu"))
    plain = stack(nn.Linear(4, 3), loss, (torch.randn(2, 4), labels), rules=False)
    assert not parts.can_be_parted(plain, torch.device("cpu"))


class _Holding:
    """A loss of the user's own, which keeps outputs while it uses them, and cannot be copied."""

    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, outputs, targets):
        self.outputs = outputs
        time.sleep(1e-4)
        return per_sample("cross-entropy")(self.outputs, targets)


_HOLDING = _Holding()


def _held(outputs, targets):
    return _HOLDING(outputs, targets)


@pytest.mark.parametrize("loss", [_HOLDING, _held])
def test_a_loss_of_the_users_own_sees_the_outputs_of_one_part_at_a_time(loss):
    """Else a node's gradient could be that of another node's samples."""
    gradient = stack(nn.Linear(6, 3), loss, (torch.randn(4, 6), torch.randint(3, (4,))))
    z, inputs, targets = torch.randn(4, gradient.layout.dim), torch.randn(4, 8, 6), torch.randint(3, (4, 8))
    lent, wanted = parts.Lent(gradient, 2), gradient(z, inputs, targets).dense()

    def take(i):
        pair = slice(i % 4, i % 4 + 2)
        return torch.equal(lent(z[pair], inputs[pair], targets[pair]).dense(), wanted[pair])

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(take, [0, 2] * 10))


def test_more_threads_than_copies_wait_for_one():
    gradient = stack(nn.Linear(6, 3), per_sample("cross-entropy"), (torch.randn(4, 6), torch.randint(3, (4,))))
    z, inputs, targets = torch.randn(2, gradient.layout.dim), torch.randn(2, 8, 6), torch.randint(3, (2, 8))
    lent, wanted, barrier = parts.Lent(gradient, 1), gradient(z, inputs, targets).dense(), threading.Barrier(8)

    def take(_):
        barrier.wait()
        return [torch.equal(lent(z, inputs, targets).dense(), wanted) for _ in range(10)]

    with ThreadPoolExecutor(8) as threads:
        assert all(all(found) for found in threads.map(take, range(8)))


class _Attention(nn.Module):
    """Products of the user's own, whose bits depend on where in the stack a sample stands."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(7, 13), nn.Linear(7, 13), nn.Linear(7, 13), nn.Linear(13, 10))

    def forward(self, x):
        x = x.flatten(1)[:, :35].reshape(-1, 5, 7)
        return self.out((torch.softmax(self.q(x) @ self.k(x).transpose(1, 2), -1) @ self.v(x)).mean(1))


@pytest.mark.parametrize("method", ["privsgp", "privsgp-vr"])
def test_products_of_the_users_own_have_the_bits_of_all_nodes_at_once(tmp_path, monkeypatch, method):
    torch.manual_seed(1)
    model, ends = _Attention(), []
    for parted in (True, False):
        with monkeypatch.context() as patched:
            if not parted:
                patched.setattr(trainer, "divided", lambda *_: ())
            training = _training(tmp_path / str(parted), {"name": method}, own=model)
        ends.append(training.run().state.x)
    torch.testing.assert_close(*ends, rtol=0, atol=0)


class _Tokens(nn.Module):
    """A linear layer on every row of an image, whose gradients are kept as factors."""

    def __init__(self):
        super().__init__()
        self.token, self.head = nn.Linear(8, 13), nn.Linear(13, 10)

    def forward(self, x):
        return self.head(torch.tanh(self.token(x.flatten(1).view(-1, 8, 8))).mean(1))


@pytest.mark.parametrize("algorithm", [METHODS[1], METHODS[3], METHODS[5]], ids=lambda a: a["name"])
def test_parts_of_layers_at_many_positions_have_the_bits_of_all_nodes_at_once(tmp_path, monkeypatch, algorithm):
    torch.manual_seed(1)
    model, ends = _Tokens(), []
    for parted in (True, False):
        with monkeypatch.context() as patched:
            if not parted:
                patched.setattr(trainer, "divided", lambda *_: ())
            training = _training(tmp_path / str(parted), algorithm, own=model)
        assert bool(training.algorithm.block.execution.parts) is parted
        ends.append((training.run().state.x, training.algorithm.arrays()))
    torch.testing.assert_close(*ends, rtol=0, atol=0)


@pytest.mark.parametrize("fails", [0, 1])
def test_what_a_part_raises_ends_the_step_and_no_other_part_begins(fails):
    begun, both = [], threading.Barrier(2)

    def work(i):
        begun.append(i)
        if i < 2:
            both.wait()
        if i == fails:
            raise MemoryError(f"of part {i}")
        time.sleep(0.05)

    with pytest.raises(MemoryError, match=f"of part {fails}"):
        one_thread_each(work, range(20))
    assert len(begun) == 2
    assert torch.get_num_threads() == 2


def test_lengths_that_round_by_their_place_are_noticed(monkeypatch):
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    sample = torch.randn(4, 6), torch.randint(3, (4,))
    gradient, asked = stack(model, per_sample("cross-entropy"), sample), ([slice(0, 2), slice(2, 4)], 8, torch.float32)
    assert parts.alone_as_together(gradient, sample, *asked)
    inner = PerSample.norm
    monkeypatch.setattr(PerSample, "norm", lambda self: inner(self) * (1 + 1e-6 * self.models))
    assert not parts.alone_as_together(gradient, sample, *asked)
