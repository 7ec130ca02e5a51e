"""The nodes' ledgers during a run: every release is paid for, durably, before its message leaves.

Steps are paid for a few at a time, and in a ledger a step is the number of a release of its node: where nodes act one
at a time, each has made as many as the clock says, and several or none in one step of the run.

After a crash, what was reserved counts as spent. With a seed the same noise comes again, so a repeated step is the same
message and goes out free; if its bytes differ (another machine, another version) it is not sent, and everything since
the checkpoint is redone with fresh noise and charged. Without a seed noise is always fresh, so every repeated step is a
new release at its next attempt (privacy.md, "Crashes").
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

from blake3 import blake3

from privsgp.accounting.book import Book
from privsgp.accounting.ledger import MOST_AHEAD, Header, Ledger, make_room, short, together
from privsgp.devices import device_of
from privsgp.engine.checkpoint import known_ledgers
from privsgp.errors import Diverged, Interrupted, Refused, ReplayDiffers
from privsgp.threads import one_thread_each
from privsgp.transport import forms
from privsgp.transport.rendezvous import PeerLost, World

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from torch import Tensor

    from privsgp.accounting.ledger import Seen
    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.engine.folder import Folder
    from privsgp.engine.spec import RunSpec


_EXPECTED = (Interrupted, PeerLost, Diverged, Refused)  # ends of a run after which it is known what was sent


class BudgetGuard:
    """The ledgers of all nodes of this process; nothing to pay for methods without noise."""

    def __init__(self, spec: RunSpec, folder: Folder, world: World | None = None) -> None:
        self.spec, self.folder = spec, folder
        self.world = world or World()
        self.ledgers: list[Ledger] = []
        self.since = 0  # the step that the run goes on from: of messages before it, no hash is asked for
        self.committed: int | None = None  # the last step made durable before it was sent; None where none is
        self._book = None if spec.simulation else Book()
        self._attempts: list[int] = []
        self._until = 0
        self._reach: int | None = None
        self._announced = False
        self._spent = [0] * len(spec.here)

    def __enter__(self) -> Self:
        self.spec.protection.refuse_overspending(self.spec.here)
        with contextlib.ExitStack() as opened:  # where one is refused, the others are unlocked
            self.world.all_or_none(lambda: self._open_all(opened))
            opened.pop_all()
        return self

    def _open_all(self, opened: ExitStack) -> None:
        here = self.spec.here if self.spec.algorithm.private else range(0)
        make_room(len(here))
        known = known_ledgers(self.folder) if here else {}
        self.ledgers = [opened.enter_context(self._open(i, known.get(i, []))) for i in here]
        self._remember()

    def _open(self, i: int, known: list[Seen]) -> Ledger:
        """Open a node's ledger: what the run's folder knows of it, and what is known outside, must be in it."""
        header, earlier = self._header(i), self.spec.protection.after(i)
        first = (earlier[0].header if earlier else header).run
        since = self.committed
        if since is None and self.spec.simulation:
            since = self.spec.released(i, self.since)
        seen = known + ([] if self._book is None else self._book.seen(first).get(i, []))
        return Ledger.open(self.folder.ledger(i), header, earlier, seen, since, self.committed)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.ledgers and kind is None:
            together(self.ledgers, Ledger.close)
        elif self.ledgers and kind is not None and issubclass(kind, _EXPECTED) and not self._announced:
            with contextlib.suppress(Refused):  # a full disk, say: why the run ends is what matters
                together(self.ledgers, Ledger.give_back)
        self._spent = [ledger.charged for ledger in self.ledgers] or self._spent
        with contextlib.nullcontext() if kind is None else contextlib.suppress(Refused):
            self._remember()
        for ledger in self.ledgers:
            ledger.unlock()

    def reserve(self, k: int, attempt: int) -> bool:
        """Tell whether step k is paid for by every node, paying where it is not; False when a budget is spent."""
        if not self.ledgers or k < self._until:
            return True
        if self._reach is None:  # asked once: all processes count on from there alike
            pairs = zip(self.ledgers, self.spec.mechanisms, strict=True)
            own = min(self._reach_of(ledger, mechanism, k, attempt) for ledger, mechanism in pairs)
            self._reach = min(self.world.all_gather(own, forms.whole(0, self.spec.steps)))
        stop = min(self._stop(k), self._reach)
        if stop <= k:
            return False
        paid = together(self.ledgers, lambda ledger: self._pay(ledger, k, stop, attempt))
        self._attempts = [at for _, at in paid]
        self._until = stop if all(whole for whole, _ in paid) else k
        return k < self._until

    @property
    def _knows_unsent(self) -> bool:
        """Whether a step that was paid for and has no line was surely not sent, or is the same message again."""
        return self.spec.simulation or self.committed is not None

    def settle(self, k: int, x: Tensor) -> None:
        """Note the messages of the last committed step where a crash came between the two; x are the committed ones.

        Guarantee: steps after the commit were not sent. A ledger that knows of one has a commit that was put back, and
        one that knows another message of its step has a commit of another life of the run.
        """
        for place, ledger in enumerate(self.ledgers):
            if (noted := ledger.segment.following[0] - 1) > k:
                self._announced = True  # nothing is given back: which of the steps were sent is not known
                held = f"{self.folder.checkpoint} is of step {k}" if k >= 0 else f"{self.folder.checkpoint} is lost"
                raise Refused(
                    f"{held}, and {ledger.path} knows of step {noted}",
                    "restore the run folder as it was when the run stopped: this one is a mixture",
                )
            digest = _digest(x[place]) if self._may_be_hashed(x) else ""
            if ledger.holds(k):
                ledger.sent(k, 0, digest)
            elif digest and ledger.digest_of(k) not in (None, "", short(digest)):
                self._announced = True
                raise Refused(
                    f"{self.folder.checkpoint} holds another message of step {k} than {ledger.path} knows of",
                    "restore the run folder as it was when the run stopped: two messages of one step are two releases",
                )

    def record(self, k: int, x: Tensor) -> None:
        """Note the messages of step k, before they leave; all threads hash them."""
        rows = list(x) if self.ledgers and self._may_be_hashed(x) else []
        for place, digest in enumerate(one_thread_each(_digest, rows) or [""] * len(self.ledgers)):
            self._note(place, k, digest)

    def _may_be_hashed(self, message: Tensor) -> bool:
        """From a GPU the bytes never come to the host; of what only a sum may be seen, a hash would be seen too.

        Secret noise never comes again: of messages that nobody else gets, there is nothing to compare a hash with.
        """
        if not device_of(message).in_host_memory or (self.world.alone and not self._knows_unsent):
            return False
        return self.spec.simulation or self.spec.mechanisms[0].seen_together == 1

    def record_one(self, node: int, number: int, message: Tensor) -> None:
        """Note one node's message, by the number of its release."""
        if self.ledgers:
            self._note(node - self.spec.here.start, number, _digest(message) if self._may_be_hashed(message) else "")

    def _note(self, place: int, number: int, digest: str) -> None:
        ledger, attempt = self.ledgers[place], self._attempts[place]
        if ledger.segment.sent_at(number) != attempt:
            ledger.sent(number, attempt, digest)
        elif ledger.digest_of(number) != short(digest):
            raise ReplayDiffers

    def attempt(self, k: int) -> int:
        """Return at which attempt a simulation goes on from step k: a killed process may have begun a new one."""
        ledgers = self.ledgers if self._knows_unsent else []
        begun = [self._next_attempt(ledger, self._between(ledger, k)) - 1 for ledger in ledgers]
        return max(begun, default=0)

    def _next_attempt(self, ledger: Ledger, numbers: range) -> int:
        return ledger.segment.last_attempt(numbers.start, numbers.stop)

    def refund(self) -> None:
        """Give back what was paid ahead, because the run goes back to its checkpoint with fresh noise."""
        together(self.ledgers, Ledger.give_back)
        self._until, self._reach = 0, None

    def announce(self, k: int, attempt: int) -> None:
        """Pay for step k at a new attempt: all processes take it up from the ledgers when they begin again."""
        self.refund()
        together(self.ledgers, lambda ledger: ledger.reserve(self._between(ledger, k).start, 1, attempt))
        self._announced = True

    def heads(self) -> dict[str, tuple[int, str]]:
        """Return what a checkpoint knows of each node's ledger, and keep it in the budget book too."""
        self._remember()
        return heads(self.ledgers)

    def _remember(self) -> None:
        """Keep in the budget book how far the ledgers are.

        Guarantee: a budget book that cannot be written ends the run before the next release.
        """
        if self._book is not None and self.ledgers:
            known = {int(node): seen for node, seen in heads(self.ledgers).items()}
            self._book.remember(self.folder.run or "", known)

    def releases(self) -> list[int]:
        """Return how many releases each node is charged for."""
        return self._spent

    def _between(self, ledger: Ledger, first: int, stop: int | None = None) -> range:
        """Return the numbers of a node's releases in the steps first … stop − 1, or to the end."""
        node = ledger.segment.header.node
        return range(*(self.spec.released(node, k) for k in (first, self.spec.steps if stop is None else stop)))

    def _stop(self, k: int) -> int:
        """Return the step up to which to pay: not far where a crash would be paid from the spare.

        Half of the spare goes to checkpoints.
        """
        spec, ends = self.spec, []
        for node in spec.here:
            repeats = None if self._knows_unsent else self._repeats(node)
            ahead = MOST_AHEAD if repeats is None else min(MOST_AHEAD, repeats // 2)
            ends.append(spec.until(node, spec.released(node, k) + max(1, ahead)))
        return max(k + 1, min(ends))

    def _repeats(self, node: int) -> int | None:
        """Return how many repeats a budget pays for, or were counted where noise was fixed by hand; None: any."""
        p = self.spec.protection
        if p.allowance is None:
            return p.mechanisms[node].redo_limit
        return p.allowance[node] - self.spec.released(node, self.spec.steps)

    def _reach_of(self, ledger: Ledger, mechanism: Mechanism, k: int, attempt: int) -> int:
        """Return the step up to which a node can pay; a simulation goes on for nothing over steps already paid for."""
        left, numbers = ledger.segment.left, self._between(ledger, k)
        paid = ledger.segment.paid(numbers.start, numbers.stop, attempt) if self._knows_unsent else 0
        again, most = ledger.segment.charged - paid - numbers.start, mechanism.redo_limit
        if ledger.segment.closed or (most is not None and again > most):
            return k
        if left is None:
            return self.spec.steps
        return self.spec.until(ledger.segment.header.node, numbers.start + paid + left)

    def _pay(self, ledger: Ledger, k: int, stop: int, attempt: int) -> tuple[bool, int]:
        """Pay for the steps k … stop − 1; return whether all of them are paid for, and at which attempt."""
        numbers = self._between(ledger, k, stop)
        if not self._knows_unsent:
            attempt = self._next_attempt(ledger, numbers)
        while numbers:
            paid = ledger.segment.paid(numbers.start, numbers.stop, attempt) if self._knows_unsent else 0
            unpaid = ledger.segment.unpaid(numbers.start, numbers.stop, attempt)
            paid = paid or ledger.reserve(numbers.start, unpaid, attempt)
            if not paid:
                break
            numbers = numbers[paid:]
        return not numbers, attempt

    def _header(self, i: int) -> Header:
        p, spec = self.spec.protection, self.spec
        epsilon, releases = p.budgets[i], spec.released(i, spec.steps)
        return Header(
            node=i,
            run=self.folder.run or "",
            mechanism=p.mechanisms[i].describe(),
            budget=None if epsilon is None else {"epsilon": epsilon, "delta": p.deltas[i]},
            relation=p.relation,
            steps=releases,
            spare=0 if p.allowance is None else p.allowance[i] - releases,
            simulation=spec.simulation,
            layout=spec.layout,
            site=spec.sites[i] if spec.sites else "",
        )


def heads(ledgers: Sequence[Ledger]) -> dict[str, tuple[int, str]]:
    """Return by node what is charged in a ledger, and its head."""
    seen = ((one.segment.header.node, one.seen("")) for one in ledgers)
    return {str(node): (charged, head) for node, (charged, head, _) in seen}


def _digest(message: Tensor) -> str:
    return blake3(message.numpy().view("u1").data).hexdigest()
