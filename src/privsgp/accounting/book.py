"""The budget book: what the records of this user have spent in all, over every run and command.

It is one SQLite file in the state folder ($PRIVSGP_STATE, else $XDG_STATE_HOME/privsgp, else ~/.local/state/privsgp),
readable by its owner alone. A command that spends budget on private records enters every node there before the first
release: which records, under which relation and trust, the most it may spend, where its ledger is, and the ledger's
head. Records are kept as one keyed 64-bit hash each. So a changed file is no new file: each record keeps its spending.

The book refuses and warns; it never grants. Somebody who changes it can stop a run, never lengthen one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import secrets
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from privsgp.accounting.ledger import Seen
from privsgp.errors import Refused
from privsgp.files import read_bytes, user_folder, write_private

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

_BY = "the budget book"
_VERSION = 1
_PATIENCE = 60.0  # seconds to wait for another process that writes to the book
_TABLES = (
    "CREATE TABLE sets (id INTEGER PRIMARY KEY, digest TEXT UNIQUE NOT NULL, hashes BLOB NOT NULL)",
    """CREATE TABLE entries (
      run TEXT NOT NULL, node INTEGER NOT NULL, ledger TEXT NOT NULL, command TEXT NOT NULL, name TEXT NOT NULL,
      data TEXT NOT NULL, folder TEXT NOT NULL, started TEXT NOT NULL, simulation INTEGER NOT NULL,
      relation TEXT NOT NULL, trust TEXT NOT NULL, epsilon REAL, delta REAL NOT NULL, sites TEXT NOT NULL,
      records TEXT NOT NULL, charged INTEGER NOT NULL, head TEXT NOT NULL, inode TEXT NOT NULL,
      set_id INTEGER REFERENCES sets (id), PRIMARY KEY (run, node)
    )""",
)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One node of one run: what it may spend on which records."""

    run: str  # the number of the run
    node: int
    ledger: str  # the number of the first run in the node's ledger: runs on one ledger share one budget
    command: str  # train or join
    name: str  # what people call the run
    data: str  # what people call the records: a file or a data set
    folder: str  # the run folder
    simulation: bool
    relation: str
    trust: str
    epsilon: float | None  # the most that all runs on this ledger may spend; None: no finite bound
    delta: float
    sites: tuple[str, ...] = ()  # the sites that agreed to the run
    started: str = ""
    charged: int = 0  # releases in the ledger, when its head was `head`
    head: str = ""


class Records(NamedTuple):
    """A node's records: a digest of all of them in order, targets included, and an unkeyed hash of each sample."""

    digest: str
    hashes: Hashes


class Total(NamedTuple):
    """The sums of ε and δ for the record that has spent most, and the entries that they come from."""

    epsilon: float
    delta: float
    entries: tuple[Entry, ...]


class DataSet(NamedTuple):
    """Entries that share records, how many distinct records they hold, and what was spent under one relation."""

    entries: tuple[Entry, ...]
    records: int
    relation: str
    spent: Total


def state_folder() -> Path:
    """Return the folder of the budget book; refuse where there is no home folder."""
    try:
        return user_folder("PRIVSGP_STATE", "XDG_STATE_HOME", ".local/state", "privsgp")
    except RuntimeError as error:
        raise Refused("there is no home folder for the budget book", "name a folder in PRIVSGP_STATE") from error


