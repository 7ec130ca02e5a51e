"""What a table of gradients was at each commit, on the disk: all of it once, then the rows that each step changed.

One file for a while, `private/table-<n>.journal`, of records: how many rows, which, and their numbers. The commit holds
the file's number, its length and the SHA-256 of so many bytes; what a crash left after them was not committed, and is
cut off. When it has grown to a few times the table, the next file begins, with all rows, and the commit moves to it.
"""

from __future__ import annotations

import hashlib
import os
import struct
from typing import TYPE_CHECKING

import torch

from privsgp.errors import Refused
from privsgp.files import opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from hashlib import _Hash as Hash
    from pathlib import Path
    from typing import IO

    from torch import Tensor

_ROWS = struct.Struct("<q")
_CHUNK = 1 << 26  # bytes of a record of all rows
_GROWTH = 3  # times the table that a file may be long
_READ = 1 << 20


class Journal:
    """The rows of some arrays, [1, rows, …] each; a row that is changed is changed in all of them."""

    def __init__(self, folder: Path, arrays: dict[str, Tensor]) -> None:
        self.folder = folder
        self.arrays = [arrays[name][0] for name in sorted(arrays)]
        self.rows = len(self.arrays[0])
        self.row_bytes = sum(a[0].nbytes for a in self.arrays)
        self.at = torch.zeros(2, dtype=torch.int64)  # number of the file, bytes of it that count
        self.digest = torch.zeros(32, dtype=torch.uint8)
        self._hash = hashlib.sha256()

    def place(self) -> dict[str, Tensor]:
        """Return what a commit must hold."""
        return {"at": self.at, "digest": self.digest}

    def write(self, changed: Tensor) -> None:
        """Make changed rows durable; all of them where a new file begins.

        Guarantee: nothing that the last commit needs is touched.
        """
        number, length = self.at.tolist()
        if number == 0 or length > _GROWTH * self.rows * self.row_bytes:
            number, length, self._hash = number + 1, 0, hashlib.sha256()
            records = torch.split(torch.arange(self.rows), max(1, _CHUNK // self.row_bytes))
        else:
            records = (changed,) if len(changed) else ()
        if records:
            length += self._append(number, length, records)
        self.at.copy_(torch.tensor([number, length]))
        self.digest.copy_(torch.frombuffer(bytearray(self._hash.digest()), dtype=torch.uint8))

    def committed(self) -> None:
        """Remove files that no commit needs any more."""
        for path in self.folder.glob("table-*.journal"):
            if path != self._path(int(self.at[0])):
                path.unlink()

    def replay(self) -> None:
        """Make the rows what they were at the commit whose place was read; cut off what was written after it."""
        number, length = self.at.tolist()
        path = self._path(number)
        self._hash = _hashed(path, length)
        if self._hash.digest() != bytes(self.digest.tolist()):
            raise Refused(
                f"{path} is missing or not what its commit says",
                "restore the run folder as it was when the run stopped; nothing was sent",
            )
        os.truncate(path, length)
        with opened(path) as file:
            while file.tell() < length:
                self._take_up(file)

    def _path(self, number: int) -> Path:
        return self.folder / f"table-{number}.journal"

    def _append(self, number: int, length: int, records: tuple[Tensor, ...]) -> int:
        """Write records after so many bytes of a file, durably; return how long they are."""
        start = length
        descriptor = os.open(self._path(number), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, length)
            os.lseek(descriptor, length, os.SEEK_SET)
            for rows in records:
                for text in self._record(rows):
                    _write_all(descriptor, text)
                    self._hash.update(text)
                    length += len(text)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return length - start

    def _record(self, rows: Tensor) -> Iterator[memoryview]:
        yield memoryview(_ROWS.pack(len(rows)) + rows.to(torch.int64).cpu().numpy().tobytes())
        for a in self.arrays:
            values = a.index_select(0, rows.to(a.device)).cpu().contiguous()
            yield values.view(-1).view(torch.uint8).numpy().data

    def _take_up(self, file: IO[bytes]) -> None:
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


def _write_all(descriptor: int, text: memoryview) -> None:
    while text:
        text = text[os.write(descriptor, text) :]
