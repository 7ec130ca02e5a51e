"""What a node has spent: an append-only file that is always at least as long as what the node has sent.

One JSON object a line. Each line holds `prev`, the SHA-256 of the line before it (64 zeros at the start), and `check`,
the first 16 digits of its own: a line that was changed, removed or moved shows. (Lines cut from the end do not: keep
`head` elsewhere to see that.) A run is a segment: `open`, then `reserve`, `sent` and `return` lines, then `close`.
A `reserve` line is on the disk before any step it pays for is sent. A `sent` line is written before its message leaves
and becomes durable with the next line that is: it outlives the process, though not always a power cut, and nothing that
is counted rests on it. In a simulation, messages without a hash are noted by one line for many steps, later. Nothing
here tells anything about the data.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

FORMAT = 1
MOST_AHEAD = 64
_START = "0" * 64
_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_CHECK = ',"check":"{}"}}'
_CHECK_DIGITS = 16
_CHECK_LENGTH = len(_CHECK.format("0" * _CHECK_DIGITS))

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a segment is about: who releases what, how often, under which budget.

    `mechanism` is `Mechanism.describe()`; `budget` is {"epsilon", "delta"}, or None where σ was given and ε is only
    reported; `steps` is K and `spare` the further releases that the noise was calibrated for. `layout` stands for what
    decides which record lies on which node: another run may go on only where each record is where it has spent.
    """

    node: int
    run: str
    mechanism: dict[str, Any]
    budget: dict[str, float] | None
    relation: str
    steps: int
    spare: int
    simulation: bool
    layout: str = ""

    @property
    def allowance(self) -> int | None:
        """The number of releases the budget pays for; None without a budget."""
        return None if self.budget is None else self.steps + self.spare


@dataclass
class Segment:
    """One run in a ledger, as its lines so far tell it."""

    header: Header
    charged: int = 0
    closed: bool = False
    _attempts: dict[int, int] = field(default_factory=dict, repr=False)
    _sent: dict[int, tuple[int, str]] = field(default_factory=dict, repr=False)

    @property
    def left(self) -> int | None:
        """How many more releases the budget pays for; None without a budget."""
        return None if self.header.allowance is None else max(0, self.header.allowance - self.charged)

    def next_attempt(self, step: int) -> int:
        """Return the first attempt of `step` that was never paid for, so surely never sent."""
        return self._attempts.get(step, 0)

    def digest_of(self, step: int) -> str | None:
        """Return the SHA-256 of the message last sent at `step`, where the ledger knows it."""
        return self._sent[step][1] if step in self._sent else None

    def unsent(self) -> set[tuple[int, int]]:
        """Return the (step, attempt) pairs that are reserved and have no `sent` line."""
        last = {step: attempts - 1 for step, attempts in self._attempts.items() if attempts > 0}
        return {(step, attempt) for step, attempt in last.items() if self._sent.get(step, (-1, ""))[0] != attempt}

    def sent_at(self, step: int) -> int | None:
        """Return the attempt at which `step` was last sent, where the ledger knows it."""
        return self._sent[step][0] if step in self._sent else None

    def apply(self, line: dict[str, Any]) -> None:
        """Count one line; ValueError says why it cannot follow the lines before it."""
        if self.closed:
            raise ValueError("it follows the segment's close")
        match line:
            case {"kind": "reserve", "first": int(first), "count": int(count), "attempt": int(attempt)}:
                self._reserve(first, count, attempt)
            case {"kind": "sent", "step": int(step), "attempt": int(attempt), "digest": str(digest)}:
                self.note(step, attempt, digest)
            case {"kind": "sent", "first": int(first), "count": int(count), "attempt": int(attempt)}:
                for step in range(first, first + count):
                    self.note(step, attempt, "")
            case {"kind": "return", "first": int(first), "count": int(count), "attempt": int(attempt)}:
                self._return(first, count, attempt)
            case {"kind": "close"}:
                self.closed = True
            case _:
                raise ValueError(f"no line of format {FORMAT} is a {line.get('kind')!r} with these keys")

    def note(self, step: int, attempt: int, digest: str) -> None:
        """Count one `sent` line."""
        if attempt >= self.next_attempt(step):
            raise ValueError(f"step {step}, attempt {attempt} was never reserved")
        self._sent[step] = attempt, digest

    def _reserve(self, first: int, count: int, attempt: int) -> None:
        steps = range(first, first + count)
        if first < 0 or not 0 < count <= MOST_AHEAD:
            raise ValueError(f"{count} steps from step {first}: a line reserves 1 to {MOST_AHEAD} steps from 0 on")
        if self.left is not None and count > self.left:
            raise ValueError(f"{count} releases with {self.left} left in the budget")
        if taken := [s for s in steps if attempt < self.next_attempt(s)]:
            raise ValueError(f"step {taken[0]}, attempt {attempt} was reserved before")
        self._attempts.update(dict.fromkeys(steps, attempt + 1))
        self.charged += count

    def _return(self, first: int, count: int, attempt: int) -> None:
        for step in range(first, first + count):
            if self.next_attempt(step) != attempt + 1 or self._sent.get(step, (-1, ""))[0] == attempt:
                raise ValueError(f"step {step}, attempt {attempt} is not a reserved step that was never sent")
            self._attempts[step] = attempt
        self.charged -= count


