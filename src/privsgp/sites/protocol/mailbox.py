"""Outgoing and received messages: for each link the newest one, and a few before it if they are small.

Messages are state: the newest makes all before it needless, so nobody has to keep more than one. A few are kept if they
are small, so that a site which is a moment behind uses the message of its own step. Without disturbance a run then has
the same bits as the one that a single process would have made.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.sites.protocol.frames import Frame, Header, Rejected, bytes_of, opened, read_body, refuse_body, refuse_head
from privsgp.sites.protocol.increments import Increment, ReceivingEnd, SendingEnd
from privsgp.sites.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from privsgp.sites.agreement import Agreement
    from privsgp.transport.rounding import Rounding

_TICK = 0.5  # seconds after which a wait looks again: time passes, and people ask a site to stop
_SMALL = 1 << 20  # bytes of a message of which more than the newest is kept


def wait_for(changed: threading.Condition, done: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds, checking after each change; return whether it holds after the given seconds."""
    until = time.monotonic() + seconds
    with changed:
        while not (is_done := done()) and (remaining := until - time.monotonic()) > 0:
            changed.wait(min(remaining, _TICK))
        return is_done


def counted(counts: Counter[int], peer: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield pieces of a message, and count their bytes."""
    for piece in pieces:
        counts[peer] += len(piece)
        yield piece


def depth(agreement: Agreement) -> int:
    """Return how many messages of a link are kept."""
    return len(agreement.roster) + 1 if agreement.message_bytes <= _SMALL else 2


class Outbox:
    """The messages that are to be sent to each target; they are posted when they are durable, and not before."""

    def __init__(self, kept: int, changed: threading.Condition | None = None, increments: int = 0) -> None:
        self.kept, self.changed = kept, changed or threading.Condition()
        self.bytes_to = Counter[int]()  # that have left, by target
        self._frames: dict[int, list[Frame]] = {}
        self._ends = defaultdict[int, SendingEnd](lambda: SendingEnd(increments))  # that many are kept for a target

    def post(self, frame: Frame, increment: Increment | None = None) -> None:
        """Let a message be sent; it stands for all before it."""
        with self.changed:
            frames = self._frames.setdefault(frame.header.target, [])
            frames.append(frame)
            del frames[: -self.kept]
            if increment is not None:
                self._ends[frame.header.target].add(increment)
            self.changed.notify_all()

    def begins_anew(self, target: int) -> bool:
        """Tell, once for each, whether the next increment for a target has to begin anew."""
        with self.changed:
            return self._ends[target].begins_anew()

    def pieces(self, frame: Frame, after: int, *, continues: bool) -> Iterator[bytes]:
        """Yield what brings a message to its target, which has the one of the step `after`."""
        with self.changed:
            found = self._ends[frame.header.target].since(after, frame.header.step, continues=continues)
        yield from frame.pieces(found)

    def next(self, target: int, after: int) -> Frame | None:
        """Return the oldest message that is kept of those after a step; None where there is none."""
        with self.changed:
            return next((frame for frame in self._frames.get(target, ()) if frame.header.step > after), None)

    def of_step(self, target: int, step: int) -> Frame | None:
        """Return the message of a step, if it is kept."""
        found = self.next(target, step - 1)
        return found if found is not None and found.header.step == step else None

    def wait(self, target: int, after: int, seconds: float, ended: Callable[[], bool]) -> Frame | None:
        """Return such a message, waiting for it for some time."""
        wait_for(self.changed, lambda: ended() or self.next(target, after) is not None, seconds)
        return self.next(target, after)


class Inbox:
    """The messages that have arrived over each link and were not taken yet, behind the border.

    A site that an old backup has replaced would find fault with honest messages: they are far ahead of what it knows.
    So its inbox is closed until peers have had the time to show what they have from the site.
    """

    def __init__(
        self, agreement: Agreement, node: int, kept: int, store: Store | None = None,
        changed: threading.Condition | None = None, *, is_open: bool = True, rounding: Rounding | None = None,
    ) -> None:  # fmt: skip
        self.agreement, self.node, self.kept, self.is_open = agreement, node, kept, is_open
        self.store, self.changed = store or Store(agreement, node), changed or threading.Condition()
        self._frames: dict[int, list[Frame]] = {}
        self._last: dict[int, Frame] = {}  # the newest of each source, taken or not
        self._taken: dict[int, tuple[int, NDArray[np.float64]]] = {}  # step and sums of the newest that was taken
        self._nothing = np.zeros(agreement.weights + 1)
        self._incarnation: dict[int, int] = {}
        self._stopped: set[int] = set()
        self._old: dict[int, Frame] = {}  # by source: the last header that was no news; a copy of it may have sent it
        self._ends = {j: (threading.RLock(), ReceivingEnd((j, i), rounding)) for j, i in agreement.links if i == node}
        self.bytes_from = Counter[int]()
        self.arrived: dict[int, float] = {}  # by source: when the newest message was let in, on the monotonic clock

    def stop(self, source: int) -> None:
        """Let nothing more in over the link from a source, until this process ends."""
        with self.changed:
            self._stopped.add(source)
            self._frames.pop(source, None)

    def stopped(self) -> set[int]:
        """Return the sources whose link was stopped."""
        with self.changed:
            return set(self._stopped)

    def open(self) -> None:
        """Let messages in from now on."""
        with self.changed:
            self.is_open = True
            self.changed.notify_all()

    def restore(self, source: int, step: int, sums: NDArray[np.float64]) -> None:
        """Note what an earlier process of this site had taken from a link."""
        with self.changed:
            self._taken[source] = step, sums

    def newest(self, source: int) -> int:
        """Return the step of the newest message from a source, −1 before the first."""
        return self.last(source)[0]

    def proof(self, source: int) -> dict[str, Any]:
        """Return what this site has of a source, and the source's own signed word for how far it was.

        After a crash the word may be of a later step: the message itself was not in the last commit.
        """
        with self.changed:
            newest = self.store.seen.get(source)
            continues = source in self._ends and self._ends[source][1].continues
            evidence = None if newest is None else newest.evidence()
            return {"newest": self.newest(source), "proof": evidence, "continues": continues}

    def shown(self, source: int) -> dict[str, Any]:
        """Return what a hello shows a source: of its headers that were no news the last, else its newest.

        Only the source knows whether it signed such a header itself, or a copy of it did. Its newest header is among
        the hello's `heads` too.
        """
        with self.changed:
            old = self._old.get(source)
            return self.proof(source) | ({} if old is None else {"proof": old.evidence()})

    def last(self, source: int) -> tuple[int, NDArray[np.float64]]:
        """Return the step and the sums of a source's newest message; −1 and zeros before the first."""
        with self.changed:
            last = self._last.get(source)
            return self._taken.get(source, (-1, self._nothing)) if last is None else (last.header.step, last.sums())

    def is_news(self, header: Header, signature: bytes) -> bool:
        """Tell, before the body is read, whether a message is newer than all that came; reject two of one step.

        A closed inbox judges none. Guarantee: of one link and step, one message is ever let in.
        """
        if not self.is_open:
            return False
        with self.changed:
            if header.source in self._stopped:
                raise Rejected("stopped", "a message over a link that this site has stopped")
            last, this = self.store.seen.get(header.source), Frame(header, signature, b"")
            news, process = header.step > self.newest(header.source), self._incarnation.get(header.source, 0)
            is_late = news and header.incarnation < process
            if last is not None and header != last.header and (is_late or header.step <= last.header.step):
                self._old[header.source] = this
            if last is not None and last.header.step == header.step and last.header.sha256 != header.sha256:
                evidence = {"first": last.evidence(), "second": this.evidence()}
                raise Rejected("equivocation", f"two messages of step {header.step}", evidence)
            if is_late:
                raise Rejected(
                    "incarnation", f"step {header.step} of process {header.incarnation}, after one of process {process}"
                )
            return news

    def receive(self, peer: int, first: bytes, rest: Iterator[bytes]) -> None:
        """Read a message of a peer's, piece by piece, through all checks; one that is not news is not read."""
        (header, signature, count), pieces = opened(first), counted(self.bytes_from, peer, rest)
        self.bytes_from[peer] += len(first)
        refuse_head(self.agreement, peer, self.node, header, signature)
        if self.is_news(header, signature):
            if count > (most := self.agreement.most_increments):
                raise Rejected("length", f"{count} increments, where {most} are as long as exact sums")
            length = count * self.agreement.increment_bytes or header.length
            self.put(Frame(header, signature, read_body(pieces, length)), rounded=count > 0)

    def put(self, frame: Frame, *, rounded: bool = False) -> None:
        """Let a message in, after all checks; drop one that has become old meanwhile, or that cannot be read here.

        The body of a `rounded` one is increments. A message is checked without the lock that everybody waits for.
        """
        source = frame.header.source
        reading, end = self._ends[source]
        with reading:  # one message of a source after the other
            if not self.is_news(frame.header, frame.signature):
                return
            after, before = self.last(source)
            if rounded:
                if (sums := end.sums(frame.body, after, before)) is None:
                    return
                frame = Frame(frame.header, frame.signature, bytes_of(sums))
            most = self.agreement.most_weight((source, self.node), after, frame.header.step)
            refuse_body(frame, before, most, self.agreement.config.engine.dtype)
            with self.changed:
                if self.is_news(frame.header, frame.signature):
                    self._let_in(source, frame)
                    end.let_in(rounded=rounded)

    def _let_in(self, source: int, frame: Frame) -> None:
        self.store.see(frame)
        self._last[source] = frame
        self.arrived[source] = time.monotonic()
        self._incarnation[source] = frame.header.incarnation
        frames = self._frames.setdefault(source, [])
        frames.append(frame)
        del frames[: -self.kept]
        self.changed.notify_all()

    def take(self, k: int) -> list[Frame]:
        """Return what is to be added at step k, older steps first: of each link the newest up to k, else a later."""
        taken = []
        with self.changed:
            for source, frames in self._frames.items():
                if not frames:
                    continue
                upto = [frame for frame in frames if frame.header.step <= k]
                frame = upto[-1] if upto else frames[-1]
                self._frames[source] = [one for one in frames if one.header.step > frame.header.step]
                self._taken[source] = frame.header.step, frame.sums()
                taken.append(frame)
        return sorted(taken, key=lambda frame: (frame.header.step, frame.header.source))
