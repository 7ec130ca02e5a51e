from __future__ import annotations

import errno
import logging
import mmap
import os
import resource
import subprocess
import sys

import pytest
import torch

from privsgp.errors import Refused
from privsgp.files import in_units
from privsgp.gradients.tables import storage
from privsgp.gradients.tables.storage import Storage, gather, scatter

CPU = torch.device("cpu")


@pytest.mark.parametrize("place", ["device", "host", "disk"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_every_place_holds_what_is_put_there(place, dtype, tmp_path):
    table = Storage(place, tmp_path).zeros((2, 4, 3), dtype, CPU)
    assert table.dtype == dtype
    assert not table.any()
    rows = torch.tensor([[3, 1], [0, 2]])
    value = torch.arange(12).reshape(2, 2, 3).to(dtype)
    scatter(table, rows, value)
    assert torch.equal(gather(table, rows), value)
    assert not gather(table, torch.tensor([[0, 2], [1, 3]])).any()


def test_nothing_of_a_mapped_table_stays_behind(tmp_path):
    table = Storage("disk", tmp_path).zeros((1, 10, 10), torch.float32, CPU)
    assert list(tmp_path.iterdir()) == []
    table[0, 3] = 1
    assert table.sum() == 10


def _blocks_of_maps(monkeypatch):
    """Note how many bytes of each mapped file the disk has set aside."""
    seen, mapped = [], mmap.mmap

    def noted(number, size, *args):
        seen.append((size, os.fstat(number).st_blocks * 512))
        return mapped(number, size, *args)

    monkeypatch.setattr(storage.mmap, "mmap", noted)
    return seen


def test_the_disk_has_set_a_mapped_table_aside_before_it_is_written(tmp_path, monkeypatch):
    """A hole that is written when the disk is full by then is a SIGBUS, which ends the process."""
    seen = _blocks_of_maps(monkeypatch)
    Storage("disk", tmp_path).zeros((1, 100, 1000), torch.float32, CPU)
    assert [size for size, _ in seen] == [400_000]
    assert all(kept >= size for size, kept in seen)


def test_where_blocks_cannot_be_asked_for_zeros_are_written(tmp_path, monkeypatch):
    def cannot(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", cannot)
    seen = _blocks_of_maps(monkeypatch)
    table = Storage("disk", tmp_path).zeros((1, 100, 1000), torch.float32, CPU)
    assert not table.any()
    assert all(kept >= size for size, kept in seen)
    assert len(seen) == 1


@pytest.mark.parametrize("asked", [True, False])
def test_a_disk_that_has_no_room_is_refused(tmp_path, monkeypatch, asked):
    """A real limit on the size of files; Python makes an error of its signal."""
    if not asked:
        monkeypatch.delattr(os, "posix_fallocate")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(Refused, match=rf"table of 400 kB in {tmp_path}: File too large") as refused:
            Storage("disk", tmp_path).zeros((1, 100, 1000), torch.float32, CPU)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "table_place" in refused.value.remedy
    assert list(tmp_path.iterdir()) == []


FILLED = """
import os, sys, torch
from pathlib import Path
from privsgp.gradients.tables.storage import Storage
folder = Path(sys.argv[1])
try:
    table = Storage("disk", folder).zeros((1, 250, 1000), torch.float32, torch.device("cpu"))
    with (folder / "others").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
except OSError as error:
    assert error.errno == 28
table += 1
print(int(table.sum()))
"""


def test_others_may_fill_the_disk_afterwards(tmp_path):
    """A disk of 2 MB that is full by the time the table is written."""
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2M", "none", tmp_path], check=False, capture_output=True
    )
    if mount.returncode:
        pytest.skip("only root may mount")
    try:
        ran = subprocess.run([sys.executable, "-c", FILLED, tmp_path], check=False, capture_output=True, text=True)
    finally:
        subprocess.run(["umount", tmp_path], check=True)
    assert (ran.returncode, ran.stdout) == (0, "250000\n"), ran.stderr


@pytest.mark.parametrize(
    ("memory", "disk", "place", "taken"),
    [(200, 500, "auto", "device"), (100, 500, "auto", "disk"), (200, 500, "disk", "disk"), (200, 500, "host", "host"),
     (100, 120, "auto", None), (100, 500, "host", None)],
)  # fmt: skip
def test_the_first_place_with_room_to_spare_is_taken(memory, disk, place, taken, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(storage.devices, "free_memory", lambda: memory)
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _folder: storage.shutil._ntuple_diskusage(disk, 0, disk))
    wish = Storage(place, tmp_path)
    if taken is None:
        with pytest.raises(
            Refused, match=rf"table_place = '{place}' for a table of 4 × 7 entries = 100 B: free are 100 B"
        ):
            wish.settled(100, "4 × 7 entries", CPU)
        return
    with caplog.at_level(logging.INFO, "privsgp"):
        assert wish.settled(100, "4 × 7 entries", CPU) == Storage(taken, tmp_path)
    assert "4 × 7 entries = 100 B" in caplog.text


def test_sizes_are_told_in_words():
    assert [in_units(n) for n in (17, 4200, 69_612_000_000, 2.2e12)] == ["17 B", "4.2 kB", "69.6 GB", "2,200 GB"]