class Book:
    """The budget book of this user.

    Guarantee: what `enter` and `remember` wrote is on the disk when they return, or they raise.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = state_folder() if folder is None else folder
        self.path = self.folder / "budget.sqlite"

    def enter(
        self, entries: Sequence[Entry], records: Sequence[Records | None], *, resumed: bool = False,
        moved: bool = False, check: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Enter the nodes of a run before their first release.

        `resumed`: the run folder holds this run already. `moved` accepts that the folder comes from another place.
        `check` may refuse: no other process can enter anything between it and this entry.

        Guarantee: a resumed run has the records that it began with, in the same order, and is no copy that this book
        knows of. A simulation that was entered before with the same records is not entered again.
        """
        with self._open(write=True) as db:
            check()
            for entry, own in zip(entries, records, strict=True):
                self._enter(db, entry, own, resumed=resumed, moved=moved)

    def _enter(
        self, db: sqlite3.Connection, entry: Entry, records: Records | None, *, resumed: bool, moved: bool
    ) -> None:
        before = db.execute("SELECT * FROM entries WHERE run = ? AND node = ?", (entry.run, entry.node)).fetchone()
        if before is None:
            if resumed and not moved and not entry.simulation:
                raise _unknown(entry, self.path)
            self._insert(db, entry, records)
            return
        if entry.simulation:
            return
        if not resumed and not before["charged"]:  # nothing was sent: it may begin again, with other records too
            db.execute("DELETE FROM entries WHERE run = ? AND node = ?", (entry.run, entry.node))
            self._insert(db, entry, records)
            return
        _refuse_other_records(entry, before["records"], records)
        _refuse_copy(entry, before, resumed=resumed, moved=moved)
        where = (entry.folder, _inode(entry.folder), entry.run, entry.node)
        db.execute("UPDATE entries SET folder = ?, inode = ? WHERE run = ? AND node = ?", where)

    def _insert(self, db: sqlite3.Connection, entry: Entry, records: Records | None) -> None:
        kept = None if records is None else self._set(db, records)
        if entry.simulation and kept is not None:
            same = db.execute("SELECT 1 FROM entries WHERE simulation AND set_id = ? AND name = ?", (kept, entry.name))
            if same.fetchone() is not None:
                return
        values = dataclasses.asdict(entry) | {
            "sites": json.dumps(entry.sites), "started": entry.started or _now(), "set_id": kept,
            "records": "" if records is None else records.digest, "inode": _inode(entry.folder),
        }  # fmt: skip
        names = ", ".join(values)
        db.execute(f"INSERT INTO entries ({names}) VALUES (:{', :'.join(values)})", values)  # noqa: S608 - field names

    def _set(self, db: sqlite3.Connection, records: Records) -> int:
        """Return the number of a set of records, which is kept once however often it is used."""
        content = self.keyed(records.hashes).tobytes()
        digest = hashlib.sha256(content).hexdigest()
        db.execute("INSERT OR IGNORE INTO sets (digest, hashes) VALUES (?, ?)", (digest, content))
        found: int = db.execute("SELECT id FROM sets WHERE digest = ?", (digest,)).fetchone()["id"]
        return found

    def keyed(self, hashes: Hashes) -> Hashes:
        """Return keyed hashes of records, sorted; without the key nobody can look for a record in the book."""
        key = self._key()
        found = [hashlib.blake2b(one.tobytes(), digest_size=8, key=key).digest() for one in hashes]
        return np.sort(np.frombuffer(b"".join(found), np.uint64))

    def remember(self, run: str, heads: dict[int, tuple[int, str]]) -> None:
        """Keep how far the ledgers of a run are: by node, what is charged and the head.

        Guarantee: the note is on the disk when this returns; a book that cannot be written raises.
        """
        with self._open(write=True) as db:
            rows = [(charged, head, run, node) for node, (charged, head) in heads.items()]
            db.executemany("UPDATE entries SET charged = ?, head = ? WHERE run = ? AND node = ?", rows)

    def seen(self, ledger: str) -> dict[int, list[Seen]]:
        """Return what the book knows of each node's ledger that began with this run."""
        known: dict[int, list[Seen]] = {}
        for one in self.entries():
            if one.ledger == ledger and one.head and not one.simulation:
                known.setdefault(one.node, []).append(Seen(one.charged, one.head, _BY))
        return known

    def missing(self, ledger: str, folder: Path, there: Collection[int]) -> tuple[int, Seen] | None:
        """Return a node that has spent from a ledger in this run folder, where the ledger is gone; None: none has."""
        for one in self.entries():
            if one.ledger == ledger and one.folder == str(folder.resolve()) and one.head and one.node not in there:
                return one.node, Seen(one.charged, one.head, _BY)
        return None

    def entries(self) -> list[Entry]:
        """Return all entries, the oldest first."""
        if not self.path.exists():
            return []
        with self._open() as db:
            return [_entry(row) for row in db.execute("SELECT * FROM entries ORDER BY started, run, node")]

    def overlapping(self, hashes: Hashes) -> list[tuple[Entry, int]]:
        """Return the entries that hold some of these records, and how many of them."""
        mine, sets = self.keyed(hashes), self._sets()
        counts = {key: int(np.isin(mine, kept).sum()) for key, kept in sets.items()}
        return [(one, counts[key]) for one in self.entries() if counts.get(key := (one.run, one.node))]

    def spent_on(self, hashes: Hashes, relation: str, but: Collection[tuple[str, int]] = ()) -> Total:
        """Return what the record that has spent most of these has spent, without the (ledger, node) named in `but`.

        Runs on one ledger share its budget, so the largest of them counts; budgets of several ledgers add up. An ε
        under another relation, or no finite ε, makes the sum infinite. Simulations do not count.
        """
        counted = [one for one in self.entries() if (one.ledger, one.node) not in but]
        return _worst(self.keyed(hashes), counted, self._sets(), relation)

    def data_sets(self) -> list[DataSet]:
        """Return the data sets: entries that share records, how many records they hold, and what is spent in all."""
        sets = self._sets()
        groups: list[tuple[list[Entry], Hashes]] = []
        for one in self.entries():
            own = sets.get((one.run, one.node), np.empty(0, np.uint64))
            sharing = [np.isin(own, hashes).any() for _, hashes in groups]
            joined = [group for group, shares in zip(groups, sharing, strict=True) if shares]
            apart = [group for group, shares in zip(groups, sharing, strict=True) if not shares]
            hashes = np.unique(np.concatenate([own, *(hashes for _, hashes in joined)]))
            groups = [*apart, ([*(entry for entries, _ in joined for entry in entries), one], hashes)]
        return [
            DataSet(tuple(entries), len(hashes), relation, _worst(hashes, entries, sets, relation))
            for entries, hashes in groups
            for relation in sorted({one.relation for one in entries})
        ]

    def _sets(self) -> dict[tuple[str, int], Hashes]:
        if not self.path.exists():
            return {}
        with self._open() as db:
            rows = db.execute("SELECT run, node, hashes FROM entries JOIN sets ON set_id = sets.id")
            return {(run, node): np.frombuffer(content, np.uint64) for run, node, content in rows}

    def sets_of(self, runs: Collection[str]) -> dict[int, list[Hashes]]:
        """Return by node the keyed hashes of the records of some private runs."""
        found: dict[int, list[Hashes]] = {}
        sets = self._sets()
        for one in self.entries():
            if one.run in runs and not one.simulation and (own := sets.get((one.run, one.node))) is not None:
                found.setdefault(one.node, []).append(own)
        return found

    def _key(self) -> bytes:
        path = self.folder / "budget.key"
        with self._usable():
            if not path.exists():
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                made = self.folder / f"budget.key-{secrets.token_hex(8)}"
                write_private(made, secrets.token_bytes(32))
                with contextlib.suppress(FileExistsError):  # of several processes, the first gives the key
                    os.link(made, path)
                made.unlink()
            return read_bytes(path, 64)

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        """Refuse a book that cannot be read or written."""
        try:
            yield
        except (OSError, sqlite3.Error) as error:
            raise Refused(
                f"the budget book {self.path} cannot be used: {error}",
                "make its folder writable, restore it from a copy, or name another folder in PRIVSGP_STATE; without it "
                "nothing says what records have spent",
            ) from error

    @contextlib.contextmanager
    def _open(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """Open the book for one transaction; what it writes is on the disk at the end.

        While one process writes, others can read what was there before, and cannot write.
        """
        with self._usable():
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self.path.exists():  # never open an existing book: closing it would drop the locks that SQLite holds
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            if not self.path.is_file():
                raise OSError("it is no regular file")
            with contextlib.closing(sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)) as db:
                db.row_factory = sqlite3.Row
                db.execute("PRAGMA synchronous = EXTRA")
                _make_tables(self.path, db)
                db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield db
                db.execute("COMMIT")


