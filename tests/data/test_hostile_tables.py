"""Schemas and tables that others wrote: they take no more time and memory than they are long, and give numbers."""

from __future__ import annotations

import numpy as np
import pytest

from privsgp import devices
from privsgp.data import schema as schemas
from privsgp.data import tables
from privsgp.errors import Refused

TARGET = {"column": "y", "classes": ["a", "b"]}


def _schema(column):
    return schemas.parse({"target": TARGET, "columns": {"c": column}})


@pytest.mark.parametrize(
    "scale",
    [
        {"range": [0.0, 5e-324]},  # half of it is 0
        {"range": [-1e308, 1e308]},  # its width is infinite
        {"centre": 1e308, "scale": 1e308},
        {"range": [0.0, 1e300], "centre": 0.0, "scale": 1e-300},
        {"range": [0.0, 1e30], "centre": 0.0, "scale": 1.0},  # float32 cannot square it
    ],
)
def test_a_scale_that_gives_no_numbers_is_refused(scale):
    with pytest.raises(Refused, match="not finite, or too large"):
        _schema({"type": "number"} | scale)


def test_a_million_values_are_refused_at_once():
    with pytest.raises(Refused, match=r"1,000,001 features"):
        _schema({"type": "category", "values": [f"v{i}" for i in range(1_000_000)]})


def test_a_long_list_takes_memory_for_the_rows_there_are(tmp_path):
    found = _schema({"type": "category", "values": [f"v{i}" for i in range(99_000)]})
    (tmp_path / "t.csv").write_text("c,y\nv7,a\nnew,b\n")
    x = tables.read(tmp_path / "t.csv", found).x
    assert np.argwhere(x).tolist() == [[0, 7], [1, 99_000]]


def test_rows_that_become_more_numbers_than_there_is_memory_for_are_refused(tmp_path, monkeypatch):
    found = _schema({"type": "category", "values": [f"v{i}" for i in range(10_000)]})
    (tmp_path / "t.csv").write_text("c,y\n" + 100 * "v7,a\n")
    monkeypatch.setattr(devices, "free_memory", lambda: 10**6)
    with pytest.raises(Refused, match=r"unpacks to 16\.0 MB"):
        tables.read(tmp_path / "t.csv", found)


def test_a_table_of_very_many_columns_is_refused_before_it_is_read(tmp_path):
    (tmp_path / "t.csv").write_text(",".join(map(str, range(300_000))) + "\n")
    with pytest.raises(Refused, match="300,000 columns"):
        tables.read_arrow(tmp_path / "t.csv")
