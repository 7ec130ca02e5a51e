"""What a node has spent: an append-only file that is always at least as long as what the node has sent.

One JSON value a line. A run is a segment: `open`, then `reserve`, `sent` and `return` lines, then `close`. A `reserve`
line is on the disk before any step it pays for is sent. A `sent` line is written before its message leaves and becomes
durable with the next line that is: it outlives the process, though not always a power cut, and nothing that is counted
rests on it. Messages without a hash are noted by one line for many steps, later, unless steps are committed before they
are sent: then a line that is missing says something. Nothing here tells anything about the data.

*The chain.* Each object holds `prev`, the head before it (64 zeros at the start), and `check`, the first 16
digits of its own: a line that was changed, removed or moved shows. Most messages follow the one before, at the same
attempt; of such a one the line is a string: 128 bits of its BLAKE3 in base64 (22 letters, none where it has no hash; up
to format 2 of its SHA-256), and the first 6 letters of the SHA-256 of the head before it and these. That is the head
after a string; the head after an object is the object's own SHA-256. So a head stands for every letter before it.
(Lines cut from the end do not show: whoever knows an older head asks for it with `seen`.)

*What is held.* Of steps, stretches that were paid for and sent alike; of messages, the hashes of those that a resumed
simulation may repeat. A file is read line by line, and no line is longer than 64 KiB.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import re
import resource
import stat
from binascii import b2a_base64
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, NoReturn, Self, TypeVar

from privsgp.accounting.mechanisms import described
from privsgp.accounting.segment import FORMATS, MOST_AHEAD, Header, Segment, Stretches, short
from privsgp.errors import Refused, mending
from privsgp.files import sync_names, write_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = [
    "MOST_AHEAD", "Header", "Ledger", "Seen", "Segment", "first", "lost", "make_room", "read", "short", "together",
]  # fmt: skip

_START = "0" * 64
_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_CHECK = ',"check":"{}"}}'
_CHECK_DIGITS = 16
_CHECK_LENGTH = len(_CHECK.format("0" * _CHECK_DIGITS))
_SHORT = re.compile(rb'"((?:[A-Za-z0-9+/]{22})?)([A-Za-z0-9+/]{6})"')
_LONGEST = 2**16

T = TypeVar("T")


class Seen(NamedTuple):
    """What somebody knows of a ledger: so many releases were charged when its head was this."""

    charged: int
    head: str
    by: str


class Ledger:
    """One node's ledger, opened for one run and locked against every other process.

    Guarantee: a step that `reserve` granted stays counted whatever happens to the process or the machine, until
    `give_back` returns it; a step that was sent is never returned, but for this: in a simulation whose messages have no
    hash, what a killed process sent after its last line may be returned by the process that resumes it. Those messages
    had noise that anyone can repeat, so no privacy is lost with the count. `reserve` grants nothing beyond the
    allowance, and nothing at all once a write has failed.

    Assumes: a message leaves only after `sent` accepted it, and the disk keeps what fsync said it has.
    """

    def __init__(
        self,
        path: Path,
        descriptor: int,
        segment: Segment,
        head: str,
        before: Sequence[Segment] = (),
        committed: int | None = None,
    ) -> None:
        self.path = path
        self.segment = segment
        self.head = head
        self.before = sum(one.charged for one in before)  # charged in the segments before this one
        self.origin = (before[0] if before else segment).header.run  # the first run in it: the ledger's own name
        self._descriptor = descriptor
        self._broken = False
        self._durable = head
        self._at_once = committed is not None  # whether every message is noted before it leaves
        # A simulation repeats its bytes: what a killed process paid for is still there to be sent. A secret run draws
        # other noise, and its message may have left unnoted before a power cut: what it held is spent, unless steps are
        # `committed` before they are sent. Then those after the last one that was have not left.
        held = self.segment.unsent() if self.segment.header.simulation or committed is not None else Stretches()
        self._held = held if committed is None else _since(held, committed)  # by the next attempt
        self._untold: tuple[int, int, int] | None = None  # (first, count, attempt) of messages that no line notes yet

    @classmethod
    def open(
        cls,
        path: Path | str,
        header: Header,
        earlier: Sequence[Segment] = (),
        seen: Sequence[Seen] = (),
        since: int | None = 0,
        committed: int | None = None,
    ) -> Self:
        """Create the ledger, continue the run that `header` names, or begin a new segment after other runs.

        `since` is the first step whose message this run may send again: hashes are kept from there on. `committed` is
        the last step that was made durable before it was sent, −1 before the first; None where that is not done.

        Guarantee: the other runs in it are `earlier`, those that this run's noise was calibrated after: it is locked
        before they are compared, and until `release` no other run can spend from it. All that `seen` knows is in it.
        """
        path = Path(path)
        descriptor = _lock(path, seen)
        try:
            segments, head = _recover(path, descriptor, seen, since)
            _refuse_other_node(path, segments, header.node)
            if header.run in (segment.header.run for segment in segments):
                _refuse_change(path, segments[-1].header, header)
                _refuse_others(path, segments[:-1], earlier)
                return cls(path, descriptor, segments[-1], head, segments[:-1], committed)
            _refuse_others(path, segments, earlier)
            ledger = cls(path, descriptor, Segment(header), head, segments, committed)
            ledger._begin()
        except BaseException:
            os.close(descriptor)
            raise
        return ledger

    def _begin(self) -> None:
        try:
            self.segment.header.refuse_odd()
        except ValueError as reason:
            raise Refused(f"{self.path}: {reason}", "nothing is written that could not be read again") from None
        self._write({"kind": "open", "format": FORMATS[-1]} | self.segment.header.to_json())
        self._sync()
        self._on_disk(self._sync_names)

    def _sync_names(self, _descriptor: int) -> None:
        """Make the file's name durable, and those of runs/<name>/ledger above it: they may be as new as the file."""
        for folder in self.path.absolute().parents[:3]:
            sync_names(folder)

    @property
    def charged(self) -> int:
        """Releases counted as spent in this run: all that were reserved and not returned."""
        return self.segment.charged

    def seen(self, by: str) -> Seen:
        """Return what may be kept elsewhere of this ledger: of its lines those that outlive a power cut."""
        return Seen(self.before + self.charged, self._durable, by)

    def next_attempt(self, step: int) -> int:
        """Return the attempt number to redo `step` with: 0 unless it may have been sent."""
        return self.segment.next_attempt(step)

    def digest_of(self, step: int) -> str | None:
        """Return the hash of the message last sent at `step`: the same bytes may go out again, uncharged."""
        return self.segment.digest_of(step)

    def holds(self, step: int, attempt: int = 0) -> bool:
        """Return whether this step is paid for and not yet sent."""
        first, count, _ = self._untold or (0, 0, 0)
        return self._held[step] == attempt + 1 and not first <= step < first + count

    def reserve(self, first: int, count: int, attempt: int = 0) -> int:
        """Pay for up to `count` steps from `first` on; return how many were granted, 0 where the budget is spent.

        Guarantee: what is granted is on the disk when this returns. A failed write grants nothing.
        """
        left = self.segment.left
        held = min(count, MOST_AHEAD, count if left is None else left)
        if held == 0:
            return 0
        self._append({"kind": "reserve", "first": first, "count": held, "attempt": attempt})
        self._held.put(first, first + held, attempt + 1)
        return held

    def sent(self, step: int, attempt: int, digest: str) -> None:
        """Note the hash of a message, just before it leaves. One that was not paid for is refused."""
        first, count, at = self._untold or (step, 0, attempt)
        later = not digest and not self._at_once
        if not later or (step, attempt) != (first + count, at):
            self._tell()
            first, count = step, 0
        if not self.holds(step, attempt):
            raise Refused(
                f"{self.path}: step {step}, attempt {attempt} is not paid for",
                "reserve each step before it is sent, and send it once; only the same bytes may go out again",
            )
        if later:  # its price is on the disk, and there is no hash to keep: the next line notes it
            self._untold = first, count + 1, attempt
            return
        self._held.put(step, step + 1, 0)
        follows, digest = self.segment.following == (step, attempt), short(digest)
        self.segment.note(step, attempt, digest)
        if follows:
            self._put_short(digest)
        else:
            self._write({"kind": "sent", "step": step, "attempt": attempt, "digest": digest})

    def _tell(self) -> None:
        """Note the messages that no line notes yet."""
        if self._untold is not None:
            (first, count, attempt), self._untold = self._untold, None
            self._held.put(first, first + count, 0)
            line = {"kind": "sent", "first": first, "count": count, "attempt": attempt}
            self.segment.apply(line)
            self._write(line)

    def give_back(self) -> int:
        """Return the steps that this process reserved and never sent; return their number. For a clean stop."""
        self._tell()
        unused, self._held = list(self._held), Stretches()
        for first, stop, paid in unused:
            self._append({"kind": "return", "first": first, "count": stop - first, "attempt": paid - 1})
        return sum(stop - first for first, stop, _ in unused)

    def close(self) -> None:
        """End the run for good: give back what is unused and let no step follow. `release` then unlocks the file."""
        if not self.segment.closed:
            self.give_back()
            self._append({"kind": "close"})

    def unlock(self) -> None:
        """Let go of the file, so that another process can take it. Nothing is given back."""
        self._broken = True
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unlock()

    def _append(self, line: dict[str, Any]) -> None:
        try:
            self.segment.apply(line)
        except ValueError as reason:
            raise Refused(
                f"{self.path}: {line['kind']}: {reason}", "see the ledger for what this run has spent"
            ) from None
        self._tell()
        self._write(line)
        self._sync()

    def _write(self, values: dict[str, Any]) -> None:
        line = _JSON.encode(values | {"prev": self.head})
        text = (line[:-1] + _CHECK.format(_check(line.encode()))).encode()
        self._on_disk(lambda descriptor: write_all(descriptor, text + b"\n"))
        self.head = hashlib.sha256(text).hexdigest()

    def _put_short(self, digest: str) -> None:
        mark, head = _after(self.head, digest)
        self._on_disk(lambda descriptor: write_all(descriptor, f'"{digest}{mark}"\n'.encode()))
        self.head = head

    def _sync(self) -> None:
        self._on_disk(os.fsync)
        self._durable = self.head

    def _on_disk(self, action: Callable[[int], None]) -> None:
        """Trust this object no more after a failed write: what reached the disk is known only by reading it again."""
        if self._broken:
            raise Refused(f"{self.path}: not usable after a failed write or release", "open the ledger again")
        try:
            action(self._descriptor)
        except OSError as error:
            self._broken = True
            remedy = mending(error, "nothing more is granted: make the disk writable, then resume the run")
            raise Refused(f"{self.path}: {error.strerror or error}", remedy) from error


