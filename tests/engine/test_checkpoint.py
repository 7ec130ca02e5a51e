"""Checkpoints: what is read is what was written, to the bit; what cannot be trusted is refused."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from safetensors.torch import save_file

import runs
from privsgp.algorithms import State
from privsgp.engine import checkpoint
from privsgp.engine.checkpoint import Progress
from privsgp.errors import Refused

pytestmark = pytest.mark.usefixtures("entered")

PROGRESS = Progress(step=7, attempt=2, seconds=1.5, bytes_sent=123, shared="abc")


@pytest.fixture
def state():
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    w = torch.tensor([0.7, 1.1, 1.2], dtype=torch.float64)
    return State(x, w, x / w.float()[:, None])


def test_memory_in_another_precision_is_refused(tmp_path, state):
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, PROGRESS, state, {"sums": [torch.rand(3, 5)]})
    with pytest.raises(Refused, match=r"sums as torch.float32 \(3, 5\), and not as torch.float64"):
        checkpoint.load_into(path, state, {"sums": [torch.zeros(3, 5, dtype=torch.float64)]})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_comes_back_to_the_bit(tmp_path, state, dtype):
    path = tmp_path / "checkpoint.safetensors"
    x = state.x.to(dtype)
    s = State(x, state.w, x / state.w.to(dtype)[:, None])
    memory = {"mean": [torch.rand(3, 5, dtype=dtype)], "rows": [torch.rand(4, 6).t()]}  # one is not contiguous
    checkpoint.save(path, PROGRESS, s, memory)
    waiting = {name: [torch.zeros_like(value)] for name, (value,) in memory.items()}
    got = checkpoint.load_into(path, State.start(torch.zeros(5, dtype=dtype), 3), waiting)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(got, s, strict=True))
    assert all(torch.equal(waiting[name][0], memory[name][0]) for name in memory)
    assert checkpoint.read_progress(path) == PROGRESS


def test_one_that_cannot_be_written_leaves_the_last_one(tmp_path, state, monkeypatch):
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, PROGRESS, state, {})
    before = path.read_bytes()

    def full(tensors, temporary, metadata):
        save_file(tensors, temporary, metadata)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(path, dataclasses.replace(PROGRESS, step=8), state, {})
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.safetensors"]
    assert path.read_bytes() == before


def test_a_damaged_one_is_refused(tmp_path, state):
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, PROGRESS, state, {})
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(Refused, match="cannot be read"):
        checkpoint.read_progress(path)


@pytest.mark.parametrize("metadata", [{}, {"format": "privsgp-checkpoint", "version": "1"}, {"format": "pt"}])
def test_another_format_is_refused(tmp_path, metadata):
    path = tmp_path / "checkpoint.safetensors"
    save_file({"x": torch.zeros(2)}, path, metadata)
    with pytest.raises(Refused, match=r"format .* version") as refused:
        checkpoint.read_progress(path)
    assert "version 2" in refused.value.remedy


def test_a_simulation_without_checkpoints_keeps_none(tmp_path):
    config = runs.small(tmp_path)
    whole = runs.train(config, tmp_path / "whole")
    bare = runs.train(config, tmp_path / "bare", *runs.changes(engine__checkpoint_every=0))
    assert bare["test_loss"] == whole["test_loss"]
    kept = {run: (tmp_path / run / "private" / "checkpoint.safetensors").exists() for run in ("whole", "bare")}
    assert kept == {"whole": True, "bare": False}


def test_only_a_simulation_can_do_without(tmp_path):
    ran = runs.command("train", runs.small(tmp_path), "--set=engine.checkpoint_every=0", "--set=seed=", "--json")
    assert ran.code == 2
    assert "engine.checkpoint_every = 0 without seed" in ran.err


@pytest.mark.parametrize("then", [[7], [3, 4], [2, 2, 3]])
@pytest.mark.parametrize("first", [[7], [3, 4], [2, 2, 3]])
def test_rows_come_back_to_other_groups_of_nodes(tmp_path, state, first, then):
    """A run may go on where there are more cores, or fewer."""
    rows, path = torch.rand(7, 4), tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, PROGRESS, state, {"rows": list(torch.split(rows, first))})
    waiting = [torch.zeros(count, 4) for count in then]
    checkpoint.load_arrays(path, {"rows": waiting})
    assert torch.equal(torch.cat(waiting), rows)
