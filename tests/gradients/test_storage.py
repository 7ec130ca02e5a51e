from __future__ import annotations

import logging

import pytest
import torch

from privsgp.errors import Refused
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


@pytest.mark.parametrize(
    ("memory", "disk", "place", "taken"),
    [(200, 500, "auto", "device"), (100, 500, "auto", "disk"), (200, 500, "disk", "disk"), (200, 500, "host", "host"),
     (100, 120, "auto", None), (100, 500, "host", None)],
)  # fmt: skip
def test_the_first_place_with_room_to_spare_is_taken(memory, disk, place, taken, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(storage, "free_memory", lambda: memory)
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
    assert [storage._bytes(n) for n in (17, 4200, 69_612_000_000, 2.2e12)] == ["17 B", "4.2 kB", "69.6 GB", "2,200 GB"]


def test_this_machine_has_memory():
    assert storage.free_memory() > 2**26
