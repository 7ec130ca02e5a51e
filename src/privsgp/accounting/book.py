"""The budget book: what the records of this user have spent in all, over every run and command.

It is one SQLite file in the state folder ($PRIVSGP_STATE, else $XDG_STATE_HOME/privsgp, else ~/.local/state/privsgp),
readable by its owner alone. A command that spends budget on private records enters every node there before the first
release: which records, under which relation and trust, the most it may spend, where its ledger is, and the ledger's
head. So a changed file is no new file: each record keeps its spending.

Records are kept as keyed 64-bit hashes: of the sample, and of a table's row as it is in the file, of all columns and of
the inputs alone. Two records are the same if any of these is. So another schema makes no new records.

The book refuses and warns; it never grants. Anyone who changes it can stop a run, but never extend one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import re
import secrets
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from privsgp.accounting.chain import Mark
from privsgp.errors import Refused
from privsgp.files import read_bytes, user_folder, write_private

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]

_BY = "the budget book"
_VERSION = 2
_KINDS = 3  # hashes of a record; a sample that is no row of a table has one, three times
_NAMES_NODE = re.compile(r"/\d+$")
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
    ledger: str  # the number of the run, or NUMBER/NODE of the first run that it continues: see `budget`
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

    @property
    def budget(self) -> str:
        """The number that runs with one common budget share: a run that continues another one counts both."""
        return self.ledger if _NAMES_NODE.search(self.ledger) else f"{self.ledger}/{self.node}"


class Records(NamedTuple):
    """A node's records: a digest of all of them in order, targets included, and hashes of each: [N, 1 or 3]."""

    digest: str
    hashes: Hashes
    keyed: bool = False  # whether the hashes are those that the book keeps


class Total(NamedTuple):
    """The sums of ε and δ for the record that has spent most."""

    epsilon: float
    delta: float


class DataSet(NamedTuple):
    """Entries that share records, how many distinct records they hold, and what was spent under one relation."""

    entries: tuple[Entry, ...]
    records: int
    relation: str
    spent: Total


