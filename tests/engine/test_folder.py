"""The run folder: nothing half-written, one process at a time, nothing for others in private/."""

from __future__ import annotations

import json
import resource
import stat

import pytest
import torch
from safetensors import SafetensorError

from privsgp.algorithms import State
from privsgp.engine import checkpoint
from privsgp.engine.folder import Folder, read_metrics, write_tensors
from privsgp.errors import Refused
from privsgp.files import replace, write, write_json


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "summary.json"
    write(path, "old")

    def half(temporary):
        temporary.write_text("ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        replace(path, half)
    assert (path.read_text(), _names(tmp_path)) == ("old", ["summary.json"])
    write(path, "new")
    assert (path.read_text(), _names(tmp_path)) == ("new", ["summary.json"])


def test_a_full_disk_is_an_os_error_for_tensors_too(tmp_path):
    """A real limit on the file's size: safetensors reports it in an exception of its own."""
    path = tmp_path / "model.safetensors"
    write_tensors(path, {"x": torch.zeros(10)}, {})
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"model\.safetensors"):
            write_tensors(path, {"x": torch.zeros(1000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (path.read_bytes(), _names(tmp_path)) == (before, ["model.safetensors"])


def test_json_has_no_nan(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "summary.json", {"test_loss": float("nan")})
    assert _names(tmp_path) == []


def test_one_process_at_a_time(tmp_path):
    with Folder(tmp_path / "run").locked():
        with pytest.raises(Refused, match="in use by another process"), Folder(tmp_path / "run").locked():
            pass
        with Folder(tmp_path / "other").locked():
            pass
    with Folder(tmp_path / "run").locked():
        pass


def test_prepare_keeps_private_private_and_clears_away_what_was_half_written(tmp_path):
    folder = Folder(tmp_path)
    folder.prepare()
    strays = [tmp_path / ".model.safetensors.privsgp-tmp", folder.node(3).with_name(".3.safetensors.privsgp-tmp")]
    for path in strays:
        path.mkdir()
        (path / ".tmpAb12Cd").write_text("safetensors has names of its own")
    for path in (folder.checkpoint, folder.metrics):
        path.write_text("x")
    (tmp_path / "private").chmod(0o755)
    folder.prepare()
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o700
    assert folder.checkpoint.exists()
    assert folder.metrics.exists()
    assert not any(path.exists() for path in strays)


def test_what_is_written_into_private_is_for_its_owner_alone(tmp_path):
    folder = Folder(tmp_path)
    folder.prepare()
    folder.keep_metrics({"step": 1})
    x = torch.zeros(1, 1)
    checkpoint.save(folder.checkpoint, checkpoint.Progress(0, 0, 0.0, 0, ""), State(x, x[0].clone(), x), {})
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "private").iterdir()}
    assert modes == {"metrics.jsonl": 0o600, "checkpoint.safetensors": 0o600}


@pytest.mark.parametrize("where", [".", "nodes", "private"])
def test_what_others_made_is_not_cleared_away(tmp_path, where):
    """`--out` may name a folder that has been used for something else."""
    folder = Folder(tmp_path)
    folder.prepare()
    theirs = (".mytmpnotes", ".tmp", ".tmpAb12Cd", ".model.safetensors.tmp", "x.privsgp-tmp", ".mine.privsgp-tmp")
    for name in theirs:
        (tmp_path / where / name).write_text("a user's")
    folder.prepare()
    assert set(theirs) <= set(_names(tmp_path / where))


def test_a_run_keeps_its_number(tmp_path):
    folder = Folder(tmp_path)
    folder.identify({"privsgp": "1"})
    run = folder.run
    folder.identify({"privsgp": "2"})
    assert Folder(tmp_path).run == run
    assert json.loads((tmp_path / "run.json").read_text())["versions"] == {"privsgp": "1"}
    other = Folder(tmp_path / "other")
    other.path.mkdir()
    other.identify({})
    assert other.run != run
    assert folder.ledger(3) == tmp_path / "ledger" / "node-3.jsonl"


def test_metrics_start_again_from_a_step_and_a_torn_line_is_passed_over(tmp_path):
    folder = Folder(tmp_path)
    assert folder.start_metrics(simulation=True, up_to=0) == []
    for step in (5, 10, 15):
        folder.append_metrics({"step": step})
    with folder.metrics.open("a") as file:
        file.write('{"step": 20, "test_lo')
    assert read_metrics(folder.metrics) == [{"step": 5}, {"step": 10}, {"step": 15}]
    assert folder.start_metrics(simulation=True, up_to=10) == [{"step": 5}, {"step": 10}]
    folder.append_metrics({"step": 15})
    header, *rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert header == {"format": "privsgp-metrics", "version": 1, "simulation": True}
    assert rows == [{"step": 5}, {"step": 10}, {"step": 15}]


@pytest.mark.parametrize("below", [".", "a", "a/b"])
def test_a_place_below_a_file_is_refused(tmp_path, below):
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match=r"file is not a folder"):
        Folder(tmp_path / "file" / below).refuse_unless_writable()


def test_a_place_that_can_be_made_is_not_made_by_asking(tmp_path):
    Folder(tmp_path / "a" / "b").refuse_unless_writable()
    assert _names(tmp_path) == []


@pytest.mark.parametrize(("said", "number"), [("I/O error: No space left on device (os error 28)", 28), ("odd", None)])
def test_a_full_disk_keeps_its_number_when_tensors_are_written(tmp_path, monkeypatch, said, number):
    """By this number commands find what to do about it."""

    def save_file(*_):
        raise SafetensorError(f"Error while serializing: {said}")

    monkeypatch.setattr("safetensors.torch.save_file", save_file)
    with pytest.raises(OSError, match=r"a\.safetensors") as failed:
        write_tensors(tmp_path / "a.safetensors", {}, {})
    assert failed.value.errno == number