def read(path: Path | str, seen: Sequence[Seen] = ()) -> list[Segment]:
    """Return a ledger's runs in order, after checking every line; refuse one without what `seen` knows of it.

    Guarantee: `charged` of each segment is at least the number of messages that its node sent in it; not so in a
    simulation without hashes that was killed, resumed and stopped before it had sent the same messages again.
    """
    path = Path(path)
    with _opened(path) as file:
        segments = _replay(path, file, seen)[0]
    _refuse_other_node(path, segments)
    return segments


def first(path: Path | str) -> Header | None:
    """Return the header of a ledger's first run, None while it has no complete line; no more of it is read."""
    with _opened(Path(path)) as file:
        raw = next(_lines(Path(path), file), None)
    if raw is None:
        return None
    segments: list[Segment] = []
    _follow(Path(path), 1, segments, raw, _START)
    _refuse_other_node(Path(path), segments)
    return segments[0].header


def _opened(path: Path) -> BinaryIO:
    remedy = "name a ledger file, runs/<name>/ledger/node-<i>.jsonl"
    try:
        if path.exists() and not path.is_file():
            raise Refused(f"{path} is no file", remedy)
        return path.open("rb")
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}", mending(error, remedy)) from error


def make_room(files: int) -> None:
    """Raise this process's limit of open files, as far as it may, where so many more come close to it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 2 * files > soft and soft != resource.RLIM_INFINITY:
        wanted = soft + files
        with suppress(ValueError, OSError):  # then opening says what is wrong
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def together(ledgers: Sequence[Ledger], action: Callable[[Ledger], T]) -> list[T]:
    """Do `action` to all ledgers of a block at once, so that m nodes wait for their disk once and not m times.

    If one fails, that error is raised after all have ended, and what the others were granted must not be used.
    """
    with ThreadPoolExecutor(min(64, max(1, len(ledgers)))) as pool:
        return list(pool.map(action, ledgers))


def _since(held: Stretches, step: int) -> Stretches:
    """Return of what is held the steps from one on."""
    later = Stretches()
    for first, stop, paid in held:
        if stop > step:
            later.put(max(first, step), stop, paid)
    return later


def _check(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:_CHECK_DIGITS]


def _after(head: str, digest: str) -> tuple[str, str]:
    """Return the last letters of a string, and the head after it, whose beginning they are."""
    after = hashlib.sha256(f"{head}{digest}".encode())
    return b2a_base64(after.digest())[:6].decode(), after.hexdigest()


def _decode(raw: bytes, head: str) -> dict[str, Any]:
    """Return the line's object; ValueError says what differs."""
    text = raw[:-_CHECK_LENGTH] + b"}"
    if raw[len(text) - 1 :] != (check := _CHECK.format(_check(text)).encode()):
        raise ValueError(f"it was changed: it ends in {raw[len(text) - 1 :]!r}, its content asks for {check!r}")
    line: dict[str, Any] = json.loads(text, parse_constant=_no_number)
    if (prev := line.pop("prev", None)) != head:
        raise ValueError(f"it does not follow the line before: its prev is {prev!r:.80}, that line's head is {head}")
    return line


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Yield all complete lines. What follows the last newline was never completed: no line yet."""
    number = 0
    while (raw := file.readline(_LONGEST)).endswith(b"\n"):
        number += 1
        yield raw[:-1]
    if len(raw) == _LONGEST:
        raise _damaged(path, number + 1, f"it is longer than any line: more than {_LONGEST} bytes")


def _replay(
    path: Path, file: BinaryIO, seen: Iterable[Seen], since: int | None = None
) -> tuple[list[Segment], str, int]:
    """Return the segments, the last line's head and the place where it ends; refuse where something seen is missing."""
    segments: list[Segment] = []
    head, end, missing = _START, 0, {one.head: one for one in seen}
    for number, raw in enumerate(_lines(path, file), start=1):
        head = _follow(path, number, segments, raw, head, since)
        end += len(raw) + 1
        missing.pop(head, None)
    for one in sorted(missing.values(), reverse=True):
        raise lost(path, one)
    return segments, head, end


