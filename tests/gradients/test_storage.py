from __future__ import annotations

import logging

import pytest
import torch

from privsgp.errors import Refused
from privsgp.files import in_units
from privsgp.gradients import table as storage
from privsgp.gradients.per_sample import gather
from privsgp.gradients.table import scatter

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_a_table_holds_what_is_put_there(dtype):
    table = torch.zeros((2, 4, 3), dtype=dtype)
    rows = torch.tensor([[3, 1], [0, 2]])
    value = torch.arange(12).reshape(2, 2, 3).to(dtype)
    scatter(table, rows, value)
    assert torch.equal(gather(table, rows), value)
    assert not gather(table, torch.tensor([[0, 2], [1, 3]])).any()


@pytest.mark.parametrize(
    ("there", "memory", "taken"), [(200, 500, META), (100, 500, CPU), (500, 100, META), (100, 120, None)]
)
def test_the_device_is_taken_if_it_has_room_and_else_the_memory(there, memory, taken, monkeypatch, caplog):
    monkeypatch.setattr(storage.devices, "free_on", lambda _device: there)
    monkeypatch.setattr(storage.devices, "free_memory", lambda: memory)
    if taken is None:
        with pytest.raises(Refused, match="a table of 4 × 7 entries takes 100 B, and 120 B are free"):
            storage._table_device(100, "4 × 7 entries", META)
        return
    with caplog.at_level(logging.INFO, "privsgp"):
        assert storage._table_device(100, "4 × 7 entries", META) == taken
    assert "4 × 7 entries = 100 B" in caplog.text


def test_sizes_are_told_in_words():
    assert [in_units(n) for n in (17, 4200, 69_612_000_000, 2.2e12)] == ["17 B", "4.2 kB", "69.6 GB", "2,200 GB"]