class Ledger:
    """One node's ledger, opened for one run and locked against every other process.

    Guarantee: a step that `reserve` granted stays counted whatever happens to the process or the machine, until
    `give_back` returns it; a step that was sent is never returned, but for this: in a simulation whose messages have no
    hash, what a killed process sent after its last line may be returned by the process that resumes it. Those messages
    had noise that anyone can repeat, so no privacy is lost with the count. `reserve` grants nothing beyond the
    allowance, and nothing at all once a write has failed.

    Assumes: a message leaves only after `sent` accepted it, and the disk keeps what fsync said it has.
    """

    def __init__(self, path: Path, descriptor: int, segment: Segment, head: str) -> None:
        self.path = path
        self.segment = segment
        self.head = head
        self._descriptor = descriptor
        self._broken = False
        # A simulation repeats its bytes: what a killed process paid for is still there to be sent. A secret run draws
        # other noise, and its message may have left unnoted before a power cut: what it held is spent.
        self._held = self.segment.unsent() if self.segment.header.simulation else set()
        self._untold: tuple[int, int, int] | None = None  # (first, count, attempt) of messages that no line notes yet

    @classmethod
    def open(cls, path: Path | str, header: Header, earlier: Sequence[Segment] = ()) -> Self:
        """Create the ledger, continue the run that `header` names, or begin a new segment after other runs.

        Guarantee: the other runs in it are `earlier`, those that this run's noise was calibrated after: it is locked
        before they are compared, and until `release` no other run can spend from it.
        """
        path = Path(path)
        descriptor = _lock(path)
        try:
            segments, head = _recover(path, descriptor)
            if header.run in (segment.header.run for segment in segments):
                _refuse_change(path, segments[-1].header, header)
                _refuse_others(path, segments[:-1], earlier)
                return cls(path, descriptor, segments[-1], head)
            _refuse_others(path, segments, earlier)
            ledger = cls(path, descriptor, Segment(header), head)
            ledger._begin()
        except BaseException:
            os.close(descriptor)
            raise
        return ledger

    def _begin(self) -> None:
        self._write({"kind": "open", "format": FORMAT} | dataclasses.asdict(self.segment.header))
        self._on_disk(os.fsync)
        self._on_disk(lambda _: _sync_folders(self.path))

    @property
    def charged(self) -> int:
        """Releases counted as spent in this run: all that were reserved and not returned."""
        return self.segment.charged

    def next_attempt(self, step: int) -> int:
        """Return the attempt number to redo `step` with: 0 unless it may have been sent."""
        return self.segment.next_attempt(step)

    def digest_of(self, step: int) -> str | None:
        """Return the SHA-256 of the message last sent at `step`: the same bytes may go out again, uncharged."""
        return self.segment.digest_of(step)

    def holds(self, step: int, attempt: int = 0) -> bool:
        """Return whether this step is paid for and not yet sent."""
        return (step, attempt) in self._held

    def reserve(self, first: int, count: int, attempt: int = 0) -> int:
        """Pay for up to `count` steps from `first` on; return how many were granted, 0 where the budget is spent.

        Guarantee: what is granted is on the disk when this returns. A failed write grants nothing.
        """
        left = self.segment.left
        granted = min(count, MOST_AHEAD, count if left is None else left)
        if granted == 0:
            return 0
        self._append({"kind": "reserve", "first": first, "count": granted, "attempt": attempt})
        self._held.update((step, attempt) for step in range(first, first + granted))
        return granted

    def paid(self, first: int, count: int, attempt: int) -> int:
        """Return how many steps from `first` on are paid for at this attempt, whether they were sent or not."""
        paid = 0
        while paid < count and self.next_attempt(first + paid) == attempt + 1:
            paid += 1
        return paid

    def sent(self, step: int, attempt: int, digest: str) -> None:
        """Note the SHA-256 of a message, just before it leaves. One that was not paid for is refused."""
        if not self.holds(step, attempt):
            raise Refused(
                f"{self.path}: step {step}, attempt {attempt} is not paid for",
                "reserve each step before it is sent, and send it once; only the same bytes may go out again",
            )
        self._held.remove((step, attempt))
        self.segment.note(step, attempt, digest)
        if self.segment.header.simulation and not digest:
            self._tell_later(step, attempt)
            return
        # what `_JSON` would make of it, in a third of the time: a block writes m such lines a step
        told = json.encoder.encode_basestring_ascii(digest)
        self._put(f'{{"kind":"sent","step":{step},"attempt":{attempt},"digest":{told},"prev":"{self.head}"}}')

    def _tell_later(self, step: int, attempt: int) -> None:
        """Note a message of a simulation with the next line: its price is on the disk, and there is no hash to keep."""
        first, count, at = self._untold or (step, 0, attempt)
        if (step, attempt) != (first + count, at):
            self._tell()
            first, count = step, 0
        self._untold = first, count + 1, attempt

    def _tell(self) -> None:
        if self._untold is not None:
            (first, count, attempt), self._untold = self._untold, None
            self._write({"kind": "sent", "first": first, "count": count, "attempt": attempt})

    def give_back(self) -> int:
        """Return the steps that this process reserved and never sent; return their number. For a clean stop."""
        self._tell()
        unused = len(self._held)
        for first, count, attempt in list(_runs(self._held)):
            self._append({"kind": "return", "first": first, "count": count, "attempt": attempt})
        self._held.clear()
        return unused

    def close(self) -> None:
        """End the run for good: give back what is unused and let no step follow. `release` then unlocks the file."""
        if not self.segment.closed:
            self.give_back()
            self._append({"kind": "close"})

    def release(self) -> None:
        """Let go of the file, so that another process can take it. Nothing is given back."""
        self._broken = True
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _append(self, line: dict[str, Any]) -> None:
        try:
            self.segment.apply(line)
        except ValueError as reason:
            raise Refused(
                f"{self.path}: {line['kind']}: {reason}", "see the ledger for what this run has spent"
            ) from None
        self._tell()
        self._write(line)
        self._on_disk(os.fsync)

    def _write(self, line: dict[str, Any]) -> None:
        self._put(_JSON.encode(line | {"prev": self.head}))

    def _put(self, line: str) -> None:
        text = (line[:-1] + _CHECK.format(_check(line.encode()))).encode()
        self._on_disk(lambda descriptor: _write_all(descriptor, text + b"\n"))
        self.head = hashlib.sha256(text).hexdigest()

    def _on_disk(self, action: Callable[[int], None]) -> None:
        """Trust this object no more after a failed write: what reached the disk is known only by reading it again."""
        if self._broken:
            raise Refused(f"{self.path}: not usable after a failed write or release", "open the ledger again")
        try:
            action(self._descriptor)
        except OSError as error:
            self._broken = True
            remedy = "nothing more is granted: make the disk writable, then resume the run"
            raise Refused(f"{self.path}: {error.strerror or error}", remedy) from error


