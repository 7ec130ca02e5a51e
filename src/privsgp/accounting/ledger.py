"""Ledgers: append-only files that always count at least the messages that a node has sent.

A run is a segment: `open`, then `reserve`, `sent` and `return` lines, then `close`. chain.py says how they are chained.
One rule holds: what pays is durable before anything leaves. A `reserve` line is on the disk before any step that it
pays for is sent. A `sent` line has the message's BLAKE3. It is written before the message
leaves and becomes durable with the next line that is. Nothing that is counted rests on it. So messages without a hash
share one line at a clean stop, unless steps are committed before they are sent.

A line comes from a file that anybody may have written. So every value is checked before it is used: its type, its
range, its letters. The rest can be printed, be part of a file's name, and is counted in a moment.
"""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
import resource
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Self, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as checked

from privsgp.accounting.chain import LONGEST, Chain, replay
from privsgp.accounting.mechanisms import Relation, described
from privsgp.errors import Refused, mending

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from privsgp.accounting.chain import Line, Mark

FORMAT = 3
MOST_AHEAD = 64
_MOST = 2**53
T = TypeVar("T")


def _is_mechanism(values: dict[str, Any]) -> dict[str, Any]:
    described(values)
    return values


def _is_budget(value: dict[str, float]) -> dict[str, float]:
    if set(value) != {"epsilon", "delta"} or not (0 < value["epsilon"] < math.inf and 0 < value["delta"] < 1):
        raise ValueError("a budget is ε above 0 and δ between 0 and 1")
    return value


_Whole = Annotated[int, Field(ge=0, lt=_MOST)]
_Letters = Annotated[str, Field(pattern=r"^[0-9A-Za-z]{0,64}$")]


@checked(frozen=True, kw_only=True, config=ConfigDict(strict=True, extra="forbid"))
class Header:
    """The header of a segment: node, mechanism, number of releases and budget.

    `mechanism` is `Mechanism.describe()`; `budget` is {"epsilon", "delta"}, or None where σ was given and ε is only
    reported; `steps` is K and `spare` the further releases that the noise was calibrated for. `layout` stands for what
    decides which record lies on which node: another run may go on only where each record is where it has spent. `site`
    is what people call the node; "" where it has a number only.
    """

    node: _Whole
    run: _Letters
    mechanism: Annotated[dict[str, Any], AfterValidator(_is_mechanism)]
    budget: Annotated[dict[str, float], AfterValidator(_is_budget)] | None
    relation: Relation
    steps: _Whole
    spare: _Whole
    simulation: bool
    layout: _Letters = ""
    site: Annotated[str, Field(pattern=r"^(\w[\w.-]{0,63})?$")] = ""

    @classmethod
    def read(cls, line: dict[str, Any]) -> Header:
        """Return the header in an `open` line; ValueError says what is wrong with it."""
        if line.get("format") != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        try:
            return cls(**{k: v for k, v in line.items() if k not in ("kind", "format")})
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']!s:.200}") from None


@dataclasses.dataclass
class Segment:
    """One run in a ledger, as its lines so far tell it.

    Steps are paid for in order. `next` … `stop` − 1 are those that are paid for at the last `attempt` and have no
    `sent` line. A payment that does not continue the one before begins there anew: the rest of that one stays charged.

    Guarantee: `charged` never falls below the number of messages that lines note.
    """

    header: Header
    charged: int = 0
    closed: bool = False
    sent: int = 0  # messages that lines note
    attempt: int = 0
    next: int = 0
    stop: int = 0
    following: tuple[int, int] = (0, 0)  # (step, attempt) after the last message that a line notes
    digest: str = dataclasses.field(default="", compare=False)  # of the last message that a line notes; see `short`

    @property
    def remaining(self) -> int | None:
        """How many more releases the budget pays for; None without a budget."""
        header = self.header
        return None if header.budget is None else max(0, header.steps + header.spare - self.charged)

    def apply(self, line: dict[str, Any] | str) -> None:
        """Count one line; ValueError says why it cannot follow the lines before it."""
        if self.closed:
            raise ValueError("it follows the segment's close")
        match line:
            case str(digest):
                step, at = self.following
                self._count_sent(step, 1, at, digest)
            case {"kind": "reserve", "first": first, "count": count, "attempt": at} if _whole(first, count, at):
                self._reserve(first, count, at)
            case {"kind": "sent", "step": step, "attempt": at, "digest": str(digest)} if _whole(step, at):
                self._count_sent(step, 1, at, short(digest))
            case {"kind": "sent", "first": first, "count": count, "attempt": at} if _whole(first, count, at):
                self._count_sent(first, count, at)
            case {"kind": "return", "first": first, "count": count, "attempt": at} if _whole(first, count, at):
                self._return(first, count, at)
            case {"kind": "close"}:
                self.closed = True
            case _:
                raise ValueError(f"no line of format {FORMAT} is a {line.get('kind')!r:.80} with these keys")

    def _reserve(self, first: int, count: int, attempt: int) -> None:
        if not 0 < count <= MOST_AHEAD:
            raise ValueError(f"{count} steps from step {first}: a line reserves 1 to {MOST_AHEAD} steps from 0 on")
        if self.remaining is not None and count > self.remaining:
            raise ValueError(f"{count} releases with {self.remaining} left in the budget")
        if (first, attempt) != (self.stop, self.attempt):
            self.next = first
        self.stop, self.attempt = first + count, attempt
        self.charged += count

    def _count_sent(self, first: int, count: int, attempt: int, digest: str = "") -> None:
        unpaid = attempt != self.attempt or first + count > self.stop or self.sent + count > self.charged
        if unpaid or not count:
            raise ValueError(f"step {first}, attempt {attempt} was never reserved")
        self.next, self.digest, self.following = first + count, digest, (first + count, attempt)
        self.sent += count

    def _return(self, first: int, count: int, attempt: int) -> None:
        held = self.next <= first and first + count == self.stop and attempt == self.attempt
        if not (held and count and self.charged - count >= self.sent):
            raise ValueError(f"step {first}, attempt {attempt} is not a reserved step that was never sent")
        self.stop = first
        self.charged -= count


