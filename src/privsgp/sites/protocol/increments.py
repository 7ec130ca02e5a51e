"""Messages in few bits: what a link's running sums grow by, as codes, for a receiver that has the sums before.

A header names running sums, and its signature is of them (frames.py). An increment is only another way to bring them.
Whatever is lost, doubled, late or restarted, both ends hold the sums that were signed, to the last bit. A message has
all increments since the step that its receiver says it has. The sender keeps no more of them than the exact sums are
long. It sends the exact sums to a receiver that is farther behind, or that has lost what an increment needs.

An increment is rounded relative to the model that the link carried last (transport/rounding.py). A process remembers
that model, and no commit does. After a restart, and after exact sums, an increment begins `anew`: from the mean of the
sums before it, which both ends hold.

Guarantee: a sender's sums are in its commit before an increment leaves, and what it keeps is x without their growth. No
answer, loss or crash changes either later.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from privsgp.transport.rounding import Rounding, width

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from privsgp.transport.link import Sums

    Link = tuple[int, int]

_HEAD = struct.Struct("<qqdq")


class Increment(NamedTuple):
    """The growth of a link's sums in one step."""

    before: int  # the step of the increment before it, −1 for the first
    step: int
    weight: float
    anew: bool
    codes: bytes

    def text(self) -> bytes:
        """Return what travels."""
        return _HEAD.pack(self.before, self.step, self.weight, self.anew) + self.codes


def increment_bytes(bits: int, weights: int) -> int:
    """Return the length of an increment; 0 where numbers are not rounded."""
    return 0 if bits == 32 else _HEAD.size + width(bits, weights)


def rounded(
    rounding: Rounding, link: Link, rows: tuple[Tensor, Tensor, float], sums: Sums, steps: tuple[int, int],
    *, anew: bool,
) -> tuple[Sums, Increment]:  # fmt: skip
    """Return a link's sums after a step, and the increment to them.

    Args:
        rounding: The rounding, which remembers the last model of the link.
        link: The two ends of the link.
        rows: The sender's x [1, d] and w [1], and the share that the link carries.
        sums: The sums before this step.
        steps: The step of the increment before, and this step.
        anew: Whether to start from x⁰, because the receiver may have lost the last model of the link.

    """
    x, w, share = rows
    if anew:
        rounding.begin(link, torch.from_numpy(sums))
    codes, weights = rounding.codes(steps[1], rounding.carrying([link], [share]), x, w)
    one = Increment(*steps, float(weights[0]), anew, codes.numpy().tobytes())
    return _after(rounding, link, one, sums), one


def _after(rounding: Rounding, link: Link, one: Increment, sums: Sums) -> Sums:
    """Return the sums after an increment."""
    codes = torch.frombuffer(bytearray(one.codes), dtype=torch.uint8)[None]
    weight = torch.tensor([one.weight], dtype=torch.float64)
    after = np.empty_like(sums)
    with np.errstate(over="ignore", invalid="ignore"):  # of what a peer has made up: its hash is checked next
        np.add(sums[:-1], rounding.shares(rounding.carrying([link], [0.0]), codes, weight)[0].numpy(), after[:-1])
        after[-1] = sums[-1] + one.weight
    return after


class SendingEnd:
    """The increments that may still be sent over a link."""

    def __init__(self, most: int) -> None:
        self.most, self.anew = most, True
        self._increments: list[Increment] = []

    def add(self, one: Increment) -> None:
        """Let an increment be sent: its sums are committed."""
        self._increments = [*self._increments, one][-self.most :] if self.most else []

    def since(self, after: int, step: int, *, continues: bool) -> list[Increment]:
        """Return the increments to a step that its receiver can read; nothing where it needs the exact sums.

        `after` is the receiver's newest step. It `continues` if it knows what the link carried then.
        """
        self._increments = [one for one in self._increments if one.step > after]
        found = [one for one in self._increments if one.step <= step]
        if found and found[0].before == after and found[-1].step == step and (continues or found[0].anew):
            return found
        self.anew = True
        return []

    def begins_anew(self) -> bool:
        """Tell whether the next increment has to begin anew; it is asked once for each."""
        anew, self.anew = self.anew, False
        return anew


class ReceivingEnd:
    """The receiver's end of a link: whether it can read increments that begin where the last ended."""

    def __init__(self, link: Link, rounding: Rounding | None) -> None:
        self.link, self.rounding = link, rounding
        self.continues = False  # whether it knows what the link carried at the newest step

    def let_in(self, *, rounded: bool) -> None:
        """Keep that a message was let in: increments, or exact sums."""
        self.continues = rounded

    def sums(self, text: bytes | memoryview, after: int, sums: Sums) -> Sums | None:
        """Return the sums that increments lead to from those of a step; None where this end cannot read them."""
        if self.rounding is None:
            return None
        continues = self.continues
        for one in _read(text, _HEAD.size + self.rounding.width):
            if one.step <= after:
                continue
            if one.before != after or not (one.anew or continues):
                return None
            self.continues = False  # until the message is let in
            if one.anew:
                self.rounding.begin(self.link, torch.from_numpy(sums))
            sums, after, continues = _after(self.rounding, self.link, one, sums), one.step, True
        return sums


def _read(text: bytes | memoryview, size: int) -> Iterator[Increment]:
    for at in range(0, len(text), size):
        before, step, weight, anew = _HEAD.unpack_from(text, at)
        yield Increment(before, step, weight, bool(anew), bytes(text[at + _HEAD.size : at + size]))