def _follow(path: Path, number: int, segments: list[Segment], raw: bytes, head: str, since: int | None = None) -> str:
    try:
        return _count(segments, raw, head, since)
    except (ValueError, RecursionError) as reason:
        raise _damaged(path, number, reason) from None


def _damaged(path: Path, number: int, reason: object) -> Refused:
    remedy = "the file was altered or damaged: restore it from a copy; count the budget as spent until then"
    return Refused(f"{path}, line {number}: {reason}", remedy)


def lost(path: Path, one: Seen) -> Refused:
    """Return the refusal of a ledger that is less than what somebody knows of it."""
    return Refused(
        f"{path} has lost lines, or is another: {one.by} knows it with {one.charged} releases",
        "restore the ledger as it was when the run stopped: what was spent stays spent",
    )


def _count(segments: list[Segment], raw: bytes, head: str, since: int | None) -> str:
    """Count one line that follows `head`; return the head after it."""
    if found := _SHORT.fullmatch(raw):
        digest = found[1].decode()
        mark, after = _after(head, digest)
        if not segments or found[2].decode() != mark:
            raise ValueError(f"it was changed, or does not follow the line before: it ends in {found[2]!r}, not {mark}")
        segments[-1].note_next(digest)
        return after
    line = _decode(raw, head)
    if line.get("kind") == "open":
        segments.append(Segment(Header.read(line), since=since))
    elif segments:
        segments[-1].apply(line)
    else:
        raise ValueError("a ledger starts with an open line")
    return hashlib.sha256(raw).hexdigest()