class Ledger:
    """One node's ledger, opened for one run and locked against every other process.

    Guarantee: a step that `reserve` granted stays counted whatever happens to the process or the machine, until
    `give_back` returns it. A step that was sent is never returned, but for this: in a simulation whose messages have no
    hash, the process that resumes it may return steps that a killed process sent. Anyone can repeat that noise, so no
    privacy is lost with the count. `reserve` grants nothing beyond the allowance, and nothing once a write has failed.

    Assumes: a message leaves only after `sent` accepted it, and the disk keeps what fsync said it has.
    """

    def __init__(self, chain: Chain, segment: Segment, since: int, *, commits: bool) -> None:
        self.path, self.segment = chain.path, segment
        self._chain = chain
        self._at_once = commits  # whether every message is noted before it leaves
        # A simulation repeats its bytes: what a killed process paid for is still there to be sent. Where steps are
        # committed before they are sent, those after the last commit have not left. A secret run draws other noise,
        # and a message may have left before a power cut: all that was paid for is spent, and a new attempt begins.
        keeps = segment.header.simulation or commits
        self.attempt = segment.attempt if keeps else segment.attempt + bool(segment.charged)
        self.next = max(segment.next, since) if keeps else segment.stop  # the first step that was not sent
        self.stop = segment.stop  # the first after those that are paid for, durably

    @classmethod
    def open(
        cls, path: Path | str, header: Header, marks: Sequence[Mark] = (), since: int = 0, *, commits: bool = False
    ) -> Self:
        """Create the ledger, or continue the run that `header` names.

        All steps before `since` were sent. `commits` tells whether each step is made durable before it is sent.

        Guarantee: no other run is in it, and until `unlock` no other process can write to it. All that `marks` knows is
        in it.
        """
        path, segments = Path(path), list[Segment]()
        chain = Chain.open(path, partial(_follow, segments), marks)
        try:
            _refuse_other_node(path, segments, header.node)
            if segments:
                _refuse_change(path, segments, header)
                return cls(chain, segments[0], since, commits=commits)
            chain.write({"kind": "open", "format": FORMAT} | dataclasses.asdict(header))
            chain.sync()
            chain.sync_names()
        except BaseException:
            chain.close()
            raise
        return cls(chain, Segment(header), since, commits=commits)

    @property
    def charged(self) -> int:
        """Releases counted as spent in this run: all that were reserved and not returned."""
        return self.segment.charged

    def mark(self) -> tuple[int, str]:
        """Return what may be kept elsewhere of this ledger, its charge and head: lines that outlive a power cut."""
        return self.charged, self._chain.durable

    def holds(self, step: int) -> bool:
        """Return whether this step is paid for and not yet sent."""
        return self.next <= step < self.stop

    def reserve(self, first: int, count: int) -> int:
        """Pay for up to `count` steps from `first` on; return how many were granted, 0 where the budget is spent.

        Guarantee: what is granted is on the disk when this returns. A failed write grants nothing.
        """
        remaining_releases = self.segment.remaining
        held = min(count, MOST_AHEAD, count if remaining_releases is None else remaining_releases)
        if held:
            follows = (self.stop, self.segment.attempt) == (first, self.attempt)
            self._append({"kind": "reserve", "first": first, "count": held, "attempt": self.attempt})
            self.next, self.stop = self.next if follows else first, first + held
        return held

    def sent(self, step: int, digest: str) -> None:
        """Note the hash of a message, just before it leaves. One that was not paid for is refused."""
        if not self.holds(step):
            what = f"{self.path}: step {step}, attempt {self.attempt} is not paid for"
            raise Refused(what, "reserve each step before it is sent, and send it once")
        self.next = step + 1
        if digest or self._at_once:
            digest = short(digest)
            follows = self.segment.following == (step, self.attempt)
            line: Line = digest if follows else {
                "kind": "sent", "step": step, "attempt": self.attempt, "digest": digest,
            }  # fmt: skip
            self.segment.apply(line)
            self._chain.write(line)

    def give_back(self) -> int:
        """Return the steps that this process reserved and never sent; return their number. For a clean stop."""
        unused, untold = max(0, self.stop - self.next), self.next - self.segment.next
        if untold > 0 and self.stop >= self.next and self.attempt == self.segment.attempt:
            self._append({"kind": "sent", "first": self.segment.next, "count": untold, "attempt": self.attempt})
        if unused:
            self._append({"kind": "return", "first": self.next, "count": unused, "attempt": self.attempt})
            self.stop = self.next
        return unused

    def close(self) -> None:
        """End the run for good: give back what is unused and let no step follow. `unlock` then frees the file."""
        if not self.segment.closed:
            self.give_back()
            self._append({"kind": "close"})

    def unlock(self) -> None:
        """Let go of the file, so that another process can take it. Nothing is given back."""
        self._chain.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unlock()

    def _append(self, line: dict[str, Any]) -> None:
        self._chain.refuse_broken()
        try:
            self.segment.apply(line)
        except ValueError as reason:
            what = f"{self.path}: {line['kind']}: {reason}"
            raise Refused(what, "see the ledger for what this run has spent") from None
        self._chain.write(line)
        self._chain.sync()


