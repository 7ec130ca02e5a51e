"""The nodes' ledgers during a run: every release is paid for, durably, before its message leaves.

Steps are paid for a few at a time. After a crash, what was reserved counts as spent. With a seed the same noise comes
again, so a repeated step is the same message and goes out free; if its bytes differ (another machine, another version)
it is not sent, and everything since the checkpoint is redone with fresh noise and charged. Without a seed noise is
always fresh, so every repeated step is a new release at its next attempt (privacy.md, "Crashes").
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Self

from privsgp.engine.rendezvous import PeerLost, World
from privsgp.engine.stops import Diverged, Interrupted, ReplayDiffers
from privsgp.privacy.ledger import MOST_AHEAD, Header, Ledger, together
from privsgp.privacy.mechanism import Anchored
from privsgp.threads import shared_out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from privsgp.engine.folder import Folder
    from privsgp.engine.job import Job
    from privsgp.privacy.mechanism import Mechanism


class Payments:
    """The ledgers of all nodes of this process; nothing to pay for methods without noise."""

    def __init__(self, job: Job, folder: Folder, world: World | None = None) -> None:
        self.job, self.folder = job, folder
        self.world = world or World()
        self.ledgers: list[Ledger] = []
        self._attempts: list[int] = []
        self._until = 0
        self._reach: int | None = None
        self._announced = False
        self._spent = [0] * len(job.here)

    def __enter__(self) -> Self:
        if self.job.algorithm.private:
            self.ledgers = [Ledger.open(self.folder.ledger(i), self._header(i)) for i in self.job.here]
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.ledgers and kind is None:
            together(self.ledgers, Ledger.close)
        elif self.ledgers and kind in (Interrupted, PeerLost, Diverged) and not self._announced:
            together(self.ledgers, Ledger.give_back)
        self._spent = [ledger.charged for ledger in self.ledgers] or self._spent
        for ledger in self.ledgers:
            ledger.release()

    def granted(self, k: int, attempt: int) -> bool:
        """Tell whether step k is paid for by every node, paying where it is not; False when a budget is spent."""
        if not self.ledgers or k < self._until:
            return True
        if self._reach is None:  # asked once: all processes count on from there alike
            pairs = zip(self.ledgers, self.job.mechanisms, strict=True)
            own = min(self._reach_of(ledger, mechanism, k, attempt) for ledger, mechanism in pairs)
            self._reach = min(self.world.exchange(own))
        count = min(self._ahead, self._reach - k)
        if count <= 0:
            return False
        paid = together(self.ledgers, lambda ledger: self._pay(ledger, k, count, attempt))
        self._attempts = [at for _, at in paid]
        self._until = k + min(steps for steps, _ in paid)
        return k < self._until

    def sending(self, k: int, x: Tensor) -> None:
        """Note the messages of step k, just before they leave."""
        digests = shared_out(_digests, list(x)) if self.ledgers else []
        for ledger, attempt, digest in zip(self.ledgers, self._attempts, digests, strict=True):
            if ledger.segment.sent_at(k) != attempt:
                ledger.sent(k, attempt, digest)
            elif ledger.digest_of(k) != digest:
                raise ReplayDiffers

    def attempt(self, k: int) -> int:
        """Return at which attempt a simulation goes on from step k: a killed process may have begun a new one."""
        ledgers = self.ledgers if self.job.simulation else []
        begun = [ledger.next_attempt(step) - 1 for ledger in ledgers for step in range(k, self.job.steps)]
        return max(begun, default=0)

    def rewind(self) -> None:
        """Give back what was paid ahead, because the run goes back to its checkpoint with fresh noise."""
        together(self.ledgers, Ledger.give_back)
        self._until, self._reach = 0, None

    def announce(self, k: int, attempt: int) -> None:
        """Pay for step k at a new attempt: all processes take it up from the ledgers when they begin again."""
        self.rewind()
        together(self.ledgers, lambda ledger: ledger.reserve(k, 1, attempt))
        self._announced = True

    def releases(self) -> list[int]:
        """Return how many releases each node is charged for."""
        return self._spent

    @property
    def _ahead(self) -> int:
        """Pay few steps ahead where a crash would have to be paid from the spare; half of it goes to checkpoints."""
        allowance = self.job.protection.allowance
        if self.job.simulation or allowance is None:
            return MOST_AHEAD
        return max(1, min(MOST_AHEAD, (allowance - self.job.steps) // 2))

    def _reach_of(self, ledger: Ledger, mechanism: Mechanism, k: int, attempt: int) -> int:
        """Return the step up to which a node can pay; a simulation goes on for nothing over steps already paid for."""
        K, left = self.job.steps, ledger.segment.left
        paid = ledger.paid(k, K - k, attempt) if self.job.simulation else 0
        # Anchors and differences cost differently: only so many steps made again were counted as both.
        again = ledger.segment.charged - paid - k
        if ledger.segment.closed or (isinstance(mechanism, Anchored) and again > mechanism.spare):
            return k
        return K if left is None else min(K, k + paid + left)

    def _pay(self, ledger: Ledger, first: int, count: int, attempt: int) -> tuple[int, int]:
        """Return how many steps from `first` on are paid for, and at which attempt."""
        if not self.job.simulation:
            attempt = max(ledger.next_attempt(step) for step in range(first, first + count))
            return ledger.reserve(first, count, attempt), attempt
        if paid := ledger.paid(first, count, attempt):
            return paid, attempt
        unpaid = next((n for n in range(count) if ledger.next_attempt(first + n) > attempt), count)
        return ledger.reserve(first, unpaid, attempt), attempt

    def _header(self, i: int) -> Header:
        p, job = self.job.protection, self.job
        epsilon = p.budgets[i]
        return Header(
            node=i,
            run=self.folder.run or "",
            mechanism=p.mechanisms[i].describe(),
            budget=None if epsilon is None else {"epsilon": epsilon, "delta": p.deltas[i]},
            relation=p.relation,
            steps=job.steps,
            spare=0 if p.allowance is None else p.allowance - job.steps,
            simulation=job.simulation,
        )


def _digests(messages: Sequence[Tensor]) -> list[str]:
    """Return the messages' SHA-256; on a GPU the bytes never come to the host, and none is noted."""
    return [hashlib.sha256(m.numpy().data).hexdigest() if m.device.type == "cpu" else "" for m in messages]