def _worst(mine: Hashes, entries: Sequence[Entry], sets: dict[tuple[str, int], Hashes], relation: str) -> Total:
    """Return the largest sums over these records, and the entries that hold some of them."""
    ledgers: dict[tuple[str, int], list[Entry]] = {}
    for one in entries:
        if not one.simulation and (one.run, one.node) in sets:
            ledgers.setdefault((one.ledger, one.node), []).append(one)
    epsilon, delta, found = np.zeros(len(mine)), np.zeros(len(mine)), list[Entry]()
    for runs in ledgers.values():
        held = np.isin(mine, np.concatenate([sets[one.run, one.node] for one in runs]))
        if held.any():
            found += runs
            epsilon[held] += max(_epsilon_under(one, relation) for one in runs)
            delta[held] += max(one.delta for one in runs)
    return Total(float(epsilon.max(initial=0.0)), float(delta.max(initial=0.0)), tuple(found))


def _epsilon_under(entry: Entry, relation: str) -> float:
    return math.inf if entry.epsilon is None or entry.relation != relation else entry.epsilon


def _unknown(entry: Entry, path: Path) -> Refused:
    return Refused(
        f"the budget book {path} does not know the run in {entry.folder}: this looks like a copy from another machine",
        "if it was moved and no copy continues elsewhere, add {moved}; else resume the original",
        moved=True,
    )