def _follow(segments: list[Segment], line: Line) -> None:
    """Count one line."""
    if isinstance(line, dict) and line.get("kind") == "open":
        segments.append(Segment(Header.read(line)))
    elif segments:
        segments[-1].apply(line)
    else:
        raise ValueError("a ledger starts with an open line")


def read(path: Path | str, marks: Sequence[Mark] = ()) -> list[Segment]:
    """Return a ledger's runs in order, after checking every line; refuse one without what `marks` knows of it.

    Guarantee: `charged` of each segment is at least the number of messages that its node sent in it. The
    exception is a simulation that was killed, resumed, and stopped before it had sent the same messages again.
    """
    path, segments = Path(path), list[Segment]()
    with _opened(path) as file:
        replay(path, file, partial(_follow, segments), marks)
    _refuse_other_node(path, segments)
    return segments


def first(path: Path | str) -> Header | None:
    """Return the header of a ledger's first run; None if it has no complete line. It reads only this line."""
    path, segments = Path(path), list[Segment]()
    with _opened(path) as file:
        replay(path, io.BytesIO(file.readline(LONGEST)), partial(_follow, segments))
    _refuse_other_node(path, segments)
    return segments[0].header if segments else None


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


def _refuse_change(path: Path, segments: Sequence[Segment], new: Header) -> None:
    old = segments[0].header
    if len(segments) > 1 or old.run != new.run:
        what = f"{path} holds {' and '.join(one.header.run for one in segments)}, and this is run {new.run}"
        raise Refused(what, "give each run a ledger of its own: choose another {out}", out=None)
    before, now = dataclasses.asdict(old), json.loads(json.dumps(dataclasses.asdict(new)))
    before["mechanism"] = described(old.mechanism).describe()  # with the keys that came later
    if changed := [key for key in before if before[key] != now[key]]:
        key = changed[0]
        what = f"{path}: {key} of run {old.run} was {before[key]} and is now {now[key]}"
        raise Refused(what, "resume with the configuration the run was started with, or start a new run")


def _refuse_other_node(path: Path, found: Sequence[Segment], node: int | None = None) -> None:
    """Refuse a ledger under the name of another node: what a record has spent is in its own node's."""
    named = re.fullmatch(r"node-(\d{1,9})\.jsonl", path.name)
    expected = int(named[1]) if named and node is None else node
    for header in (segment.header for segment in found if expected is not None):
        if header.node != expected:
            remedy = f"put node {expected}'s own back: what it has spent stays spent"
            raise Refused(f"{path} is the ledger of node {header.node}", remedy)


def short(digest: str) -> str:
    """Return what a ledger keeps of a message's hash of 256 bits: 128 in base64; nothing of a message without one."""
    if not digest or re.fullmatch(r"[A-Za-z0-9+/]{22}", digest):
        return digest
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ValueError(f"digest {digest!r:.80} is no hash of 256 bits")
    return b64encode(bytes.fromhex(digest[:32])).decode().rstrip("=")


def _whole(*values: object) -> bool:
    return all(type(value) is int and 0 <= value < _MOST for value in values)
