"""An append-only file of lines that are chained by hashes: a line that was changed, removed or moved is found.

One JSON value a line, of two kinds. An object holds `prev`, the head before it (64 zeros at the start). Its `check` is
the first 16 digits of the SHA-256 of its text without `check`. The head after it is the SHA-256 of its text. A string
is 22 letters (128 bits in base64) or none, then 6 letters of the SHA-256 of the head before it and these. That SHA-256
is the head after it. So a head stands for every letter before it. Lines cut from the end do not show: somebody who
knows an older head (`Mark`) asks for it. No line is longer than 64 KiB.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
from binascii import b2a_base64
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, NoReturn, Self

from privsgp.errors import Refused, mending
from privsgp.files import sync_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    Line = dict[str, Any] | str

_START = "0" * 64
_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_CHECK = ',"check":"{}"}}'
_CHECK_LENGTH = len(_CHECK.format("0" * 16))
_SHORT = re.compile(rb'"((?:[A-Za-z0-9+/]{22})?)([A-Za-z0-9+/]{6})"')
LONGEST = 2**16


class Mark(NamedTuple):
    """A known state of a file: its number of releases, and its head at that time."""

    charged: int
    head: str
    by: str


class Chain:
    """A chained file, open for appending and locked against every other process.

    Guarantee: what was written before `sync` returned outlives a power cut. After a failed write nothing more is
    written: what reached the disk is known only by reading the file again.
    """

    def __init__(self, path: Path, descriptor: int, head: str) -> None:
        self.path, self.head = path, head
        self.durable = head  # the head of the last line that outlives a power cut
        self._descriptor = descriptor
        self._broken = False

    @classmethod
    def open(cls, path: Path, follow: Callable[[Line], None], marks: Sequence[Mark] = ()) -> Self:
        """Lock the file, hand each line to `follow`, and cut off a last line that a crash left without its newline.

        The file is made where nobody has `marks` it before. All that `marks` knows must be in it.
        """
        descriptor = _lock(path, marks)
        try:
            with open(descriptor, "rb", closefd=False) as file:
                head, end = replay(path, file, follow, marks)
            os.ftruncate(descriptor, end)
            if end:  # what was read here may not have been on the disk: from now on others may know it
                os.fsync(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, head)

    def write(self, line: Line) -> None:
        """Add a line."""
        if isinstance(line, str):
            mark, after = _after(self.head, line)
            text = f'"{line}{mark}"'.encode()
        else:
            bare = _JSON.encode(line | {"prev": self.head})
            text = (bare[:-1] + _CHECK.format(_check(bare.encode()))).encode()
            after = hashlib.sha256(text).hexdigest()
        self._on_disk(lambda descriptor: write_all(descriptor, text + b"\n"))
        self.head = after

    def sync(self) -> None:
        """Make all lines durable."""
        self._on_disk(os.fsync)
        self.durable = self.head

    def sync_names(self) -> None:
        """Make the file's name durable, and those of the folders above it, which may be as new as the file."""
        for folder in self.path.absolute().parents[:3]:
            self._on_disk(lambda _, folder=folder: sync_names(folder))  # type: ignore[misc]

    def close(self) -> None:
        """Let go of the file, so that another process can take it."""
        self._broken = True
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def refuse_broken(self) -> None:
        """Refuse to go on after a failed write."""
        if self._broken:
            raise Refused(f"{self.path}: not usable after a failed write or release", "open the ledger again")

    def _on_disk(self, action: Callable[[int], object]) -> None:
        self.refuse_broken()
        try:
            action(self._descriptor)
        except OSError as error:
            self._broken = True
            remedy = mending(error, "nothing more is granted: make the disk writable, then resume the run")
            raise Refused(f"{self.path}: {error.strerror or error}", remedy) from error


def replay(path: Path, file: BinaryIO, follow: Callable[[Line], None], marks: Sequence[Mark] = ()) -> tuple[str, int]:
    """Check every line and hand it to `follow`; return the last head, and where its line ends.

    Refuses a line that does not fit or that `follow` finds wrong (ValueError), and a file without what `marks` knows.
    """
    head, end, missing = _START, 0, {one.head: one for one in marks}
    for number, raw in _lines(path, file):
        try:
            line, head = _decode(raw, head)
            follow(line)
        except (ValueError, RecursionError) as reason:
            raise _damaged(path, number, reason) from None
        end += len(raw) + 1
        missing.pop(head, None)
    for one in sorted(missing.values(), reverse=True):
        raise lost(path, one)
    return head, end


def lost(path: Path, one: Mark) -> Refused:
    """Return the refusal of a file that is less than somebody knows of it."""
    what = f"{path} has lost lines, or is another ledger: {one.by} knows {one.charged} releases"
    return Refused(what, "restore the ledger as it was when the run stopped: what was spent stays spent")


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield all complete lines with their numbers. Text after the last newline is an incomplete line."""
    number = 1
    while (raw := file.readline(LONGEST)).endswith(b"\n"):
        yield number, raw[:-1]
        number += 1
    if len(raw) == LONGEST:
        raise _damaged(path, number, f"it is longer than any line: more than {LONGEST} bytes")


def _decode(raw: bytes, head: str) -> tuple[Line, str]:
    """Return a line that follows `head`, and the head after it; ValueError says what differs."""
    if found := _SHORT.fullmatch(raw):
        digest = found[1].decode()
        mark, after = _after(head, digest)
        if found[2].decode() != mark:
            raise ValueError(f"it was changed, or does not follow the line before: it ends in {found[2]!r}, not {mark}")
        return digest, after
    text = raw[:-_CHECK_LENGTH] + b"}"
    if raw[len(text) - 1 :] != (check := _CHECK.format(_check(text)).encode()):
        raise ValueError(f"it was changed: it ends in {raw[len(text) - 1 :]!r}, its content asks for {check!r}")
    line: dict[str, Any] = json.loads(text, parse_constant=_no_number)
    if (prev := line.pop("prev", None)) != head:
        raise ValueError(f"it does not follow the line before: its prev is {prev!r:.80}, that line's head is {head}")
    return line, hashlib.sha256(raw).hexdigest()


def _check(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def _after(head: str, digest: str) -> tuple[str, str]:
    """Return the last letters of a string, and the head after it, whose beginning they are."""
    after = hashlib.sha256(f"{head}{digest}".encode())
    return b2a_base64(after.digest())[:6].decode(), after.hexdigest()


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _damaged(path: Path, number: int, reason: object) -> Refused:
    remedy = "the file was altered or damaged: restore it from a copy; count the budget as spent until then"
    return Refused(f"{path}, line {number}: {reason}", remedy)


def _lock(path: Path, marks: Sequence[Mark]) -> int:
    """Open and lock the file, which is made where nobody has seen it before."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | (0 if marks else os.O_CREAT), 0o644)
    except OSError as error:
        if error.errno == errno.ENOENT and marks:
            raise lost(path, max(marks)) from None
        raise Refused(f"{path}: {error.strerror}", mending(error, "choose a folder that can be written")) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # a pipe would be waited for
        os.close(descriptor)
        raise Refused(f"{path} is no regular file", "put the ledger back, or choose another folder")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise Refused(f"{path}: in use by another process", "wait for that run to end, or stop it") from None
    return descriptor


def write_all(descriptor: int, text: bytes | memoryview) -> None:
    """Write all of a text, however little of it the system takes at a time."""
    while text:
        text = text[os.write(descriptor, text) :]
