"""The nodes' ledgers during a run: every release is paid for, durably, before its message leaves.

Steps are paid for a few at a time, and in a ledger a step is the number of a release of its node: where nodes act one
at a time, each has made as many as the clock says, and several or none in one step of the run.

After a crash, what was reserved counts as spent. With a seed the same noise comes again, so a repeated step is the same
message and is not paid for again; a seeded run protects nothing. Without a seed noise is always fresh, so every
repeated step is a new release, at a new attempt (docs/proofs/recovery.md).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

from blake3 import blake3

from privsgp.accounting.book import Book
from privsgp.accounting.ledger import MOST_AHEAD, Header, Ledger, make_room, short, together
from privsgp.devices import device_of, in_threads
from privsgp.engine.checkpoint import known_ledgers
from privsgp.errors import Diverged, Interrupted, Refused
from privsgp.outside import between
from privsgp.transport.rendezvous import PeerLost
from privsgp.transport.world import World

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from torch import Tensor

    from privsgp.accounting.chain import Mark
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
        self._book = None if spec.simulation else Book()
        self._until = 0
        self._reach: int | None = None
        self._unsure = False  # whether it is not known which steps were sent
        self._spent = [0] * len(spec.here)
        self.resume(0)

    def resume(self, since: int, *, commits: bool = False) -> None:
        """Continue from a step: all before it were sent. `commits`: each is made durable before it is sent."""
        self._since, self._commits, spec = since, commits, self.spec
        # Whether a step that was paid for and has no line was surely not sent, or is the same message again.
        self._knows_unsent = spec.simulation or commits
        # From a GPU the bytes never come to the host; of what only a sum may be seen, a hash would be seen too. Secret
        # noise never comes again: of messages that nobody else gets, there is nothing to compare a hash with.
        compared = device_of(spec.device).in_host_memory and (self._knows_unsent or not self.world.alone)
        self._hashes = compared and (spec.simulation or spec.mechanisms[0].summed_nodes == 1)

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

    def _open(self, i: int, known: list[Mark]) -> Ledger:
        """Open a node's ledger: what the run's folder knows of it, and what is known outside, must be in it."""
        header = self._header(i)
        since = self._since if self._commits else self.spec.released(i, self._since)
        marks = known + ([] if self._book is None else self._book.marks(header.run).get(i, []))
        return Ledger.open(self.folder.ledger(i), header, marks, since, commits=self._commits)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.ledgers and kind is None:
            together(self.ledgers, Ledger.close)
        elif self.ledgers and kind is not None and issubclass(kind, _EXPECTED) and not self._unsure:
            with contextlib.suppress(Refused):  # a full disk, say: why the run ends is what matters
                together(self.ledgers, Ledger.give_back)
        self._spent = [ledger.charged for ledger in self.ledgers] or self._spent
        with contextlib.nullcontext() if kind is None else contextlib.suppress(Refused):
            self._remember()
        for ledger in self.ledgers:
            ledger.unlock()

    def reserve(self, k: int) -> bool:
        """Tell whether every node has paid for step k, paying where it has not; False when a budget is spent.

        Guarantee: all steps of its message are paid for, or none of them is taken.
        """
        every = self.spec.settings.local_steps
        whole = k - k % every + every
        if not self.ledgers or whole <= self._until:
            return True
        if self._reach is None:  # asked once: all processes count on from there alike
            pairs = zip(self.ledgers, self.spec.mechanisms, strict=True)
            own = min(self._reach_of(ledger, mechanism, k) for ledger, mechanism in pairs)
            self._reach = min(self.world.all_gather(own, between(0, self.spec.steps)))
        stop = min(max(self._stop(k), whole), self._reach)
        if stop >= whole and all(together(self.ledgers, lambda ledger: self._pay(ledger, k, stop))):
            self._until = stop
        return whole <= self._until

    def check_resumed(self, k: int, x: Tensor) -> None:
        """Note the messages of the last committed step where a crash came between the two; x are the committed ones.

        Guarantee: steps after the commit were not sent. A ledger that knows of one has a commit that was put back, and
        one that knows another message of its step has a commit of another life of the run.
        """
        for row, ledger in enumerate(self.ledgers):
            last, digest = ledger.segment.next - 1, _digest(x[row]) if self._hashes else ""
            if last <= k and ledger.holds(k):
                for step in range(ledger.next, k):  # local steps of the message: only what is made of them leaves
                    ledger.sent(step, "")
                ledger.sent(k, digest)
            elif last != k or (digest and ledger.segment.digest not in ("", short(digest))):
                self._unsure = True
                knows = "has not paid for it" if last < k else f"knows of step {last} with another message"
                held = f"{self.folder.checkpoint} holds a message of step {k}" if k >= 0 else "no checkpoint is there"
                remedy = "restore the run folder as it was when the run stopped: this one is a mixture"
                raise Refused(f"{held}, and {ledger.path} {knows}", remedy)

    def record(self, number: int, x: Tensor, node: int | None = None) -> None:
        """Note messages [m, d] before they leave: those of step `number`, or of one node's release of that number."""
        self.record_digests(number, self.digests(x), node)

    def digests(self, x: Tensor) -> list[str]:
        """Return what ledgers keep of messages [m, d]: hashes, where they can be compared with anything."""
        return in_threads(_digest, list(x)) if self._hashes else [""] * len(x)

    def record_digests(self, number: int, digests: Sequence[str], node: int | None = None) -> None:
        """Note messages by their hashes."""
        if not self.ledgers:
            return
        first = 0 if node is None else node - self.spec.here.start
        for ledger, digest in zip(self.ledgers[first : first + len(digests)], digests, strict=True):
            repeated = self.spec.simulation and not self._commits and number < ledger.next
            if not repeated:  # else a killed process has sent the same message
                ledger.sent(number, digest)

    def heads(self) -> dict[int, tuple[int, str]]:
        """Return what a checkpoint knows of each node's ledger, and keep it in the budget book too."""
        self._remember()
        return heads(self.ledgers)

    def _remember(self) -> None:
        """Keep in the budget book how far the ledgers are.

        Guarantee: a budget book that cannot be written ends the run before the next release.
        """
        if self._book is not None and self.ledgers:
            self._book.remember(self.folder.run or "", heads(self.ledgers))

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

    def _reach_of(self, ledger: Ledger, mechanism: Mechanism, k: int) -> int:
        """Return the step up to which a node can pay; a simulation goes on for nothing over steps already paid for."""
        remaining, numbers = ledger.segment.remaining, self._between(ledger, k)
        paid = max(0, ledger.segment.stop - numbers.start) if self._knows_unsent else 0
        again, most = ledger.segment.charged - paid - numbers.start, mechanism.redo_limit
        if ledger.segment.closed or (most is not None and again > most):
            return k
        if remaining is None:
            return self.spec.steps
        return self.spec.until(ledger.segment.header.node, numbers.start + paid + remaining)

    def _pay(self, ledger: Ledger, k: int, stop: int) -> bool:
        """Pay for the steps k … stop − 1; return whether all of them are paid for."""
        numbers = self._between(ledger, k, stop)
        if self._knows_unsent:
            numbers = range(max(numbers.start, ledger.segment.stop), numbers.stop)
        while numbers and (paid := ledger.reserve(numbers.start, len(numbers))):
            numbers = numbers[paid:]
        return not numbers

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


def heads(ledgers: Sequence[Ledger]) -> dict[int, tuple[int, str]]:
    """Return by node what is charged in a ledger, and its head."""
    return {one.segment.header.node: one.mark() for one in ledgers}


def _digest(message: Tensor) -> str:
    return blake3(message.numpy().view("u1").data).hexdigest()
