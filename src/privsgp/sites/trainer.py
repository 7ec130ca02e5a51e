"""The same Trainer at a site: every step is committed before it is sent, and a restarted site goes on from there.

A commit is a checkpoint in the middle of a step: x^{k+½} with its noise, w, and what the algorithm remembers; and where
a table and the sums of all links are, in journals of what each step changed (journal.py, link_journal.py).
After a crash the same messages go out again, from the commit: no fresh noise, no second charge. What was computed and
not committed was not sent, and is made again (privacy.md, "Crashes").
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from privsgp.algorithms import State
from privsgp.algorithms.saga import TablePushSum
from privsgp.engine import checkpoint
from privsgp.engine.budget_guard import heads
from privsgp.engine.checkpoint import Progress
from privsgp.engine.stops import refuse_no_model
from privsgp.engine.trainer import Outcome, Trainer
from privsgp.errors import Refused
from privsgp.files import sync_names
from privsgp.sites.journal import Journal
from privsgp.transport.checks import refuse_wild

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.algorithms.block import Block, Drawn
    from privsgp.engine.folder import Folder
    from privsgp.engine.spec import RunSpec
    from privsgp.engine.trainer import Watcher
    from privsgp.randomness.protocol import Exchange
    from privsgp.sites.pairs import PairKeys
    from privsgp.sites.transport import SitesTransport


class SiteTrainer(Trainer):
    """One site's part of a run."""

    transport: SitesTransport

    def __init__(
        self, spec: RunSpec, folder: Folder, network: SitesTransport, watch: Watcher | None = None,
        pairs: PairKeys | None = None,
    ) -> None:  # fmt: skip
        self._network, self._pairs = network, pairs
        self._pending: int | None = None  # a step that is committed, and whose messages may not have left yet
        self._round = 0  # the first step or round of mixing that was not begun
        self._pays = True
        self._journal: Journal | None = None
        self._drawn: list[Drawn] = []  # the samples of the step that is being made
        self._began, self._spent = time.perf_counter(), 0.0
        self._sent_before = 0  # bytes, by earlier processes as of their last commits
        super().__init__(spec, folder, watch)
        network.commit = self._commit
        network.stop = lambda: self.stopping.asked

    def _connect(self) -> SitesTransport:
        return self._network

    def close(self) -> None:
        """End the transport's thread too."""
        super().close()
        self._network.close()

    def _exchange(self) -> Exchange | None:
        return None if self._pairs is None else self._pairs.streams

    def _begin(self, *, fresh_noise: bool = False) -> tuple[int, float]:
        """Take up the last commit; its step counts as done, once `_recover` has finished it."""
        del fresh_noise
        self.algorithm.begin(self._start().z)
        if isinstance(self.algorithm, TablePushSum):
            self._journal = Journal(self.folder.checkpoint.parent, self._table_rows())
        found = checkpoint.last_common(self.folder, self.world, self.spec.shared_hash)
        self.budget_guard.committed = -1
        if found is None:
            self.state = self._start()
            return 0, 0.0
        path, progress = found
        self.state = checkpoint.load_into(path, self.state, self._memory())
        if self._journal is not None:
            self._journal.replay()
        self.algorithm.restored(self.state.z)
        self._sent_before, self._spent = progress.bytes_sent, progress.seconds
        self._pending = self.budget_guard.committed = progress.step
        self._round = progress.step + 1
        if self._pairs is not None:
            self._pairs.used(progress.step)
        return min(self._round, self.spec.steps), progress.seconds

    def _block(self) -> Block:
        """Note which samples a step draws: their rows of a table change."""
        block = super()._block()
        sample = block.sample

        def noted(k: int) -> list[Drawn]:
            self._drawn = sample(k)
            return self._drawn

        block.sample = noted
        return block

    def _memory(self) -> dict[str, Tensor]:
        """Return what a commit must hold: of a table where its journal is, and its mean."""
        memory = super()._memory()
        if self._journal is None:
            return memory
        rows = self._table_rows()
        place = {f"journal.{name}": value for name, value in self._journal.place().items()}
        return {name: value for name, value in memory.items() if name not in rows} | place

    def _table_rows(self) -> dict[str, Tensor]:
        """Return the arrays of the algorithm's table that have a row for each entry."""
        return {name: value for name, value in self.algorithm.arrays().items() if name != "mean"}

    def _changed(self) -> Tensor:
        """Return which rows of the table the step that is being made has changed."""
        drawn, self._drawn = self._drawn, []
        if not drawn or not isinstance(self.algorithm, TablePushSum):
            return torch.empty(0, dtype=torch.int64)
        last = len(next(iter(self._table_rows().values()))[0]) - 1
        rows = torch.unique(torch.cat([one.rows for one in drawn], 1)[0])
        changed: Tensor = rows[rows != last]
        return changed

    def _recover(self) -> None:
        """Send the committed step's messages, again or for the first time, and take what has arrived."""
        if self._pending is None:
            self.budget_guard.settle(-1, self.state.x)  # refuses a ledger that knows of steps whose commit is lost
            self.transport.greet(0)  # the ledger may be lost as well: others may know of steps
            return
        k, self._pending = self._pending, None
        if k < self.spec.steps:
            self.budget_guard.settle(k, self.state.x)
        self.state = State.debiased(*self.transport.resume(k, self.state.x, self.state.w))
        if k < self.spec.steps:
            self.averaging.add(k, self.state)

    def _again(self, k: int) -> int:
        """Refuse to make a step again: what was sent is in its commit."""
        raise Refused(
            f"the ledger knows another message of step {k}",
            "restore the run folder as it was when the run stopped: this one is a mixture",
        )

    def _release(self, k: int, message: Tensor) -> None:
        """Do nothing: what is released is noted when it is committed, and before it is sent."""

    def _mix(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return self.transport.mix(k, x, w, partial(self.randomness.meanwhile, k))

    def _commit(self, k: int, x: Tensor, w: Tensor) -> None:
        """Make step k durable; then note its message in the ledger. After that it may be sent."""
        refuse_wild(k, x, self.spec.here)
        spent = self._spent + time.perf_counter() - self._began
        known = heads(self.budget_guard.ledgers)
        self.bytes_sent = self._sent_before + self._network.outbox.bytes
        if self._journal is not None:
            self._journal.write(self._changed())
        progress = Progress(k, 0, spent, self.bytes_sent, self.spec.shared_hash, known)
        checkpoint.save(self.folder.checkpoint, progress, State(x, w, x), self._memory(), self.folder.run or "")
        sync_names(self.folder.checkpoint.parent)  # a power cut must not bring the one before it back
        if self._journal is not None:
            self._journal.committed()
        if self._pays:
            self.budget_guard.record(k, x)
            self.budget_guard.heads()  # before it is sent: a folder put back by one step is older than what is known

    def _keep(self, k: int, seconds: float) -> bool:
        del seconds
        return self.stopping.asked and k < self.spec.steps

    def _checkpoint(self, k: int, seconds: float) -> None:
        """Do nothing: each step is committed."""

    def _evaluate(self, k: int, seconds: float) -> dict[str, Any]:
        """Measure this site's own model; it knows no other, and how far others are from it."""
        row = self.evaluator.row(k, seconds, self.averaging.released(self.state))
        row.pop("consensus_error", None)
        self.folder.append_metrics(row)
        self._refuse_nonsense(k, row)
        return row

    def _end(self, k: int, rows: list[dict[str, Any]], seconds: float) -> Outcome:
        """Mix without gradients for the rounds that are left; the model is what this site then holds."""
        self._pays = False
        if self._pairs is not None:
            self._pairs.forget()
        with self.stopping:
            self._mix_on(max(k, self._round))
        self.bytes_sent = self._sent_before + self._network.outbox.bytes
        final = self.averaging.released(self.state)
        refuse_no_model(k, final, self.spec.here)
        row = self.evaluator.measured(k, seconds, final)
        row.pop("consensus_error", None)
        rows = [one for one in rows if one["step"] < k] + [row]
        self.folder.write_metrics(rows, self._mark)
        return Outcome(
            state=final,
            average=None,
            metrics=rows,
            steps=k,
            seconds=seconds,
            bytes_sent=self.bytes_sent,
            releases=self.budget_guard.releases(),
            faults=self.transport.report(),
            measured=self.evaluator.final(k, final),
        )

    def _mix_on(self, first: int) -> None:
        """Mix to the last round of the agreement; a site whose budget was spent early has more of them."""
        for r in range(first, self._network.agreement.rounds):
            self._network.members.phase = "mixing"
            self.state = State.debiased(*self.transport.mix(r, self.state.x, self.state.w))
            self.watch(r + 1, None)
