"""The budget book: each record keeps what it has spent, whatever file, run or command it comes in."""

from __future__ import annotations

import dataclasses
import multiprocessing
import sqlite3
import stat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsgp.accounting.book import Book, Entry, Records
from privsgp.errors import Refused


@pytest.fixture
def book(tmp_path):
    return Book(tmp_path / "book")


def entry(run, node=0, *, folder="/nowhere", **more):
    values = {
        "run": run, "node": node, "ledger": run, "command": "train", "name": run, "data": "a.csv",
        "folder": str(folder), "simulation": False, "relation": "zero-out", "trust": "per-node", "epsilon": 1.0,
        "delta": 1e-6,
    }  # fmt: skip
    return Entry(**values | more)


def hashes(*values):
    return np.array(values, np.uint64)


def records(*values):
    return Records(f"in the order {values}", hashes(*values))


def test_a_file_with_one_more_row_is_no_new_file(book):
    book.enter([entry("a")], [records(1, 2, 3)])
    book.enter([entry("b", epsilon=2.0)], [records(0, 3, 2, 1)])
    assert book.spent_on(hashes(2, 9), "zero-out")[:2] == (3.0, 2e-6)
    assert book.spent_on(hashes(0), "zero-out")[:2] == (2.0, 1e-6)
    assert book.spent_on(hashes(9), "zero-out")[:2] == (0.0, 0.0)


def test_a_record_is_known_by_any_of_its_hashes(book):
    """By its sample, its row, or its inputs; whichever are the same, there are two records in all."""
    for run, kinds in {
        "a": [[1, 2, 3], [4, 5, 6]],
        "b": [[7, 2, 8], [9, 5, 10]],
        "c": [[11, 2, 3], [12, 5, 6]],
    }.items():
        book.enter([entry(run)], [Records(run, np.array(kinds, np.uint64))])
    assert book.spent_on(hashes(4), "zero-out").epsilon == 1.0
    assert book.spent_on(np.array([[0, 5, 6], [20, 21, 22]], np.uint64), "zero-out").epsilon == 3.0
    assert [shared for _, shared in book.overlapping(np.array([[0, 5, 3], [20, 21, 22]], np.uint64))] == [1, 1, 1]
    (found,) = book.data_sets()
    assert (found.records, found.spent.epsilon) == (2, 3.0)


def test_runs_on_one_ledger_share_a_budget(book):
    book.enter([entry("a")], [records(1)])
    book.enter([entry("b", ledger="a", epsilon=1.5)], [records(1)])
    assert book.spent_on(hashes(1), "zero-out").epsilon == 1.5
    assert book.spent_by(book.keyed(hashes(1)), "zero-out", but="a/0").epsilon == 0.0
    assert book.spent_by(book.keyed(hashes(1)), "zero-out", but="a/1").epsilon == 1.5  # another node's ledger


def test_what_cannot_be_added_up_is_infinite(book):
    book.enter([entry("a", relation="replace-one"), entry("a", 1, epsilon=None)], [records(1), records(2)])
    assert book.spent_on(hashes(1), "zero-out").epsilon == np.inf
    assert book.spent_on(hashes(1), "replace-one").epsilon == 1.0
    assert book.spent_on(hashes(2), "zero-out").epsilon == np.inf


def test_simulations_are_named_and_not_counted(book):
    for run in ("a", "b"):
        book.enter([entry(run, name="tried", simulation=True)], [records(1, 2)])
    assert book.spent_on(hashes(1), "zero-out").epsilon == 0.0
    assert [(one.name, shared) for one, shared in book.overlapping(hashes(2, 3))] == [("tried", 1)]


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, 8), st.sets(st.integers(0, 9), min_size=1)),
        max_size=7,
        unique_by=lambda one: one[1],
    )
)
def test_sums_are_those_of_a_plain_loop(tmp_path_factory, uses):
    book, plain = Book(tmp_path_factory.mktemp("book")), {}
    for number, (ledger, epsilon, held) in enumerate(uses):
        book.enter([entry(f"run{number}", ledger=ledger, epsilon=float(epsilon))], [records(*held)])
        for record in held:
            spent = plain.setdefault(record, {})
            spent[ledger] = max(spent.get(ledger, 0.0), float(epsilon))
    # A ledger counts with its largest budget for every record that any of its runs held.
    largest = {ledger: max(e for one, e, _ in uses if one == ledger) for ledger, _, _ in uses}
    for record in range(10):
        expected = sum(largest[ledger] for ledger in plain.get(record, {}))
        assert book.spent_on(hashes(record), "zero-out").epsilon == pytest.approx(expected)
    everybody = max((sum(largest[one] for one in spent) for spent in plain.values()), default=0.0)
    assert book.spent_on(hashes(*range(10)), "zero-out").epsilon == pytest.approx(everybody)