class Book:
    """The budget book of this user.

    Guarantee: what `enter` and `remember` wrote is on the disk when they return, or they raise.
    """

    def __init__(self, folder: Path | None = None) -> None:
        try:
            self.folder = folder or user_folder("PRIVSGP_STATE", "XDG_STATE_HOME", ".local/state", "privsgp")
        except RuntimeError as error:
            raise Refused("there is no home folder for the budget book", "name a folder in PRIVSGP_STATE") from error
        self.path = self.folder / "budget.sqlite"

    def enter(
        self, entries: Sequence[Entry], records: Sequence[Records | None], *, resumed: bool = False,
        moved: bool = False, check: Callable[[], None] = lambda: None, counted: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """Enter the nodes of a run before their first release.

        `resumed`: the run folder holds this run already. `moved` accepts that the folder comes from another place.
        `check` may refuse: no other process can enter anything between it and this entry. `counted` has the runs that
        this run continues, and how many releases of each its ε counts.

        Guarantee: a resumed run has the records that it began with, in the same order, and is no copy that this book
        knows of. A simulation that was entered before with the same records is not entered again.
        Of a run with `counted`, the budget holds no release that its ε does not count.
        """
        with self._open(write=True, create=True) as db:
            check()
            for entry, own in zip(entries, records, strict=True):
                if counted:
                    _refuse_uncounted(db, entry, counted)
                self._enter(db, entry, own, resumed=resumed, moved=moved)

    def _enter(
        self, db: sqlite3.Connection, entry: Entry, records: Records | None, *, resumed: bool, moved: bool
    ) -> None:
        key = entry.run, entry.node
        before = db.execute("SELECT * FROM entries WHERE run = ? AND node = ?", key).fetchone()
        if before is not None and not entry.simulation and (resumed or before["head"]):
            _refuse_other(entry, before, records, resumed=resumed, moved=moved)
            where = entry.folder, _inode(entry.folder), *key
            db.execute("UPDATE entries SET folder = ?, inode = ? WHERE run = ? AND node = ?", where)
        elif before is None or not entry.simulation:
            if before is None and resumed and not moved and not entry.simulation:
                raise _looks_copied(f"the budget book {self.path} does not know the run in {entry.folder}")
            db.execute("DELETE FROM entries WHERE run = ? AND node = ?", key)  # nothing was sent: it may begin again
            self._insert(db, entry, records)

    def _insert(self, db: sqlite3.Connection, entry: Entry, records: Records | None) -> None:
        kept = None
        if records is not None:  # a set of records is kept once, however often it is used
            content = self.known(records).tobytes()
            digest = hashlib.sha256(content).hexdigest()
            db.execute("INSERT OR IGNORE INTO sets (digest, hashes) VALUES (?, ?)", (digest, content))
            kept = db.execute("SELECT id FROM sets WHERE digest = ?", (digest,)).fetchone()["id"]
        same = "SELECT 1 FROM entries WHERE simulation AND set_id = ? AND name = ?"
        if entry.simulation and db.execute(same, (kept, entry.name)).fetchone() is not None:
            return
        values = dataclasses.asdict(entry) | {
            "sites": json.dumps(entry.sites), "set_id": kept, "records": "" if records is None else records.digest,
            "started": entry.started or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "inode": _inode(entry.folder),
        }  # fmt: skip
        names = ", ".join(values)
        db.execute(f"INSERT INTO entries ({names}) VALUES (:{', :'.join(values)})", values)  # noqa: S608 - field names

    def keyed(self, hashes: Hashes) -> Hashes:
        """Return keyed hashes of records [N, 3], sorted; without the key nobody can look for a record in the book."""
        key = secrets.token_bytes(32)  # of no book: nothing is there that they could match
        if self.path.exists():
            with self._open():
                key = read_bytes(self._key, 64)
        found = [hashlib.blake2b(one.tobytes(), digest_size=8, key=key).digest() for one in hashes.ravel()]
        made = np.frombuffer(b"".join(found), np.uint64).reshape(len(hashes), *hashes.shape[1:] or (1,))
        made = made.repeat(_KINDS // made.shape[1], axis=1)
        return made[np.lexsort(made.T[::-1])]

    def known(self, records: Records) -> Hashes:
        """Return keyed hashes of a node's records."""
        return records.hashes if records.keyed else self.keyed(records.hashes)

    def remember(self, run: str, heads: dict[int, tuple[int, str]]) -> None:
        """Keep how far the ledgers of a run are: by node, what is charged and the head.

        Guarantee: the note is on the disk when this returns; a book that cannot be written raises.
        """
        with self._open(write=True) as db:
            update = "UPDATE entries SET charged = ?, head = ? WHERE run = ? AND node = ?"
            for node, (charged, head) in heads.items():
                if db.execute(update, (charged, head, run, node)).rowcount != 1:
                    what = f"the budget book {self.path} does not know node {node} of this run"
                    raise Refused(what, "restore the book that was there when the run began")

    def marks(self, run: str) -> dict[int, list[Mark]]:
        """Return what the book knows of each node's ledger of this run."""
        known: dict[int, list[Mark]] = {}
        for one in self.entries():
            if one.run == run and one.head and not one.simulation:
                known.setdefault(one.node, []).append(Mark(one.charged, one.head, _BY))
        return known

    def missing(self, run: str, folder: Path, there: Collection[int]) -> tuple[int, Mark] | None:
        """Return a node that has spent from a ledger in this run folder, where the ledger is gone; None: none has."""
        for one in self.entries():
            if one.run == run and one.folder == str(folder.resolve()) and one.head and one.node not in there:
                return one.node, Mark(one.charged, one.head, _BY)
        return None

    def entries(self) -> list[Entry]:
        """Return all entries, the oldest first."""
        return [entry for entry, _ in self._all()]

    def overlapping(self, hashes: Hashes) -> list[tuple[Entry, int]]:
        """Return the entries that hold some of these records, and how many of them."""
        mine = self.keyed(hashes)
        return [(one, shared) for one, own in self._all() if (shared := int(np.isin(mine, own).any(1).sum()))]

    def spent_on(self, hashes: Hashes, relation: str) -> Total:
        """Return what the record that has spent most of these has spent, as `spent_by` counts it."""
        return self.spent_by(self.keyed(hashes), relation)

    def spent_by(self, mine: Hashes, relation: str, but: str = "") -> Total:
        """Return what the record that has spent most of these has spent, without the `Entry.budget` named in `but`.

        Of runs that share a budget the largest ε counts; several budgets add up. An ε under another relation, or no
        finite ε, makes the sum infinite. Simulations do not count.
        """
        counted = [(one, own) for one, own in self._all() if one.budget != but]
        return _worst(mine, counted, relation)

    def data_sets(self) -> list[DataSet]:
        """Return the data sets: entries that share records, how many records they hold, and what is spent in all."""
        groups: list[list[tuple[Entry, Hashes]]] = []
        for one in self._all():
            shares = [any(np.isin(one[1], own).any() for _, own in group) for group in groups]
            apart = [group for group, joined in zip(groups, shares, strict=True) if not joined]
            groups = [
                *apart,
                [*(pair for group, joined in zip(groups, shares, strict=True) if joined for pair in group), one],
            ]
        return [
            DataSet(tuple(entry for entry, _ in group), records, relation, _worst(hashes, group, relation))
            for group in groups
            for hashes in [np.unique(np.concatenate([own for _, own in group]), axis=0)]
            for records in [min(len(np.unique(kind)) for kind in hashes.T)]
            for relation in sorted({one.relation for one, _ in group})
        ]

    def sets_of(self, runs: Collection[str] | None) -> dict[int, list[Hashes]]:
        """Return by node the keyed hashes of the records of some private runs; None: of all of them.

        With a run come the records of the runs that share its budget: those that it continues.
        """
        every = self._all()
        nodes = {one.budget: one.node for one, _ in every if runs is None or one.run in runs}
        found: dict[int, list[Hashes]] = {}
        for one, own in every:
            if one.budget in nodes and not one.simulation and own.size:
                found.setdefault(nodes[one.budget], []).append(own)
        return found

    def _all(self) -> list[tuple[Entry, Hashes]]:
        """Return all entries, the oldest first, each with the keyed hashes of its records."""
        if not self.path.exists():
            return []
        with self._open() as db:
            rows = db.execute("SELECT * FROM entries LEFT JOIN sets ON set_id = id ORDER BY started, run, node")
            return [(_entry(row), np.frombuffer(row["hashes"] or b"", np.uint64).reshape(-1, _KINDS)) for row in rows]

    @property
    def _key(self) -> Path:
        return self.folder / "budget.key"

    @contextlib.contextmanager
    def _open(self, *, write: bool = False, create: bool = False) -> Iterator[sqlite3.Connection]:
        """Open the book for one transaction; what it writes is on the disk at the end.

        Only entering a run may `create` a book: one that vanished would be replaced by one that knows nothing.

        While one process writes, others can read what was there before, and cannot write.
        """
        there = self.path.exists()
        try:
            if create and not there:  # never open an existing book: closing it would drop the locks that SQLite holds
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.path.touch(mode=0o600)
            if not self.path.is_file():
                raise OSError("it is gone, or no regular file")  # noqa: TRY301 - refused below
            with contextlib.closing(sqlite3.connect(self.path, timeout=_PATIENCE, isolation_level=None)) as db:
                db.row_factory = sqlite3.Row
                db.execute("PRAGMA synchronous = EXTRA")
                self._prepare(db)
                db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                yield db
                db.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:
            remedy = "make its folder writable, or restore it from a copy: it knows what these records have spent"
            if create and not there:
                remedy = "make its folder writable, or name another folder in PRIVSGP_STATE"
            remedy = "the disk is full: free some space" if "full" in str(error) else remedy
            raise Refused(f"the budget book {self.path} cannot be used: {error}", remedy) from error

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Make the tables and the key of a new book; refuse a book of another version."""
        if (version := db.execute("PRAGMA user_version").fetchone()[0]) == 0:
            db.execute("BEGIN IMMEDIATE")
            if (version := db.execute("PRAGMA user_version").fetchone()[0]) == 0:
                if self.path.stat().st_size:
                    raise sqlite3.DatabaseError("it is damaged")
                for statement in (*_TABLES, f"PRAGMA user_version = {_VERSION}"):
                    db.execute(statement)
                if not self._key.exists():
                    write_private(self._key, secrets.token_bytes(32))
                version = _VERSION
            db.execute("COMMIT")
        if version != _VERSION:
            what = f"the budget book {self.path} is of version {version}, and this release reads version {_VERSION}"
            raise Refused(what, "install the release that wrote it, or a newer one")
        if not self._key.exists():
            raise OSError("its key, budget.key, is gone")


def _worst(mine: Hashes, entries: Sequence[tuple[Entry, Hashes]], relation: str) -> Total:
    """Return the largest sums over these records."""
    budgets: dict[str, list[tuple[Entry, Hashes]]] = {}
    for one, own in entries:
        if not one.simulation:
            budgets.setdefault(one.budget, []).append((one, own))
    epsilon, delta = np.zeros(len(mine)), np.zeros(len(mine))
    for runs in budgets.values():
        held = np.isin(mine, np.concatenate([own for _, own in runs])).any(1)
        bounds = [math.inf if e.epsilon is None or e.relation != relation else e.epsilon for e, _ in runs]
        epsilon[held] += max(bounds)
        delta[held] += max(one.delta for one, _ in runs)
    return Total(float(epsilon.max(initial=0.0)), float(delta.max(initial=0.0)))


def _refuse_other(entry: Entry, before: sqlite3.Row, records: Records | None, *, resumed: bool, moved: bool) -> None:
    """Refuse to continue a run with other records, or from a second folder, which would spend the budget again."""
    if before["records"] != ("" if records is None else records.digest):  # a table knows records by their places
        what = f"{entry.folder} continues with other records of node {entry.node} than it began with"
        raise Refused(what, "put the records back as they were, at the same node, or begin a new run")
    old = Path(before["folder"])
    same = before["folder"] == entry.folder or before["inode"] == _inode(entry.folder)  # renamed, it is the same one
    if not resumed or (old.exists() and not same):
        what = f"the run began in {old} with {before['charged']} releases; {entry.folder} is another folder or a copy"
        raise Refused(what, "restore the folder in which it began: a second one would spend the same budget again")
    if not same and not moved:
        raise _looks_copied(f"the run in {entry.folder} began in {old}, which is gone")


def _refuse_uncounted(db: sqlite3.Connection, entry: Entry, counted: Mapping[str, int]) -> None:
    """Refuse a run if another one has spent more of its budget than it counts; strike out one that has spent nothing.

    A process of a run that was struck out ends before its first release: `remember` does not find its entry.
    """
    for row in db.execute("SELECT * FROM entries WHERE NOT simulation").fetchall():
        one, agreed = _entry(row), counted.get(run := row["run"].partition("/")[0])
        if one.budget != entry.budget or run == entry.run.partition("/")[0]:
            continue
        if one.charged > (agreed or 0):
            what = f"{one.name} ({run[:8]}) has spent {one.charged} releases, and {entry.name} counts {agreed or 0}"
            raise Refused(what, f"ask for a study that continues {one.name}, or a new study: its ε adds up")
        if agreed is None:
            db.execute("DELETE FROM entries WHERE run = ? AND node = ?", (one.run, one.node))


def _looks_copied(what: str) -> Refused:
    remedy = "if it was moved and no copy continues elsewhere, add {moved}; else resume the original"
    return Refused(f"{what}: this looks like a copy", remedy, moved=True)


def _entry(row: sqlite3.Row) -> Entry:
    values = {field.name: row[field.name] for field in dataclasses.fields(Entry)}
    return Entry(**values | {"simulation": bool(row["simulation"]), "sites": tuple(json.loads(row["sites"]))})


def _inode(folder: str) -> str:
    with contextlib.suppress(OSError):
        status = Path(folder).stat()
        return f"{status.st_dev}/{status.st_ino}"
    return ""
