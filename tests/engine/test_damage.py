"""Damaged checkpoints: a flipped bit is refused by the file's name, and what is read stays in the ball of radius G."""

from __future__ import annotations

import json
import math
import random

import pytest
import torch
from pydantic import TypeAdapter
from safetensors import safe_open
from safetensors.torch import load_file

import runs
from privsgp.algorithms import State
from privsgp.engine import checkpoint
from privsgp.engine.budget_guard import BudgetGuard
from privsgp.engine.checkpoint import Progress
from privsgp.engine.folder import Folder
from privsgp.engine.trainer import Trainer
from privsgp.errors import Refused
from privsgp.transport.world import World

UNSEEDED = runs.SMALL.replace("seed = 7\n", "")
MLP = {"model__name": "mlp", "model__hidden": [16], "algorithm__name": "privsgp-vr"}
TABLES = {
    "float32": {"algorithm__name": "privsgp-vr"},
    "bfloat16": MLP | {"algorithm__table_dtype": "bfloat16"},
    "factored": MLP,
    "dense": MLP | {"algorithm__table": "dense"},
    "differences": MLP | {"algorithm__difference_clip": 0.5},
    "sag": MLP | {"algorithm__name": "privsgp-sag"},
    "soteriafl-saga": MLP | {"algorithm__name": "soteriafl-saga", "algorithm__kept": 0.05},
}
OTHERS = {
    "momentum": {"algorithm__momentum": 0.9, "algorithm__average": "tail"},
    "soteriafl-svrg": {"algorithm__name": "soteriafl-svrg"},
}


def _stopped(folder, text, changes, *options):
    """Return the checkpoint of a run that has everything behind it but its summary."""
    config, out = runs.small(folder, text), folder / "out"
    arguments = ("train", config, "--out", out, *runs.changes(algorithm__steps=8, **changes), *options)
    ran = runs.command(*arguments)
    assert ran.code == 0, ran.err
    (out / "summary.json").unlink()
    return out / "private" / "checkpoint.safetensors", lambda: runs.command(*arguments, "--resume")


def _places(path):
    """Return where each array begins in a safetensors file, and how long it is."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    del header["__metadata__"]
    return {
        name: (begin + entry["data_offsets"][0], begin + entry["data_offsets"][1]) for name, entry in header.items()
    }


def _flip(path, whole, at, bit):
    path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :])


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "soteriafl-saga", "momentum", "soteriafl-svrg"])
def test_a_flipped_bit_in_any_array_is_refused(tmp_path, kind):
    path, resume = _stopped(tmp_path, runs.SMALL, (TABLES | OTHERS).get(kind, {}))
    whole, draw = path.read_bytes(), random.Random(kind)
    for name, (begin, end) in _places(path).items():
        _flip(path, whole, draw.randrange(begin, end), draw.randrange(8))
        ran = resume()
        assert (ran.code, name in ran.err and str(path) in ran.err) == (2, True), (name, ran.err)
    path.write_bytes(whole)
    assert resume().code == 0


def test_a_flipped_bit_anywhere_in_the_file_is_refused(tmp_path):
    """All that the file says is under a check value, its header and progress too; not one byte is believed unread."""
    folder = Folder(tmp_path)
    folder.prepare()
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    state = State.debiased(x, torch.tensor([0.5, 1.5], dtype=torch.float64))
    checkpoint.save(folder.checkpoint, Progress(7, 2, 1.5, 123, "abc"), state, {"sums": [torch.rand(2, 2)]})
    whole, draw = folder.checkpoint.read_bytes(), random.Random(0)
    for at in range(len(whole)):
        _flip(folder.checkpoint, whole, at, draw.randrange(8))
        with pytest.raises(Refused, match="checkpoint"):
            checkpoint.last_common(folder, World(), "abc")
    folder.checkpoint.write_bytes(whole)
    assert checkpoint.last_common(folder, World(), "abc") == (folder.checkpoint, Progress(7, 2, 1.5, 123, "abc"))


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    """Each is whole, of the same configuration and step: only the run's number tells that the tables are others."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    mine, resume = _stopped(tmp_path / "a", runs.SMALL, TABLES["float32"])
    other, _ = _stopped(tmp_path / "b", runs.SMALL, TABLES["float32"])
    mine.write_bytes(other.read_bytes())
    ran = resume()
    assert ran.code == 2
    assert "another run" in ran.err


def _damage(path, harm):
    """Change the arrays of a checkpoint, and make its check values fit again."""
    with safe_open(path, framework="pt") as file:
        run = file.metadata().get("run", "")
    progress, tensors = checkpoint.read_progress(path), load_file(path)
    harm(tensors)
    memory = {name.removeprefix("memory."): [t] for name, t in tensors.items() if name.startswith("memory.")}
    checkpoint.save(path, progress, State.debiased(tensors["x"], tensors["w"]), memory, run)


