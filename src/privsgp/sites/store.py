"""A site's small state of one run, in one SQLite file: messages it has signed, and headers that others have signed.

*Own messages.* A message is listed, on the disk, before it leaves. Peers show a site the messages that they have from
it. A message that is not listed was signed by another copy of the site: a copied virtual machine, the second half of a
high-availability pair, or the folder that an older backup has replaced. Two copies would send the same steps with
different noise and spend one budget twice, so the site stops. Listed is the SHA-256 of each header: Ed25519 gives one
signature per header.

*Seen and heard.* Of every source, the newest header for this site, and the newest for anybody that others passed on. A
site that an old backup has replaced learns from them that it had sent later steps. A header for this site is on the
disk before its message is let in. A header that others passed on is written with the next one: it comes with every
hello.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from privsgp.errors import Refused
from privsgp.files import sync_names
from privsgp.sites.protocol.frames import Frame, Header, Rejected, refuse_head

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from privsgp.sites.agreement import Agreement

SYNC = "FULL"
_TABLES = """
CREATE TABLE IF NOT EXISTS own (header BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS newest (kind TEXT, source INT, header BLOB, signature BLOB, PRIMARY KEY (kind, source));
CREATE TABLE IF NOT EXISTS processes (number INTEGER PRIMARY KEY);
"""


class Store:
    """The file, which is for its owner alone; without a path everything is in memory. Several threads use it."""

    def __init__(self, agreement: Agreement, node: int, path: Path | None = None) -> None:
        self.node, self.path = node, path
        self.seen: dict[int, Frame] = {}  # by source: its newest header for this site, as a message without its body
        self.heard: dict[int, Frame] = {}  # by source: its newest header, whomever it was for
        self._lock = threading.RLock()
        if path is not None and not path.exists():
            path.touch(0o600)
            sync_names(path.parent)
        with _in_words(path):
            self._db = sqlite3.connect(path or ":memory:", check_same_thread=False)
            self._db.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = {SYNC}; {_TABLES}")
            newest = self._db.execute("SELECT * FROM newest").fetchall()
        for kind, source, text, signature in newest:
            with suppress(Rejected):  # what its source did not sign is no header
                header = Header.read(text)
                refuse_head(agreement, source, header.target if kind == "heard" else node, header, signature)
                getattr(self, kind)[source] = Frame(header, signature, b"")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def begin(self) -> int:
        """Count the processes of this site in this run, durably."""
        with self._writing() as db:
            return int(db.execute("INSERT INTO processes DEFAULT VALUES").lastrowid or 0)

    def skip(self, number: int) -> None:
        """Leave out the numbers up to that of a process that another copy of this site has started."""
        with self._writing() as db:
            db.execute("INSERT OR IGNORE INTO processes VALUES (?)", (number,))

    def sign(self, headers: Iterable[Header]) -> None:
        """List messages that are about to leave.

        Guarantee: when this returns, a restarted process knows all of them.
        """
        with self._writing() as db:
            db.executemany("INSERT OR IGNORE INTO own VALUES (?)", [(_digest(header),) for header in headers])

    def signed(self, header: Header) -> bool:
        """Tell whether this site has signed a header."""
        with self._lock, _in_words(self.path):
            return self._db.execute("SELECT 1 FROM own WHERE header = ?", (_digest(header),)).fetchone() is not None

    def count(self) -> int:
        """Return how many messages this site has signed."""
        with self._lock, _in_words(self.path):
            return int(self._db.execute("SELECT COUNT(*) FROM own").fetchone()[0])

    def see(self, frame: Frame) -> None:
        """Keep the header of a message for this site, if it is newer than all before it.

        Guarantee: when this returns, a restarted process knows it.
        """
        if _is_newer(frame, self.seen):
            with self._writing():
                self._put("seen", frame)
            self.seen[frame.header.source] = Frame(frame.header, frame.signature, b"")

    def hear(self, frame: Frame) -> None:
        """Keep a header that others passed on, at least in memory."""
        if _is_newer(frame, self.heard):
            self.heard[frame.header.source] = frame
            with suppress(OSError), self._writing(durable=False):
                self._put("heard", frame)

    def _put(self, kind: str, frame: Frame) -> None:
        row = (kind, frame.header.source, frame.header.text(), frame.signature)
        self._db.execute("INSERT OR REPLACE INTO newest VALUES (?, ?, ?, ?)", row)

    @contextmanager
    def _writing(self, *, durable: bool = True) -> Iterator[sqlite3.Connection]:
        """Write all of the block or nothing of it."""
        with self._lock, _in_words(self.path):
            try:
                yield self._db
                if durable:
                    self._db.commit()
            except sqlite3.Error:
                self._db.rollback()
                raise


@contextmanager
def _in_words(path: Path | None) -> Iterator[None]:
    """Make an OSError of a full disk, as for any other file, and refuse a damaged file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        number = errno.ENOSPC if "full" in str(error) else errno.EIO
        raise OSError(number, f"{os.strerror(number)} ({error})", str(path)) from error
    except sqlite3.DatabaseError as error:
        raise Refused(f"{path} is damaged: {error}", "restore the run folder as it was when the run stopped") from error


def _is_newer(frame: Frame, known: dict[int, Frame]) -> bool:
    before = known.get(frame.header.source)
    return before is None or before.header.step < frame.header.step


def _digest(header: Header) -> bytes:
    return hashlib.sha256(header.text()).digest()
