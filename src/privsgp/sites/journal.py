"""What is too large to be written at each commit, on the disk: all of it once, then what each step changed.

One file for a while, `private/<name>-<n>.journal`. The commit holds the file's number, its length and the SHA-256 of so
many bytes; what a crash left after them was not committed, and is cut off. When it has grown to a few times of what it
is of, the next file begins, with all of it, and the commit moves to it.

Of a table of gradients a record is: how many rows, which, and their numbers. Of links see link_journal.py.
"""

from __future__ import annotations

import hashlib
import os
import struct
from typing import TYPE_CHECKING

import torch

from privsgp.errors import Refused
from privsgp.files import opened, sync_names, write_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from hashlib import _Hash as Hash
    from io import BufferedReader
    from pathlib import Path

    from torch import Tensor

_ROWS = struct.Struct("<q")
_CHUNK = 1 << 26  # bytes of a record of all rows
GROWTH = 3  # times what it is of that a file may be long
_READ = 1 << 20


class Log:
    """A file that grows, of which a commit says how much counts."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.number, self.length = 0, 0
        self._hash = hashlib.sha256()
        self._is_new, self._is_durable = True, True
        self._at = torch.zeros(2, dtype=torch.int64)  # number of the file, bytes of it that count
        self._digest = torch.zeros(32, dtype=torch.uint8)

    def place(self) -> dict[str, Tensor]:
        """Return what a commit must hold."""
        self._at.copy_(torch.tensor([self.number, self.length]))
        self._digest.copy_(torch.frombuffer(bytearray(self._hash.digest()), dtype=torch.uint8))
        return {"at": self._at, "digest": self._digest}

    def begin(self) -> None:
        """Begin the next file.

        Guarantee: nothing that the last commit needs is touched.
        """
        self.number, self.length, self._hash = self.number + 1, 0, hashlib.sha256()
        self._is_new = True

    def append(self, texts: Iterable[memoryview]) -> None:
        """Write after what counts so far; it is durable after `sync`."""
        self._is_durable = False
        descriptor = os.open(self._path(self.number), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, self.length)
            os.lseek(descriptor, self.length, os.SEEK_SET)
            for text in texts:
                write_all(descriptor, text)
                self._hash.update(text)
                self.length += len(text)
        finally:
            os.close(descriptor)

    def sync(self) -> None:
        """Make all that was written durable, and the file's name with it."""
        if self._is_durable:
            return
        descriptor = os.open(self._path(self.number), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if self._is_new:
            sync_names(self.folder)
        self._is_new, self._is_durable = False, True

    def committed(self) -> None:
        """Remove files that no commit needs any more."""
        for path in self.folder.glob(f"{self.name}-*.journal"):
            if path != self._path(self.number):
                path.unlink()

    def read(self) -> Iterator[BufferedReader]:
        """Take up the place that a commit holds; yield the file while there is more to read in it.

        What was written after the commit is not read, and is cut off by who appends: where this commit turns out to be
        an older one that was put back, the right one still finds all of its own.
        """
        self.number, self.length = self._at.tolist()
        path = self._path(self.number)
        self._hash = _hashed(path, self.length)
        if self._hash.digest() != bytes(self._digest.tolist()):
            raise Refused(
                f"{path} is missing or not what its commit says",
                "restore the run folder as it was when the run stopped; nothing was sent",
            )
        if not path.exists():
            return
        with opened(path) as file:
            while file.tell() < self.length:
                yield file

    def _path(self, number: int) -> Path:
        return self.folder / f"{self.name}-{number}.journal"


class Journal(Log):
    """The rows of some arrays, [1, rows, …] each; a row that is changed is changed in all of them."""

    def __init__(self, folder: Path, arrays: dict[str, Tensor]) -> None:
        super().__init__(folder, "table")
        self.arrays = [arrays[name][0] for name in sorted(arrays)]
        self.rows = len(self.arrays[0])
        self.row_bytes = sum(a[0].nbytes for a in self.arrays)

    def write(self, changed: Tensor) -> None:
        """Make changed rows durable; all of them where a new file begins."""
        if self.number == 0 or self.length > GROWTH * self.rows * self.row_bytes:
            self.begin()
            records = torch.split(torch.arange(self.rows), max(1, _CHUNK // self.row_bytes))
        else:
            records = (changed,) if len(changed) else ()
        if records:
            self.append(text for rows in records for text in self._record(rows))
            self.sync()

    def replay(self) -> None:
        """Make the rows what they were at the commit whose place was read."""
        for file in self.read():
            self._take_up(file)

    def _record(self, rows: Tensor) -> Iterator[memoryview]:
        yield memoryview(_ROWS.pack(len(rows)) + rows.to(torch.int64).cpu().numpy().tobytes())
        for a in self.arrays:
            values = a.index_select(0, rows.to(a.device)).cpu().contiguous()
            yield values.view(-1).view(torch.uint8).numpy().data

    def _take_up(self, file: BufferedReader) -> None:
        """Read a record; its length is right, since the digest of the whole is."""
        (count,) = _ROWS.unpack(file.read(_ROWS.size))
        rows = torch.frombuffer(bytearray(file.read(8 * count)), dtype=torch.int64)
        for a in self.arrays:
            values = torch.frombuffer(bytearray(file.read(count * a[0].nbytes)), dtype=a.dtype)
            a.index_copy_(0, rows.to(a.device), values.view(count, *a.shape[1:]).to(a.device))


def _hashed(path: Path, length: int) -> Hash:
    """Return the SHA-256 of the first bytes of a file, to go on with; of what is there, where it is shorter."""
    found = hashlib.sha256()
    if path.exists():
        with opened(path) as file:
            while length > 0 and (piece := file.read(min(_READ, length))):
                length -= len(piece)
                found.update(piece)
    return found