@pytest.mark.parametrize("kind", TABLES)
def test_entries_are_in_the_ball_whatever_the_check_value_says(tmp_path, kind, monkeypatch):
    """The accountant's two assumptions after a resume: |t_j| ≤ G(1 + κ), and mean = (1/J) Σ_j t_j."""
    path, resume = _stopped(tmp_path, UNSEEDED, TABLES[kind])
    first = next(name for name in _places(path) if name.startswith("memory.0."))

    def harm(tensors):
        entry = tensors[first]
        entry[0, 1], entry[1, 2], entry[2, 3] = 1e6 * (1 + entry[0, 1].abs()), math.nan, math.inf
        entry[:, -1] = 1.0  # the padding row
        tensors["memory.mean"][3] += 1.0

    _damage(path, harm)
    seen = {}
    end = Trainer._end
    monkeypatch.setattr(Trainer, "_end", lambda self, *args: seen.update(run=self) or end(self, *args))
    monkeypatch.setattr(Trainer, "close", lambda _self: None)
    ran = resume()
    assert ran.code == 0, ran.err
    training = seen["run"]
    lengths, total = _entries(training, samples=300)
    m = training.spec.mechanisms[0]
    assert float(lengths.max()) <= m.clip * (1 + m.kappa)
    assert (lengths[0, 1], lengths[1, 2], lengths[2, 3]) == (0, 0, 0)
    assert (lengths > 0).sum() > 0.9 * lengths.numel()
    mean = training.algorithm.table.mean
    assert torch.allclose(mean, total / 300, rtol=0, atol=1e-12)
    assert not any(a[:, -1].any() for name, a in training.algorithm.table.arrays().items() if name != "mean")


def test_a_full_gradient_is_taken_anew(tmp_path, monkeypatch):
    """SoteriaFL-SVRG adds (1/J) Σ_j g_j(w) to what it releases: as private as a table."""
    path, resume = _stopped(tmp_path, UNSEEDED, OTHERS["soteriafl-svrg"])
    right = load_file(path)["memory.full"]
    _damage(path, lambda tensors: tensors["memory.full"].mul_(1e6))
    seen = {}
    end = Trainer._end
    monkeypatch.setattr(Trainer, "_end", lambda self, *args: seen.update(run=self) or end(self, *args))
    monkeypatch.setattr(Trainer, "close", lambda _self: None)
    assert resume().code == 0
    assert torch.equal(seen["run"].algorithm.full, right)


def _entries(training, samples):
    """Return the norms of a table's entries and their sums, the plain way: all multiplied out, in float64."""
    table, block = training.algorithm.table, training.algorithm.block
    from privsgp.algorithms.block import Drawn

    rows = torch.arange(samples).expand(4, -1)
    g = block.gradients(training.state.z, Drawn(rows, torch.ones_like(rows, dtype=torch.bool)))
    pieces = table._entries(rows, table._like_parts(g))
    dense = torch.cat([piece.dense() for piece in g.wide(pieces)], -1).double()
    return dense.norm(dim=-1), dense.sum(1)


@pytest.mark.parametrize("kind", ["bfloat16", "dense", "differences", *OTHERS])
def test_what_is_whole_is_taken_as_it_is(tmp_path, kind, monkeypatch):
    """A seeded run reads its checkpoint back to the bit: nothing honest is outside the ball."""
    text = runs.SMALL.replace("checkpoint_every = 7", "checkpoint_every = 4")
    config, changes = runs.small(tmp_path, text), runs.changes(algorithm__steps=8, **(TABLES | OTHERS)[kind])
    runs.train(config, tmp_path / "whole", *changes)
    note = BudgetGuard.record
    monkeypatch.setattr(BudgetGuard, "record", lambda self, k, x: _lost() if k == 6 else note(self, k, x))
    assert runs.command("train", config, "--out", tmp_path / "out", *changes).code == 6
    monkeypatch.undo()
    runs.train(config, tmp_path / "out", *changes, "--resume")
    models = {(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "out")}
    assert len(models) == 1


def _lost():
    raise OSError(5, "Input/output error")


class _Two(World):
    """This process and another one, which has checkpoints of these steps."""

    def __init__(self, theirs):
        super().__init__()
        self.theirs = theirs

    def all_gather(self, value, form):
        TypeAdapter(form).validate_python(self.theirs, strict=True)
        return [value, self.theirs]


def _pair(folder, *, harm=()):
    """Write the checkpoints of steps 4 and 8 and flip a bit in those named."""
    folder.prepare()
    state = State.start(torch.zeros(3), 2)
    for path, step in ((folder.checkpoint_before, 4), (folder.checkpoint, 8)):
        checkpoint.save(path, Progress(step, 0, 1.5, 123, "abc"), state, {})
        if step in harm:
            _flip(path, path.read_bytes(), path.stat().st_size - 3, 6)


@pytest.mark.parametrize(("harm", "theirs", "step"), [((), [4, 8], 8), ((8,), [4, 8], 4), ((4,), [4, 8], 8)])
def test_of_several_processes_all_go_back_to_the_last_whole_one(tmp_path, harm, theirs, step, caplog):
    folder = Folder(tmp_path, "-0-1")
    _pair(folder, harm=harm)
    _, progress = checkpoint.last_common(folder, _Two(theirs), "abc")
    assert progress.step == step
    assert len([record for record in caplog.records if "is damaged" in record.message]) == len(harm)


@pytest.mark.parametrize(
    ("harm", "theirs", "why"), [((4, 8), [4, 8], "is damaged"), ((4,), [4], "steps"), ((8,), [8], "steps")]
)
def test_no_process_begins_again_because_of_damage(tmp_path, harm, theirs, why):
    """From x⁰ everything would be paid for twice."""
    folder = Folder(tmp_path, "-0-1")
    _pair(folder, harm=harm)
    with pytest.raises(Refused, match=why):
        checkpoint.last_common(folder, _Two(theirs), "abc")


def test_a_process_that_died_before_its_first_checkpoint_starts_all_again(tmp_path):
    folder = Folder(tmp_path, "-0-1")
    _pair(folder)
    assert checkpoint.last_common(folder, _Two([]), "abc") is None