def _refuse_other_records(entry: Entry, before: str, records: Records | None) -> None:
    """Refuse to continue a run with other records: a table of gradients knows records by their places."""
    if before != ("" if records is None else records.digest):
        raise Refused(
            f"{entry.folder} continues with other records of node {entry.node} than it began with, or in another order",
            "put the records back as they were, at the same node, or begin a new run",
        )


def _refuse_copy(entry: Entry, before: sqlite3.Row, *, resumed: bool, moved: bool) -> None:
    """Refuse a second folder of a run: each would count only what it spends itself."""
    old = Path(before["folder"])
    same = before["folder"] == entry.folder or before["inode"] == _inode(entry.folder)  # renamed, it is the same one
    if not resumed or (old.exists() and not same):
        raise Refused(
            f"the run began in {old} and has spent {before['charged']} releases; {entry.folder} is another folder or a "
            "copy",
            "restore the folder in which it began, and name that one: a second one would spend the same budget again",
        )
    if not same and not moved:
        raise Refused(
            f"the run in {entry.folder} began in {old}, which is gone: this looks like a copy",
            "if it was moved and no copy continues elsewhere, add {moved}; else resume the original",
            moved=True,
        )


def _make_tables(path: Path, db: sqlite3.Connection) -> None:
    """Make the tables of a new book; refuse a book of another version."""
    if (version := db.execute("PRAGMA user_version").fetchone()[0]) == 0:
        db.execute("BEGIN IMMEDIATE")
        if (version := db.execute("PRAGMA user_version").fetchone()[0]) == 0:
            if path.stat().st_size:
                raise sqlite3.DatabaseError("it is damaged")
            for statement in (*_TABLES, f"PRAGMA user_version = {_VERSION}"):
                db.execute(statement)
            version = _VERSION
        db.execute("COMMIT")
    if version != _VERSION:
        raise Refused(
            f"the budget book {path} is of version {version}, and this release reads version {_VERSION}",
            "install the release that wrote it, or a newer one",
        )


def _entry(row: sqlite3.Row) -> Entry:
    values = {field.name: row[field.name] for field in dataclasses.fields(Entry)}
    return Entry(**values | {"simulation": bool(row["simulation"]), "sites": tuple(json.loads(row["sites"]))})


def _inode(folder: str) -> str:
    with contextlib.suppress(OSError):
        status = Path(folder).stat()
        return f"{status.st_dev}/{status.st_ino}"
    return ""


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
