"""A table of gradients on the disk: all of it once, then the rows that each step changed.

It is too large to be written at each commit. One file for a while, `private/table-<n>.journal`. The commit holds the
file's number, its length and the SHA-256 of this length. Bytes after it were not committed, and are removed. When the
file has grown to a few times the table, the next one begins, with all of it, and the commit moves to it.

A record is: how many rows, which, and their numbers.
"""

from __future__ import annotations

import hashlib
import os
import struct
from typing import TYPE_CHECKING

import torch

from privsgp.accounting.chain import write_all
from privsgp.errors import Refused
from privsgp.files import opened, sync_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import BinaryIO

    from torch import Tensor

_ROWS = struct.Struct("<q")
_CHUNK = 1 << 26  # bytes of a record of all rows
GROWTH = 3  # times the table that a file may be long
_READ = 1 << 20


class Journal:
    """The rows of some arrays, [1, rows, …] each; a row that is changed is changed in all of them."""

    def __init__(self, folder: Path, arrays: dict[str, Tensor]) -> None:
        self.folder, self.arrays = folder, [arrays[name][0] for name in sorted(arrays)]
        self.rows = len(self.arrays[0])
        self.row_bytes = sum(a[0].nbytes for a in self.arrays)
        self.number, self.length, self._hash = 0, 0, hashlib.sha256()
        self._at = torch.zeros(2, dtype=torch.int64)  # number of the file, bytes of it that count
        self._digest = torch.zeros(32, dtype=torch.uint8)

    def place(self) -> dict[str, Tensor]:
        """Return what a commit must hold."""
        self._at.copy_(torch.tensor([self.number, self.length]))
        self._digest.copy_(torch.frombuffer(bytearray(self._hash.digest()), dtype=torch.uint8))
        return {"at": self._at, "digest": self._digest}

    def write(self, changed: Tensor) -> None:
        """Make changed rows durable; all of them where a new file begins.

        Guarantee: nothing that the last commit needs is touched.
        """
        if self.number == 0 or self.length > GROWTH * self.rows * self.row_bytes:
            self.number, self.length, self._hash = self.number + 1, 0, hashlib.sha256()
            self._append(torch.split(torch.arange(self.rows), max(1, _CHUNK // self.row_bytes)))
            sync_names(self.folder)
        elif len(changed):
            self._append([changed])

    def committed(self) -> None:
        """Remove files that no commit needs any more."""
        for path in self.folder.glob("table-*.journal"):
            if path != self._path:
                path.unlink()

    def replay(self) -> None:
        """Make the rows what they were at the commit whose place was read.

        Bytes after the commit are not read, and the next write removes them. If this commit was restored from an older
        copy, the right one still finds its own bytes.
        """
        self.number, self.length = self._at.tolist()
        self._hash = hashlib.sha256()
        if self._path.exists():
            with opened(self._path) as file:
                while piece := file.read(min(_READ, self.length - file.tell())):
                    self._hash.update(piece)
        if self._hash.digest() != bytes(self._digest.tolist()):
            raise Refused(
                f"{self._path} is missing or not what its commit says",
                "restore the run folder as it was when the run stopped; nothing was sent",
            )
        if self.length:
            with opened(self._path) as file:
                while file.tell() < self.length:
                    self._take_up(file)

    def _append(self, records: Iterable[Tensor]) -> None:
        """Write after what counts so far, durably."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, self.length)
            os.lseek(descriptor, self.length, os.SEEK_SET)
            for text in (text for rows in records for text in self._record(rows)):
                write_all(descriptor, text)
                self._hash.update(text)
                self.length += len(text)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _record(self, rows: Tensor) -> Iterator[memoryview]:
        yield memoryview(_ROWS.pack(len(rows)) + rows.to(torch.int64).cpu().numpy().tobytes())
        for a in self.arrays:
            values = a.index_select(0, rows.to(a.device)).cpu().contiguous()
            yield values.view(-1).view(torch.uint8).numpy().data

    def _take_up(self, file: BinaryIO) -> None:
        """Read a record; its length is right, since the digest of the whole is."""
        (count,) = _ROWS.unpack(file.read(_ROWS.size))
        rows = torch.frombuffer(bytearray(file.read(8 * count)), dtype=torch.int64)
        for a in self.arrays:
            values = torch.frombuffer(bytearray(file.read(count * a[0].nbytes)), dtype=a.dtype)
            a.index_copy_(0, rows.to(a.device), values.view(count, *a.shape[1:]).to(a.device))

    @property
    def _path(self) -> Path:
        return self.folder / f"table-{self.number}.journal"