def test_data_sets_are_those_that_share_records(book):
    book.enter([entry("a"), entry("a", 1)], [records(1, 2), records(5)])
    book.enter([entry("b")], [records(9)])
    book.enter([entry("c", epsilon=2.0)], [records(2, 9)])
    found = {
        tuple(sorted((one.run, one.node) for one in d.entries)): (d.records, d.spent.epsilon) for d in book.data_sets()
    }
    assert found == {(("a", 1),): (1, 1.0), (("a", 0), ("b", 0), ("c", 0)): (3, 3.0)}


def test_a_run_continues_with_its_own_records_in_its_own_folder(book, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    begun = entry("a", folder=one)
    book.enter([begun], [records(1, 2)])
    book.remember("a", {0: (3, "f" * 64)})
    book.enter([begun], [records(1, 2)], resumed=True)
    with pytest.raises(Refused, match="other records of node 0"):
        book.enter([begun], [records(2, 1)], resumed=True)
    two.mkdir()
    for resumed in (True, False):
        with pytest.raises(Refused, match="another folder or a copy"):
            book.enter([entry("a", folder=two)], [records(1, 2)], resumed=resumed, moved=True)
    one.rename(tmp_path / "three")  # the same folder by another name
    book.enter([entry("a", folder=tmp_path / "three")], [records(1, 2)], resumed=True)
    (tmp_path / "three").rmdir()
    with pytest.raises(Refused, match="looks like a copy"):
        book.enter([entry("a", folder=two)], [records(1, 2)], resumed=True)
    book.enter([entry("a", folder=two)], [records(1, 2)], resumed=True, moved=True)
    assert book.marks("a")[0][0].charged == 3


def test_a_run_that_has_sent_nothing_may_begin_again_with_other_records(book, tmp_path):
    book.enter([entry("a", folder=tmp_path)], [records(1, 2)])
    book.enter([entry("a", folder=tmp_path)], [records(3)])
    assert book.spent_on(hashes(1), "zero-out").epsilon == 0.0
    assert book.spent_on(hashes(3), "zero-out").epsilon == 1.0


def test_a_refusal_enters_nothing(book):
    def refuse():
        raise Refused("too much", "ask for less")

    with pytest.raises(Refused, match="too much"):
        book.enter([entry("a")], [records(1)], check=refuse)
    assert book.entries() == []


def _both(folder, run, go, results):
    book = Book(folder)

    def check():
        if book.spent_on(hashes(1), "zero-out").epsilon >= 1.0:
            raise Refused("spent", "-")

    go.wait()
    try:
        book.enter([entry(run)], [records(1)], check=check)
        results.put(run)
    except Refused:
        results.put("refused")


def test_of_two_processes_only_one_gets_the_last_of_a_budget(tmp_path):
    forks = multiprocessing.get_context("fork")
    go, results = forks.Event(), forks.Queue()
    processes = [forks.Process(target=_both, args=(tmp_path / "book", run, go, results)) for run in "abcd"]
    for process in processes:
        process.start()
    go.set()
    said = sorted(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    assert said[1:] == ["refused"] * 3


def test_the_book_tells_nobody_else_anything(book):
    book.enter([entry("a")], [records(*range(100))])
    assert {stat.S_IMODE(file.stat().st_mode) for file in book.folder.iterdir()} == {0o600}
    with sqlite3.connect(book.path) as db:
        [(kept,)] = db.execute("SELECT hashes FROM sets").fetchall()
    assert not np.isin(np.frombuffer(kept, np.uint64), np.arange(100)).any()  # keyed
    other = Book(book.folder.parent / "other")
    assert not np.isin(other.keyed(hashes(*range(100))), book.keyed(hashes(*range(100)))).any()


def test_an_entry_is_read_as_it_was_written(book):
    one = entry("a", sites=("basel", "cork"), started="2026-01-01T00:00:00Z", charged=3, head="f" * 64)
    book.enter([one], [None])
    assert book.entries() == [dataclasses.replace(one)]


def test_a_book_of_another_version_is_refused(book):
    book.enter([entry("a")], [None])
    with sqlite3.connect(book.path) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(Refused, match="version 99"):
        book.entries()


@pytest.mark.parametrize("gone", ["folder", "file", "key"])
def test_a_book_that_vanishes_in_mid_run_is_not_begun_again(book, gone):
    book.enter([entry("a")], [records(1)])
    lost = {"folder": book.folder, "file": book.path, "key": book.folder / "budget.key"}[gone]
    lost.rename(lost.with_name("elsewhere"))
    with pytest.raises(Refused, match="the budget book"):
        book.remember("a", {0: (3, "f" * 64)})
    assert not lost.exists()
    lost.with_name("elsewhere").rename(lost)
    book.remember("a", {0: (3, "f" * 64)})
    assert book.entries()[0].charged == 3


def test_a_book_that_does_not_know_a_run_notes_nothing_of_it(book):
    book.enter([entry("a")], [records(1)])
    with pytest.raises(Refused, match="does not know node 1 of this run"):
        book.remember("a", {0: (3, "f" * 64), 1: (3, "f" * 64)})
    assert book.entries()[0].charged == 0


def test_only_entering_a_run_makes_a_book(book):
    assert (book.entries(), book.marks("a"), book.data_sets(), book.overlapping(hashes(1))) == ([], {}, [], [])
    assert book.spent_on(hashes(1), "zero-out") == (0.0, 0.0)
    assert len(book.keyed(hashes(1, 2))) == 2
    assert not book.folder.exists()


def test_nobody_is_told_to_leave_a_damaged_book(book):
    book.enter([entry("a")], [records(1)])
    book.path.write_bytes(b"x" * 5000)
    with pytest.raises(Refused, match="cannot be used") as refused:
        book.entries()
    assert "PRIVSGP_STATE" not in str(refused.value)


def test_a_full_disk_is_named_and_no_copy_is_asked_for(tmp_path, monkeypatch):
    def full(*_args, **_options):
        raise sqlite3.OperationalError("database or disk is full")

    book = Book(tmp_path)
    book.path.touch()
    monkeypatch.setattr(sqlite3, "connect", full)
    with pytest.raises(Refused, match="cannot be used") as refused:
        book.entries()
    assert refused.value.remedy == "the disk is full: free some space"


def test_an_entry_whose_ledger_was_opened_is_not_replaced(book):
    """Its first releases may have been sent before the book knew that they were charged."""
    book.enter([entry("a")], [records(1)])
    book.remember("a", {0: (0, "head")})
    with pytest.raises(Refused, match="another folder or a copy"):
        book.enter([entry("a")], [records(1)])


@pytest.mark.parametrize(("counts", "refused"), [({"a": 20}, "b"), ({"a": 20, "b": 3}, "b"), ({"a": 9, "b": 5}, "a")])
def test_a_run_that_does_not_count_what_another_has_spent_of_its_budget_is_refused(tmp_path, counts, refused):
    """Else two runs that continue one would each spend the whole budget, and count once."""
    book = Book(tmp_path)
    book.enter([entry("a")], [records(1)])
    book.remember("a", {0: (20, "head")})
    book.enter([entry("b", ledger="a/0")], [records(1)], counted={"a": 20})
    book.remember("b", {0: (5, "head")})
    with pytest.raises(Refused, match=rf"\({refused}\) has spent \d+ releases, and"):
        book.enter([entry("c", ledger="a/0")], [records(1)], counted=counts)
    assert [one.run for one in book.entries()] == ["a", "b"]
    book.enter([entry("c", ledger="a/0")], [records(1)], counted={"a": 20, "b": 5})


def test_of_two_runs_that_continue_one_the_first_ends_before_it_spends(tmp_path):
    """Both were entered before either had begun; the first one's process still runs."""
    book = Book(tmp_path)
    book.enter([entry("a")], [records(1)])
    for run in "bc":
        book.enter([entry(run, ledger="a/0"), entry(f"{run}/held out", ledger="d")], [records(1)] * 2, counted={"a": 0})
    with pytest.raises(Refused, match="does not know node 0"):
        book.remember("b", {0: (1, "head")})
    book.remember("c", {0: (1, "head")})