def read(path: Path | str) -> list[Segment]:
    """Return a ledger's runs in order, after checking every line.

    Guarantee: `charged` of each segment is at least the number of messages that its node sent in it; not so in a
    simulation without hashes that was killed, resumed and stopped before it had sent the same messages again.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}", "name a ledger file, runs/<name>/ledger/node-<i>.jsonl") from error
    return _replay(path, content)[0]


def together(ledgers: Sequence[Ledger], action: Callable[[Ledger], T]) -> list[T]:
    """Do `action` to all ledgers of a block at once, so that m nodes wait for their disk once and not m times.

    If one fails, that error is raised after all have ended, and what the others were granted must not be used.
    """
    with ThreadPoolExecutor(min(64, max(1, len(ledgers)))) as pool:
        return list(pool.map(action, ledgers))


def _write_all(descriptor: int, text: bytes) -> None:
    while text:
        text = text[os.write(descriptor, text) :]


def _check(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:_CHECK_DIGITS]


def _decode(raw: bytes, head: str) -> dict[str, Any]:
    """Return the line's object; ValueError says what differs."""
    text = raw[:-_CHECK_LENGTH] + b"}"
    if raw[len(text) - 1 :] != (check := _CHECK.format(_check(text)).encode()):
        raise ValueError(f"it was changed: it ends in {raw[len(text) - 1 :]!r}, its content asks for {check!r}")
    line: dict[str, Any] = json.loads(text)
    if (prev := line.pop("prev", None)) != head:
        raise ValueError(f"it does not follow the line before: its prev is {prev}, that line's SHA-256 is {head}")
    return line


