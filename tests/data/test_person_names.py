"""Identifiers of persons: one form for one person, whatever the file format."""

from __future__ import annotations

import numpy as np
import pytest

from privsgp.accounting.book import Records
from privsgp.data.persons import canonical, named
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
