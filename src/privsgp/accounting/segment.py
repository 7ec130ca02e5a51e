"""One run in a ledger: what its lines say was promised, paid for and sent.

A line comes from a file that anybody may have written. So every value is looked at before it is used: its type, its
range, its letters. What is left can be printed, be part of a file's name, and is counted in a moment.
"""

from __future__ import annotations

import dataclasses
import math
import re
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Any

from privsgp.accounting.mechanisms import Relation, described
from privsgp.errors import Refused

FORMATS = (1, 2, 3)  # 2 knows short lines: strings; in 3 hashes of messages are BLAKE3
MOST_AHEAD = 64
_MOST = 2**53
_COUNTS = ("samples", "period", "aggregated", "spare", "honest", "partners")  # of a mechanism: whole numbers
_SHORT = re.compile(r"[A-Za-z0-9+/]{22}")
_WORDS = ("mechanism", "sampling")


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
    digest: str = field(default="", compare=False)  # of the last message that a line notes; see `short`

    @property
    def left(self) -> int | None:
        """How many more releases the budget pays for; None without a budget."""
        return None if self.header.allowance is None else max(0, self.header.allowance - self.charged)

    def apply(self, line: dict[str, Any] | str) -> None:
        """Count one line; ValueError says why it cannot follow the lines before it."""
        if self.closed:
            raise ValueError("it follows the segment's close")
        match line:
            case str(digest):
                step, at = self.following
                self._note(step, 1, at, digest)
            case {"kind": "reserve", "first": first, "count": count, "attempt": at} if _whole(first, count, at):
                self._reserve(first, count, at)
            case {"kind": "sent", "step": step, "attempt": at, "digest": str(digest)} if _whole(step, at):
                self._note(step, 1, at, short(digest))
            case {"kind": "sent", "first": first, "count": count, "attempt": at} if _whole(first, count, at):
                self._note(first, count, at)
            case {"kind": "return", "first": first, "count": count, "attempt": at} if _whole(first, count, at):
                self._return(first, count, at)
            case {"kind": "close"}:
                self.closed = True
            case _:
                raise ValueError(f"no line of format {FORMATS[-1]} is a {line.get('kind')!r:.80} with these keys")

    def _reserve(self, first: int, count: int, attempt: int) -> None:
        if not 0 < count <= MOST_AHEAD:
            raise ValueError(f"{count} steps from step {first}: a line reserves 1 to {MOST_AHEAD} steps from 0 on")
        if self.left is not None and count > self.left:
            raise ValueError(f"{count} releases with {self.left} left in the budget")
        if (first, attempt) != (self.stop, self.attempt):
            self.next = first
        self.stop, self.attempt = first + count, attempt
        self.charged += count

    def _note(self, first: int, count: int, attempt: int, digest: str = "") -> None:
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
