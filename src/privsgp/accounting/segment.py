"""One run in a ledger: what its lines say was promised, paid for and sent.

A line comes from a file that anybody may have written. So every value is looked at before it is used: its type, its
range, its letters. What is left can be printed, be part of a file's name, and is counted in a moment.
"""

from __future__ import annotations

import dataclasses
import math
import re
from base64 import b64encode
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from privsgp.accounting.mechanisms import Relation, described
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator


FORMATS = (1, 2, 3)  # 2 knows short lines: strings; in 3 hashes of messages are BLAKE3
MOST_AHEAD = 64
_MOST = 2**53
_COUNTS = ("samples", "period", "aggregated", "spare", "honest", "partners")  # of a mechanism: whole numbers
_SHORT = re.compile(r"[A-Za-z0-9+/]{22}")
_WORDS = ("mechanism", "sampling")


_MOST_STRETCHES = 10_000  # no run is interrupted so often; a forged ledger may say so


class Stretches:
    """A number for every step, 0 but for what was put. Memory grows with the stretches, not with the steps."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._values: list[int] = []

    def __getitem__(self, step: int) -> int:
        place = bisect_right(self._starts, step)
        return self._values[place - 1] if place else 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stretches) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment] # it changes

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield (first, stop, value) of each stretch whose value is not 0."""
        stops = self._starts[1:]
        return (part for part in zip(self._starts, stops, self._values, strict=False) if part[2])

    def between(self, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first, stop, value) of each stretch of the steps first … stop − 1, zeros too."""
        place = bisect_right(self._starts, first)
        while first < stop:
            end = min(stop, self._starts[place]) if place < len(self._starts) else stop
            yield first, end, self._values[place - 1] if place else 0
            first, place = end, place + 1

    def put(self, first: int, stop: int, value: int) -> None:
        """Set the steps first … stop − 1; ValueError where that makes more stretches than any run has."""
        if value and self._starts and self._starts[-1] == first and self._values[-2] == value:
            self._starts[-1] = stop  # the last stretch grows: nearly always
            return
        after = self[stop]
        low, high = bisect_left(self._starts, first), bisect_right(self._starts, stop)
        before = self._values[low - 1] if low else 0
        new = [(first, value)] if value != before else []
        new += [(stop, after)] if after != value else []
        self._starts[low:high] = [start for start, _ in new]
        self._values[low:high] = [kept for _, kept in new]
        if len(self._starts) > _MOST_STRETCHES:
            raise ValueError(f"more than {_MOST_STRETCHES} stretches of steps: no run is interrupted so often")


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a segment is about: who releases what, how often, under which budget.

    `mechanism` is `Mechanism.describe()`; `budget` is {"epsilon", "delta"}, or None where σ was given and ε is only
    reported; `steps` is K and `spare` the further releases that the noise was calibrated for. `layout` stands for what
    decides which record lies on which node: another run may go on only where each record is where it has spent. `site`
    is what people call the node; "" where it has a number only.
    """

    node: int
    run: str
    mechanism: dict[str, Any]
    budget: dict[str, float] | None
    relation: Relation
    steps: int
    spare: int
    simulation: bool
    layout: str = ""
    site: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain values; of a node without a name none."""
        values = dataclasses.asdict(self)
        return values if self.site else {key: value for key, value in values.items() if key != "site"}

    @property
    def allowance(self) -> int | None:
        """The number of releases the budget pays for; None without a budget."""
        return None if self.budget is None else self.steps + self.spare

    @classmethod
    def read(cls, line: dict[str, Any]) -> Header:
        """Return the header in an `open` line; ValueError says what is wrong with it."""
        if line.get("format") not in FORMATS:
            raise ValueError(f"it is not of format {' or '.join(map(str, FORMATS))}")
        try:
            header = cls(**{k: v for k, v in line.items() if k not in ("kind", "format")})
        except TypeError as error:
            raise ValueError(f"{error!s:.200}") from None
        header.refuse_odd()
        return header

    def refuse_odd(self) -> None:
        """Raise ValueError, with the key, where a value is not of its type and range."""
        checks = {
            "node": _whole(self.node),
            "run": _letters(self.run),
            "mechanism": isinstance(self.mechanism, dict) and all(_plain(k, v) for k, v in self.mechanism.items()),
            "budget": self.budget is None or _is_budget(self.budget),
            "relation": self.relation in ("zero-out", "replace-one"),
            "steps": _whole(self.steps),
            "spare": _whole(self.spare),
            "simulation": isinstance(self.simulation, bool),
            "layout": _letters(self.layout),
            "site": isinstance(self.site, str) and re.fullmatch(r"(\w[\w.-]{0,63})?", self.site) is not None,
        }
        if wrong := [key for key, right in checks.items() if not right]:
            raise ValueError(f"{wrong[0]} = {getattr(self, wrong[0])!r:.80} cannot be")
        try:
            described(self.mechanism)
        except (Refused, TypeError, KeyError) as error:
            raise ValueError(f"no mechanism is like that: {getattr(error, 'what', error)!s:.200}") from None


@dataclass
class Segment:
    """One run in a ledger, as its lines so far tell it.

    Of steps it knows how often each was paid for and at which attempt it was last sent, as stretches; of messages it
    keeps the hashes of those from `since` on (None: of none), which are all that a process that goes on may repeat.
    """

    header: Header
    charged: int = 0
    closed: bool = False
    since: int | None = field(default=None, repr=False, compare=False)
    _paid: Stretches = field(default_factory=Stretches, repr=False)  # attempts that were paid for
    _before: Stretches = field(default_factory=Stretches, repr=False)  # the same, before what was last paid for
    _sent: Stretches = field(default_factory=Stretches, repr=False)  # 1 + the attempt last sent
    _digests: dict[int, str] = field(default_factory=dict, repr=False, compare=False)
    following: tuple[int, int] = field(default=(0, 0), repr=False)  # (step, attempt) after the last one noted

    @property
    def left(self) -> int | None:
        """How many more releases the budget pays for; None without a budget."""
        return None if self.header.allowance is None else max(0, self.header.allowance - self.charged)

    @property
    def sent(self) -> int:
        """How many steps have a message that was noted as sent."""
        return sum(stop - first for first, stop, _ in self._sent)

    def next_attempt(self, step: int) -> int:
        """Return the first attempt of `step` that was never paid for, so surely never sent."""
        return self._paid[step]

    def last_attempt(self, first: int, stop: int) -> int:
        """Return the first attempt at which none of the steps first … stop − 1 was paid for."""
        return max((paid for _, _, paid in self._paid.between(first, stop)), default=0)

    def paid(self, first: int, stop: int, attempt: int) -> int:
        """Return how many steps from `first` on are paid for at this attempt, whether they were sent or not."""
        end = next((a for a, _, paid in self._paid.between(first, stop) if paid != attempt + 1), stop)
        return end - first

    def unpaid(self, first: int, stop: int, attempt: int) -> int:
        """Return how many steps from `first` on were not paid for at this attempt."""
        end = next((a for a, _, paid in self._paid.between(first, stop) if paid > attempt), stop)
        return end - first

    def digest_of(self, step: int) -> str | None:
        """Return the hash of the message last sent at `step`, where an earlier process noted it; see `short`."""
        return self._digests.get(step)

    def unsent(self) -> Stretches:
        """Return the steps that are paid for and have no `sent` line, by the attempt that is their next.

        What is left where one was returned is none of them: it was given back once.
        """
        held = Stretches()
        for first, stop, paid in self._paid:
            for a, b, sent in self._sent.between(first, stop):
                for c, d, before in self._before.between(a, b):
                    if sent != paid and before < paid:
                        held.put(c, d, paid)
        return held

    def sent_at(self, step: int) -> int | None:
        """Return the attempt at which `step` was last sent, where the ledger knows it."""
        return self._sent[step] - 1 if self._sent[step] else None

    def apply(self, line: dict[str, Any]) -> None:
        """Count one line; ValueError says why it cannot follow the lines before it."""
        if self.closed:
            raise ValueError("it follows the segment's close")
        match line:
            case {"kind": "reserve", "first": first, "count": count, "attempt": at} if _whole(first, count, at):
                self._reserve(first, count, at)
            case {"kind": "sent", "step": step, "attempt": at, "digest": str(digest)} if _whole(step, at):
                self.note(step, at, short(digest))
            case {"kind": "sent", "first": first, "count": count, "attempt": at} if _whole(first, count, at):
                self._note_many(first, count, at)
            case {"kind": "return", "first": first, "count": count, "attempt": at} if _whole(first, count, at):
                self._return(first, count, at)
            case {"kind": "close"}:
                self.closed = True
            case _:
                raise ValueError(f"no line of format {FORMATS[-1]} is a {line.get('kind')!r:.80} with these keys")

    def note(self, step: int, attempt: int, digest: str) -> None:
        """Count one message."""
        self._note_many(step, 1, attempt)
        self._digests.pop(step, None)
        if self.since is not None and step >= self.since:
            self._digests[step] = digest

    def note_next(self, digest: str) -> None:
        """Count the message after the last one noted."""
        if self.closed:
            raise ValueError("it follows the segment's close")
        step, attempt = self.following
        if self.since is None and not self._digests and self._paid[step] == attempt + 1:  # nearly always
            self._sent.put(step, step + 1, attempt + 1)
            self.following = step + 1, attempt
        else:
            self.note(step, attempt, digest)

    def _note_many(self, first: int, count: int, attempt: int) -> None:
        unpaid = [step for step, _, paid in self._paid.between(first, first + count) if attempt >= paid]
        if unpaid or not count:
            raise ValueError(f"step {min(unpaid, default=first)}, attempt {attempt} was never reserved")
        self._sent.put(first, first + count, attempt + 1)
        self.following = first + count, attempt

    def _reserve(self, first: int, count: int, attempt: int) -> None:
        if not 0 < count <= MOST_AHEAD:
            raise ValueError(f"{count} steps from step {first}: a line reserves 1 to {MOST_AHEAD} steps from 0 on")
        if self.left is not None and count > self.left:
            raise ValueError(f"{count} releases with {self.left} left in the budget")
        before = list(self._paid.between(first, first + count))
        for step, _, paid in before:
            if attempt < paid:
                raise ValueError(f"step {step}, attempt {attempt} was reserved before")
        for part in before:
            self._before.put(*part)
        self._paid.put(first, first + count, attempt + 1)
        self.charged += count

    def _return(self, first: int, count: int, attempt: int) -> None:
        stop = first + count
        wrong = [a for a, _, paid in self._paid.between(first, stop) if paid != attempt + 1]
        wrong += [a for a, _, sent in self._sent.between(first, stop) if sent == attempt + 1]
        if wrong or not count:
            step = min(wrong, default=first)
            raise ValueError(f"step {step}, attempt {attempt} is not a reserved step that was never sent")
        for a, b, before in self._before.between(first, stop):  # attempts may have been passed over
            self._paid.put(a, b, min(before, attempt))
        self.charged -= count


def short(digest: str) -> str:
    """Return what a ledger keeps of a message's hash of 256 bits: 128 in base64; nothing of a message without one."""
    if not digest or _SHORT.fullmatch(digest):
        return digest
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ValueError(f"digest {digest!r:.80} is no hash of 256 bits")
    return b64encode(bytes.fromhex(digest[:32])).decode().rstrip("=")


def _whole(*values: object) -> bool:
    return all(type(value) is int and 0 <= value < _MOST for value in values)


def _letters(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9A-Za-z]{0,64}", value) is not None


def _number(value: object) -> bool:
    return _whole(value) or (isinstance(value, float) and math.isfinite(value))


def _plain(key: str, value: object) -> bool:
    """Tell whether a mechanism's value is of the kind that is counted with."""
    if key in _WORDS:
        return _letters(value)
    if key == "schedule":  # of release 1.0.0rc1; nothing is counted with it (`described`)
        return True
    return _whole(value) if key in _COUNTS and value is not None else value is None or _number(value)


def _is_budget(value: object) -> bool:
    if not isinstance(value, dict) or set(value) != {"epsilon", "delta"} or not all(map(_number, value.values())):
        return False
    return bool(value["epsilon"] > 0 and 0 < value["delta"] < 1)