def _replay(path: Path, content: bytes) -> tuple[list[Segment], str]:
    """Return the segments and the last line's hash. What follows the last newline was never completed: no line yet."""
    segments: list[Segment] = []
    head = _START
    for number, raw in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            _count(segments, _decode(raw, head))
        except ValueError as reason:
            remedy = "the file was altered or damaged: restore it from a copy; count the budget as spent until then"
            raise Refused(f"{path}, line {number}: {reason}", remedy) from None
        head = hashlib.sha256(raw).hexdigest()
    return segments, head


def _count(segments: list[Segment], line: dict[str, Any]) -> None:
    if line.get("kind") == "open":
        segments.append(Segment(_header(line)))
    elif segments:
        segments[-1].apply(line)
    else:
        raise ValueError("a ledger starts with an open line")


def _header(line: dict[str, Any]) -> Header:
    if line.pop("format", None) != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}")
    try:
        return Header(**{k: v for k, v in line.items() if k != "kind"})
    except TypeError as error:
        raise ValueError(str(error)) from None


def _lock(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}", "choose a folder that can be written") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise Refused(f"{path}: in use by another process", "wait for that run to end, or stop it") from None
    return descriptor


def _recover(path: Path, descriptor: int) -> tuple[list[Segment], str]:
    """Read the file under its lock and cut off a last line that a crash left without its newline."""
    content = path.read_bytes()
    segments, head = _replay(path, content)
    os.ftruncate(descriptor, content.rfind(b"\n") + 1)
    return segments, head


def _refuse_change(path: Path, old: Header, new: Header) -> None:
    if old.run != new.run:
        raise Refused(f"{path}: run {new.run} was followed by run {old.run}", "start a new run: that one has ended")
    before, now = dataclasses.asdict(old), json.loads(json.dumps(dataclasses.asdict(new)))
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


def _sync_folders(path: Path) -> None:
    """Make the file's name durable, and those of runs/<name>/ledger above it: they may be as new as the file."""
    for folder in path.absolute().parents[:3]:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _runs(steps: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Group (step, attempt) pairs into runs of neighbouring steps: (first, count, attempt)."""
    first = count = attempt = -1
    for step, at in sorted(steps, key=lambda pair: (pair[1], pair[0])):
        if at == attempt and step == first + count:
            count += 1
            continue
        if count > 0:
            yield first, count, attempt
        first, count, attempt = step, 1, at
    if count > 0:
        yield first, count, attempt
