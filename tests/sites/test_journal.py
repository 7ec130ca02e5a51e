"""A table on the disk: what was committed comes back to the bit, whatever a crash left behind it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privsgp.errors import Refused
from privsgp.sites.journal import Journal

ROWS = 5


def table():
    kinds = {"a": torch.float32, "b": torch.bfloat16, "rows": torch.int32, "scale": torch.float64}
    shapes = {"a": (3, 2), "b": (4,), "rows": (2,), "scale": ()}
    return {name: torch.zeros(1, ROWS, *shapes[name], dtype=kind) for name, kind in kinds.items()}


def change(arrays, rows, value):
    for number, a in enumerate(arrays.values()):
        a[0, rows] = torch.full_like(a[0, rows], value + number)


def reopened(folder, place):
    arrays = table()
    journal = Journal(folder, arrays)
    for name, value in journal.place().items():
        value.copy_(place[name])
    journal.replay()
    return journal, arrays


def same(arrays, others):
    return all(torch.equal(arrays[name], others[name]) for name in arrays)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, ROWS - 1)), st.integers(0, 400), st.booleans()), max_size=25))
def test_what_was_committed_comes_back_and_what_came_after_is_cut_off(tmp_path_factory, steps):
    """Each step changes rows and commits; or writes, and dies with some bytes more or fewer on the disk."""
    folder = tmp_path_factory.mktemp("journal")
    arrays = table()
    journal, place, kept = Journal(folder, arrays), None, None
    for value, (rows, torn, dies) in enumerate(steps, 1):
        change(arrays, sorted(rows), value)
        journal.write(torch.tensor(sorted(rows), dtype=torch.int64))
        if not dies or place is None:
            place = {name: one.clone() for name, one in journal.place().items()}
            kept = {name: a.clone() for name, a in arrays.items()}
            journal.committed()
            assert len(list(folder.iterdir())) == 1
            continue
        path = folder / f"table-{int(place['at'][0])}.journal"
        path.write_bytes(path.read_bytes()[: int(place["at"][1]) + torn])
        journal, arrays = reopened(folder, place)
        assert same(arrays, kept)
    if place is not None:
        assert same(reopened(folder, place)[1], kept)


def test_a_file_does_not_grow_for_ever(tmp_path):
    arrays = table()
    journal = Journal(tmp_path, arrays)
    for value in range(200):
        change(arrays, [value % ROWS], value)
        journal.write(torch.tensor([value % ROWS]))
        journal.committed()
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size < 5 * ROWS * journal.row_bytes
    assert journal.number > 10


@pytest.mark.parametrize("damage", ["gone", "short", "changed"])
def test_a_journal_that_is_not_what_was_committed_is_refused(tmp_path, damage):
    journal = Journal(tmp_path, table())
    journal.write(torch.tensor([1]))
    path = tmp_path / "table-1.journal"
    raw = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(raw[:-1] if damage == "short" else raw[:-1] + b"\1")
    with pytest.raises(Refused, match="not what its commit says"):
        reopened(tmp_path, journal.place())
