"""Identifiers of persons: one form for one person, whatever the file format."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsgp.accounting.book import Records
from privsgp.data.dataset import from_arrays
from privsgp.data.persons import Named, PersonOptions, canonical, grouped, named
from privsgp.errors import Refused
from privsgp.runs import booked, budgets
from privsgp.runs import config as configs


@pytest.mark.parametrize(
    "names", [["7", "7.0", " 07", "7\u200b", "7e0"], ["1001", "1.001e3"], ["Ab-7", "ab-7"], ["0", "-0"]]
)
def test_one_person_has_one_form(names):
    assert len({canonical(name) for name in names}) == 1


@pytest.mark.parametrize("names", [["7", "70", "7a", "0.7"], ["1e999", "nan", "inf"], ["9" * 60, "8" * 60]])
def test_other_persons_have_others(names):
    assert len({canonical(name) for name in names}) == len(names)


def test_bytes_are_texts_and_dates_grow():
    assert named(np.array([b"7"]), None, (), "x").names == ["7"]
    dates = ["2026-01-31", "2025-12-31 23:59", "2026-02-01T00:00"]
    assert named(["7"] * 3, dates, (), "x").dates.argsort().tolist() == [1, 0, 2]
    assert named(["7"] * 2, np.array([3, 2.5]), (), "x").dates.tolist() == [3, 2.5]
    for wrong in ("31.01.2026", "", "nan"):
        with pytest.raises(Refused, match="a date is none"):
            named(["7"], [wrong], (), "x")


def test_a_person_at_more_nodes_than_is_counted_is_refused():
    same = [Records("", np.array([[row, person]], np.uint64)) for row, person in ((1, 9), (2, 9))]
    booked.refuse_everywhere(same, 2)
    with pytest.raises(Refused, match="a person is at 2 nodes"):
        booked.refuse_everywhere(same, 1)


def test_a_person_at_sites_with_other_noise_is_refused():
    config = configs.parse({
        "name": "a", "data": {"path": "{node}.npz", "nodes": 2, "person": "who", "rows_per_person": 2},
        "model": {"name": "logistic"}, "privacy": {"sigma": 0.3, "sites_per_person": 2},
        "algorithm": {"name": "privsgp", "steps": 2, "batch": 2, "step_size": 0.1},
    })  # fmt: skip
    with pytest.raises(Refused, match="different noise or budgets"):
        budgets.by_person(config, None, [400, 40])


ROW = st.tuples(st.sampled_from(["7", "7.0", " 07", "a", "A", "b", "c"]), *[st.integers(0, 2)] * 4)


def rows_of(rows, most, latest):
    """Return {person: rows that are used, in order}, all of it in order, and how many persons are cut."""
    names, x, y, dates = [r[0] for r in rows], [r[1:3] for r in rows], [r[3] for r in rows], [float(r[4]) for r in rows]
    choice = {"rows_choice": "latest", "rows_date": "d"} if latest else {}
    options = PersonOptions(person="p", rows_per_person=most, **choice)
    data = from_arrays(np.array(x, np.float32), np.array(y), classes=3)
    made, cut = grouped(data, Named(names, np.array(dates) if latest else None), options)
    whose = list(map(tuple, made.persons.hashes.tolist()))
    used = list(zip(whose, made.x.tolist(), made.y.tolist(), strict=True))
    return {who: [row for other, *row in used if other == who] for who in whose}, used, cut


@settings(max_examples=200, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=12), st.randoms(), st.integers(1, 4), st.booleans())
def test_order_and_others_change_nothing(rows, random, most, latest):
    shuffled = random.sample(rows, len(rows))
    by_person, used, cut = rows_of(rows, most, latest)
    assert (by_person, used, cut) == rows_of(shuffled, most, latest)
    assert len(by_person) == len({canonical(row[0]) for row in rows})
    assert max(map(len, by_person.values())) <= most
    gone = canonical(rows[0][0])
    if others := [row for row in rows if canonical(row[0]) != gone]:
        found = rows_of(others, most, latest)[0]
        assert found == {who: of for who, of in by_person.items() if who in found}
        assert len(found) == len(by_person) - 1