def _lock(path: Path, seen: Sequence[Seen] = ()) -> int:
    """Open and lock the file, which is made where nobody has seen it before."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | (0 if seen else os.O_CREAT), 0o644)
    except OSError as error:
        if error.errno == errno.ENOENT and seen:
            raise lost(path, max(seen)) from None
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


def _recover(path: Path, descriptor: int, seen: Sequence[Seen], since: int | None) -> tuple[list[Segment], str]:
    """Read the file under its lock and cut off a last line that a crash left without its newline."""
    with open(descriptor, "rb", closefd=False) as file:
        segments, head, end = _replay(path, file, seen, since)
    for segment in segments:
        segment.since = None  # what this process sends it sends once
    os.ftruncate(descriptor, end)
    if end:  # what was read here may not have been on the disk: from now on others may know it
        os.fsync(descriptor)
    return segments, head


def _refuse_change(path: Path, old: Header, new: Header) -> None:
    if old.run != new.run:
        raise Refused(f"{path}: run {new.run} was followed by run {old.run}", "start a new run: that one has ended")
    before, now = dataclasses.asdict(old), json.loads(json.dumps(dataclasses.asdict(new)))
    before["mechanism"] = described(old.mechanism).describe()  # with the keys that came later
    if changed := [key for key in before if before[key] != now[key]]:
        key = changed[0]
        raise Refused(
            f"{path}: {key} of run {old.run} was {before[key]} and is now {now[key]}",
            "resume with the configuration the run was started with, or start a new run",
        )


def _refuse_others(path: Path, found: Sequence[Segment], counted: Sequence[Segment]) -> None:
    if list(found) != list(counted):
        raise Refused(
            f"{path}: another run has spent from this ledger meanwhile",
            "start again with --resume: what it has spent is then counted before this run's noise is chosen",
        )


def _refuse_other_node(path: Path, found: Sequence[Segment], node: int | None = None) -> None:
    """Refuse a ledger under the name of another node: what a record has spent is in its own node's."""
    named = re.fullmatch(r"node-(\d{1,9})\.jsonl", path.name)
    expected = int(named[1]) if named and node is None else node
    for header in (segment.header for segment in found if expected is not None):
        if header.node != expected:
            raise Refused(
                f"{path} is the ledger of node {header.node}",
                f"put node {expected}'s own back: what it has spent stays spent",
            )
