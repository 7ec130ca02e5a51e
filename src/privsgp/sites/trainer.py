"""The same Trainer at a site: every step is committed before it is sent, and a restarted site goes on from there.

A commit is a checkpoint in the middle of a step: x^{k+½} with its noise, w, the sums of all links, and what the
algorithm remembers, tables included.
After a crash the same messages go out again, from the commit: no fresh noise, no second charge. What was computed and
not committed was not sent, and is made again (docs/proofs/recovery.md).
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from privsgp.algorithms import Event, Exchange, Release, State
from privsgp.engine import checkpoint
from privsgp.engine.budget_guard import BudgetGuard, heads
from privsgp.engine.checkpoint import Progress
from privsgp.engine.drive import RunDriver
from privsgp.engine.trainer import Trainer
from privsgp.files import sync_names
from privsgp.transport.protocol import refuse_wild

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from privsgp.engine.folder import Folder
    from privsgp.engine.spec import RunSpec
    from privsgp.engine.stopping import Stopping
    from privsgp.engine.trainer import Watcher
    from privsgp.randomness.noise import KeyExchange
    from privsgp.sites.protocol.pairs import PairKeys
    from privsgp.sites.transport import SitesTransport

    Commit = Callable[[int, Tensor, Tensor], None]


class SiteDriver(RunDriver):
    """A site's driver: it sends what was released, and nothing that a restarted process would not send again."""

    transport: SitesTransport

    def __init__(self, transport: SitesTransport, guard: BudgetGuard, commit: Commit, sent: int = 0) -> None:
        super().__init__(transport, guard, sent)
        self.transport, self.commit = transport, commit
        self._released: Tensor | None = None
        self._counted: list[tuple[int, list[str]]] = []  # steps since the last message, and hashes of their releases

    @property
    def bytes_sent(self) -> int:
        """The bytes that were sent so far; of earlier processes, as of their last commits."""
        return self._sent + self.transport.outbox.bytes_to.total()

    def __call__(self, k: int, event: Event) -> Any:  # noqa: ANN401
        """Send what step k has released, and nothing else: a site commits all steps of a message with it."""
        released, self._released = self._released, None
        match event:
            case Release(message, None):
                self._released = message
                self._counted.append((k, self.guard.digests(message)))  # recorded as soon as they are committed
                return None
            case Exchange(x, w) if x is released:
                return self.send(k, x, w, paid=True)
        raise TypeError(f"step {k} asks a site for {type(event).__name__}: it may send what it has released, once")

    def send(self, k: int, x: Tensor, w: Tensor, *, paid: bool) -> tuple[Tensor, Tensor]:
        """Commit, record, post, wait. Only what carries the noise of steps is `paid`: later rounds mix alone.

        Guarantee: each local step of a message has a line of its own in the ledger before the message leaves.
        """
        messages = self.transport.prepare(k, x, w)
        self.commit(k, x, w)
        if paid:
            for number, digests in self._counted:
                self.guard.record_digests(number, digests)
            self._counted.clear()
            self.guard.heads()  # before it is sent: a folder put back by one step is older than what is known
        self.transport.post(messages)
        return self.transport.arrive(k, x, w)


class SiteTrainer(Trainer):
    """One site's part of a run."""

    transport: SitesTransport
    driver: SiteDriver

    def __init__(
        self, spec: RunSpec, folder: Folder, network: SitesTransport, stopping: Stopping,
        watch: Watcher | None = None, pairs: PairKeys | None = None,
    ) -> None:  # fmt: skip
        self._network, self._pairs = network, pairs
        self._pending: int | None = None  # a step that is committed, and whose messages may not have left yet
        self._round = 0  # the first step or round of mixing that was not begun
        self._began, self._spent = time.perf_counter(), 0.0
        super().__init__(replace(spec, checkpoint_every=0), folder, watch)  # each step is committed
        self.stopping = stopping

    def _connect(self) -> SitesTransport:
        return self._network

    def _exchange(self) -> KeyExchange | None:
        return None if self._pairs is None else self._pairs.streams

    def _driver(self, sent: int = 0) -> SiteDriver:
        return SiteDriver(self._network, self.budget_guard, self._commit, sent)

    def _begin(self) -> tuple[int, float]:
        """Take up the last commit; its step counts as done, once `_recover` has finished it."""
        self.algorithm.begin(self._start().z)
        found = checkpoint.last_common(self.folder, self.world, self.spec.shared_hash)
        if found is None:
            self.budget_guard.resume(0, commits=True)
            self.state = self._start()
            return 0, 0.0
        path, progress = found
        self.state = checkpoint.load_into(path, self.state, self._memory())
        self.algorithm.restored(self.state.z)
        self.driver, self._spent = self._driver(progress.bytes_sent), progress.seconds
        self._pending = progress.step
        first = progress.step - progress.step % self.spec.settings.local_steps  # of the message that was committed
        self.budget_guard.resume(min(first, self.spec.steps), commits=True)
        self._round = progress.step + 1
        if self._pairs is not None:
            self._pairs.used(progress.step)
        return min(self._round, self.spec.steps), progress.seconds

    def _recover(self) -> None:
        """Send the committed step's messages, again or for the first time, and take what has arrived."""
        if self._pending is None:
            self.budget_guard.check_resumed(-1, self.state.x)  # refuses a ledger that knows more steps
            self.transport.greet(0)  # the ledger may be lost as well: others may know of steps
            return
        k, self._pending = self._pending, None
        if k < self.spec.steps:
            self.budget_guard.check_resumed(k, self.state.x)
        self.state = State.debiased(*self.transport.resume(k, self.state.x, self.state.w))
        if k < self.spec.steps:
            self.averaging.add(k, self.state)

    def _commit(self, k: int, x: Tensor, w: Tensor) -> None:
        """Make step k durable, before its message is recorded and sent."""
        refuse_wild(k, x, self.spec.here)
        spent = self._spent + time.perf_counter() - self._began
        known = heads(self.budget_guard.ledgers)
        progress = Progress(k, 0, spent, self.driver.bytes_sent, self.spec.shared_hash, known)
        checkpoint.save(self.folder.checkpoint, progress, State(x, w, x), self._memory(), self.folder.run or "")
        sync_names(self.folder.checkpoint.parent)  # a power cut must not bring the one before it back

    def _mixed_on(self, k: int, s: State) -> State:
        """Mix without gradients to the last round of the agreement; a budget that was spent early leaves more rounds.

        The model is what this site then holds, or the average of what it held after each step.
        """
        del s
        if self._pairs is not None:
            self._pairs.forget()
        first, every = max(k, self._round), self.spec.settings.local_steps
        with self.stopping:
            for r in range(first + -(first + 1) % every, self._network.agreement.rounds, every):
                self._network.members.enter("mixing")
                self.state = State.debiased(*self.driver.send(r, self.state.x, self.state.w, paid=False))
                self.watch(r + 1, None)
        return self.averaging.released(self.state)
