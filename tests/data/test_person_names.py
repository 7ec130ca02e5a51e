"""Identifiers of persons: one form for one person, whatever the file format."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsgp.accounting.book import Records
from privsgp.data import schema as schemas
from privsgp.data import tables
from privsgp.data.check import check
from privsgp.data.dataset import from_arrays, stack
from privsgp.data.persons import Named, PersonOptions, canonical, grouped, named
from privsgp.data.schema import Schema
from privsgp.errors import Refused
from privsgp.runs import booked, budgets
from privsgp.runs import config as configs

NUMBER = {"type": "number", "range": [0, 9]}


@pytest.mark.parametrize(
    "names",
    [
        ["7", "7.0", " 07", "7\u200b", "\uff17", "+7", "7e+00"],
        ["100000", "1e+05", "1.0e+5"],
        ["0", "-0", "00"],
        ["Ab-7", "ab-7", "AB\u20137 ", "ab\u20117"],
        ["Ann  B", "ann\u00a0b", "ann\tb"],
        ["Jos\u00e9", "JOSE\u0301"],
    ],
)
def test_one_person_has_one_form(names):
    assert len({canonical(name) for name in names}) == 1


@pytest.mark.parametrize(
    "names",
    [
        ["7", "70", "7a", "0.7", "7e1"],
        ["1_1", "11", "1 1", "1-1"],
        ["1e999", "nan", "inf"],
        ["9" * 60, "8" * 60],
        ["9007199254740993", "9007199254740992"],
    ],
)
def test_other_persons_have_others(names):
    assert len({canonical(name) for name in names}) == len(names)


@pytest.mark.parametrize(
    "gap", ["", " ", "nan", "None", "none", "<NA>", "NaT", "\u200b", "\ufeff", "\x07", None, np.nan, "-", "?", "."]
)
def test_rows_without_an_identifier_are_never_one_person(tmp_path, gap):
    with pytest.raises(Refused, match="row 2: no identifier of a person"):
        named({"p": np.array(["a", gap], object)}, PersonOptions(person="p"), "x")
    table, schema = (
        tmp_path / "a.csv",
        {"target": {"column": "y", "classes": ["0", "1"]}, "columns": {"a": NUMBER, "who": {"type": "ignored"}}},
    )
    table.write_text(f"who,a,y\nq,1,0\n{'' if gap is None else gap},2,1\n")
    with pytest.raises(Refused, match="row 2: no identifier of a person"):
        tables.read(table, Schema.model_validate(schema), persons=PersonOptions(person="who", rows_per_person=2))


def test_bytes_are_texts_and_dates_grow():
    assert named({"p": np.array([b"7"])}, PersonOptions(person="p"), "x").names == ["7"]
    dates = ["2026-01-31", "2025-12-31 23:59", "2026-02-01T00:00"]
    asked = PersonOptions(person="p", rows_date="d", rows_choice="latest")
    assert named({"p": ["7"] * 3, "d": dates}, asked, "x").dates.argsort().tolist() == [1, 0, 2]
    assert named({"p": ["7"] * 2, "d": np.array([3, 2.5])}, asked, "x").dates.tolist() == [3, 2.5]
    for wrong in ("31.01.2026", "", "nan"):
        with pytest.raises(Refused, match="no date"):
            named({"p": ["7"], "d": [wrong]}, asked, "x")


def test_several_forms_of_an_identifier_are_one_person_and_are_reported(tmp_path):
    data = from_arrays(np.eye(4, dtype=np.float32), np.zeros(4, np.int64), classes=2)
    made, _, forms = grouped(data, Named(["7", "007", "8", "9"]), PersonOptions(person="p", rows_per_person=2))
    assert (made.samples(np.arange(4)), forms) == (3, 1)
    (tmp_path / "a.csv").write_text("p,u,y\n7,1,yes\n007,2,no\n 8,0,no\n")
    schema = schemas.parse({
        "target": {"column": "y", "classes": ["no", "yes"]},
        "columns": {"u": {"type": "number", "range": [0, 2]}, "p": {"type": "ignored"}},
    }, "x")  # fmt: skip
    found = check(tmp_path / "a.csv", schema, person="p")
    assert sorted(found.rows_of_persons) == [1, 2]
    assert any("of 1 persons are written in several forms" in problem.what for problem in found.problems)


def test_weights_are_shares_of_the_rows_that_are_used():
    data = from_arrays(np.arange(10, dtype=np.float32).reshape(5, 2), np.zeros(5, np.int64), classes=2)
    asked = PersonOptions(person="p", rows_per_person=2, rows_choice="latest", rows_date="d", rows_weight="w")
    weights, dates = np.array([1.0, 3.0, 1e300, 5.0, 1e300]), np.array([2.0, 3.0, 1.0, 0.0, 0.0])
    found = Named(["a", "a", "a", "b", "c"], dates, weights)
    made = grouped(data, found, asked)[0]
    assert made.x[:, 0].tolist() == [2, 0, 6, 8]
    assert made.persons.weights.tolist() == [0.75, 0.25, 1, 1]
    stacked = stack(made, [np.arange(2), np.arange(2, 4)])
    assert stacked.weights.tolist() == [[[0.75, 0.25], [0, 0], [0, 0]], [[1, 0], [1, 0], [0, 0]]]
    for wrong in (0.0, -1.0):
        with pytest.raises(Refused, match="a weight is not above 0"):
            grouped(data, found._replace(weights=np.array([1, 1, 1, 1, wrong])), asked)


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
    made, cut, _ = grouped(data, Named(names, np.array(dates) if latest else None), options)
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
