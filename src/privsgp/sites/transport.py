"""Push-sum of one site with the others: running sums over each link, committed before they are sent.

The arithmetic is that of the simulated bad network (transport/lossy.py) for one of its nodes: what a run of sites makes
of its messages is what the simulation makes of the same ones, bit by bit.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch

from privsgp.errors import Interrupted, Refused
from privsgp.sites.protocol.frames import PIECE, Frame, Header, Step, body_of, split_step, step_body
from privsgp.sites.protocol.link_journal import LinkJournal
from privsgp.sites.protocol.mailbox import depth, wait_for
from privsgp.sites.protocol.outliers import Arrival, Outliers
from privsgp.transport.link import gathered
from privsgp.transport.protocol import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

    from privsgp.sites.agreement import Agreement
    from privsgp.sites.identity import Site
    from privsgp.sites.protocol.frames import Rejected
    from privsgp.sites.protocol.mailbox import Inbox, Outbox
    from privsgp.sites.protocol.members import Members
    from privsgp.transport.link import Sums

_LOG = logging.getLogger(__name__)
_TICK = 0.25  # seconds between two looks at who is there
_DECIDE = "The run continues when they leave it. Or stop this site, and agree anew"


class Ended(Refused):
    """A refusal after which this site can make no more steps of its run: keys for them are not needed any more."""


class _Sent(NamedTuple):
    """What was sent at a step: x and w, and the share of them that went over each link."""

    step: int
    body: memoryview
    shares: dict[int, float]


class Messages(NamedTuple):
    """The messages of a step that are being made: x and w, the links that they go over, and the share of each."""

    step: int
    body: memoryview
    links: NDArray[np.int64]
    shares: NDArray[np.float64]
    frames: Iterator[Frame]


class SitesTransport(Transport):
    """Mixes the one node of a site with those of others."""

    local: ClassVar[bool] = False
    plain: ClassVar[bool] = False

    def __init__(
        self, site: Site, agreement: Agreement, node: int, inbox: Inbox, outbox: Outbox, members: Members, log: Path,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.site, self.agreement, self.node = site, agreement, node
        self.inbox, self.outbox, self.members, self.log = inbox, outbox, members, log
        self.graph, self.message_bytes = agreement.graph, agreement.message_bytes
        self.links, self.outliers = LinkJournal(log.parent, agreement, node), Outliers(agreement, node)
        self.targets, self.sources = self.links.targets, self.links.sources
        self.last = torch.full((len(self.targets),), -1)  # the step of each link's newest message
        self.used = torch.zeros(len(self.targets), dtype=torch.int64)  # the links that the last step used
        self.settled = torch.zeros(len(self.targets), dtype=torch.int64)  # links to sites that left, taken back from
        self.kept = torch.ones(1, dtype=torch.float64)  # the share that the node kept of itself at the last step
        self.counts = torch.zeros(3, dtype=torch.int64)  # messages posted, taken, missed at the deadline
        self.stop, self.changed = stop, members.changed
        self.device = torch.device("cpu")
        self._recent: deque[_Sent] = deque()  # the last steps' messages, which a site that leaves may not have taken
        self._since = -1  # steps up to this one are not in it
        self._most = depth(agreement) + 2
        self._other = ThreadPoolExecutor(1, "sums")  # sums are hashed while the disk is waited for

    def close(self) -> None:
        """End the thread of this object."""
        self._other.shutdown()

    def mix(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Refuse: between `prepare` and `post` a site commits, which its driver does (`SiteDriver`)."""
        raise NotImplementedError

    def prepare(self, k: int, x: Tensor, w: Tensor) -> Messages:
        """Split what the node holds among its links, and let the messages of step k be made; none of them leaves yet.

        Sums are made and hashed by another thread, while the commit waits for the disk.
        """
        links, shares = self._shares(k)  # asked once: who is there may change at any moment
        self._refuse_copy()
        body = step_body(x[0].cpu().numpy(), float(w[0]))
        bases = self.last.tolist()
        self.last[links] = k
        self.used.fill_(0)
        self.used[links] = 1
        self.kept.fill_(1 - _sum(shares))
        frames = self._other.map(partial(self._grown, k, body, bases), links.tolist())
        self.links.sync()
        return Messages(k, body, links, shares, frames)

    def post(self, messages: Messages) -> None:
        """Let the messages of a step be sent.

        Guarantee: nothing leaves after a peer has shown a message that another copy of this site has signed.
        Assumes: the step is committed, so that a restarted process would send them again as they are.
        """
        self.members.posted(self.taken(), self._sent())
        self._refuse_copy()  # again: a commit may take seconds
        self._post(messages.frames)
        self._remember(messages.step, messages.links, messages.shares, messages.body)

    def resume(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Finish step k, which was committed and taken up: send the same messages again, and take what is there.

        An older copy sends nothing: peers first have the time to show what they have from this site.
        """
        self.members.posted(self.taken(), self._sent())
        links = np.flatnonzero(self.used.numpy())
        shares = [self.agreement.share(k, (self.node, self.targets[link])) or 0.0 for link in links]
        self._since = k - 1
        self.greet(k)
        self._post_again()
        self._remember(k, links, np.array(shares), step_body(x[0].cpu().numpy(), float(w[0])))
        return self.arrive(k, x, w)

    def greet(self, k: int) -> None:
        """Give everybody the time to show what it has of this site, before a process makes its first new step."""
        met = lambda: not self._asked_to_stop(k) and not self.members.strangers()  # noqa: E731
        wait_for(self.changed, met, self.agreement.limits.deadline)
        self._refuse_copy()
        self.inbox.open()

    def serve(self) -> None:
        """Let the last messages of a run that is over be sent again."""
        self.inbox.open()
        self.members.posted(self.members.have(), self._sent())
        self._post_again()

    def restored(self, k: int, x: Tensor, w: Tensor) -> None:
        """Take up the links as they were when step k was committed; tell the inbox what had been taken."""
        self.members.step = k
        if (known := self.members.store.count()) < (posted := int(self.counts[0])):
            raise Refused(
                f"{self.members.store.path} lists {known} messages, and this site has sent {posted}: without the list "
                "the site cannot recognise a copy of itself",
                "restore the run folder as it was when the run stopped",
            )
        self.links.replay()
        self.links.grow(k, step_body(x[0].numpy(), float(w[0])), np.flatnonzero(self.used.numpy()).tolist())
        for source, step, sums in zip(self.sources, self.links.newest, self.links.arrived, strict=True):
            if sums is not None:
                self.inbox.restore(source, step, sums)

    def taken(self) -> dict[int, int]:
        """Return the step of the last message that was taken of each source."""
        steps = zip(self.sources, self.links.newest, strict=True)
        return {j: step for j, step in steps if step >= 0}

    def messages(self, k: int) -> int:
        """Count the messages to other sites at step k."""
        return len(self._shares(k)[0])

    def arrays(self) -> dict[str, Tensor]:
        """Return what a commit must hold besides x and w."""
        own = {
            "last": self.last, "used": self.used, "kept": self.kept, "counts": self.counts, "settled": self.settled
        }  # fmt: skip
        return own | {f"journal.{name}": value for name, value in self.links.place().items()}

    def restart(self, x: Tensor, w: Tensor) -> None:
        """Begin anew."""
        del x, w

    def report(self) -> dict[str, Any]:
        """Return what happened."""
        posted, taken, missed = self.counts.tolist()
        left = [self.agreement.roster[i].name for i in sorted(self.members.gone())]
        return {"posted": posted, "taken": taken, "missed": missed, "left": left}

    def _shares(self, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the links that step k uses, and the share of each; what is meant for who is not there is kept.

        It would lie on the link, and w with it: (2/3)^k of it would be left after k steps without one of three sites.
        """
        edges = self.graph.edges(k)
        absent = [i for i in self.targets if not self.members.is_there(i)]
        own = (edges.source == self.node) & (edges.target != self.node) & ~np.isin(edges.target, absent)
        return np.searchsorted(self.targets, edges.target[own]), edges.share[own]

    def _remember(self, k: int, links: NDArray[np.int64], shares: NDArray[np.float64], body: memoryview) -> None:
        """Keep what this step has sent, on the disk and, for a while, at hand."""
        self.links.committed()
        self.links.sent(k, body, links.tolist())
        if len(body) > PIECE:  # while messages travel, and not when the next commit waits for it
            self.links.sync()
        self._recent.append(_Sent(k, body, dict(zip(links.tolist(), shares.tolist(), strict=True))))
        while len(self._recent) > self._most:
            self._since = self._recent.popleft().step

    def _returned(self) -> list[tuple[int, int, Sums]]:
        """Return what was on its way to sites that have left, and is taken back: target, last step that it took, sums.

        It is this site's own, and was noised when it was sent. A step that is made again takes it back again: until the
        next commit, the commit before knows nothing of it.
        """
        back = []
        for link, target in enumerate(self.targets):
            taken = self.members.last_taken(target)
            if taken is None or taken >= self.last[link] or self.settled[link]:
                continue
            self.settled[link] = 1
            if taken < self._since:
                name = self.agreement.roster[target].name
                text = "%s left: what was on its way to it after step %d is lost with it"
                _LOG.warning(text, name, taken, extra={"peer": name, "step": taken})
                continue
            back.append((target, taken, self._sent_after(link, taken)))
        return back

    def _sent_after(self, link: int, step: int) -> Sums:
        """Return what was sent over a link after a step."""
        total = np.zeros(self.agreement.weights + 1)
        for sent in self._recent:
            if sent.step > step and link in sent.shares:
                x, w = split_step(sent.body, self.agreement.config.engine.dtype)
                total += np.append(x.astype(np.float64), w) * sent.shares[link]
        return total

    def _grown(self, k: int, body: memoryview, bases: Sequence[int], link: int) -> Frame:
        """Return a link's message of step k; nothing of it leaves yet."""
        self.links.grow(k, body, [link])
        return self._signed(link, None if self.agreement.step_bytes is None else Step(bases[link], body))

    def _signed(self, link: int, news: Step | None = None) -> Frame:
        """Sign the newest sums of a link, with what is new since the message before, if known."""
        sums = self.links.sums[link]
        assert sums is not None  # noqa: S101 - something was sent over it
        body, digest = body_of(sums)
        about = self.agreement.run, self.node, self.targets[link], self.members.incarnation, int(self.last[link])
        return Frame.make(self.site, Header(*about, len(body), digest), body, news)

    def _post(self, frames: Iterable[Frame]) -> None:
        """Let messages be sent, except to sites that have left; first they are in the log of own messages."""
        gone = self.members.gone()
        wanted = [frame for frame in frames if frame.header.target not in gone]
        self.members.store.sign(frame.header for frame in wanted)
        for frame in wanted:
            self.outbox.post(frame)
            self.counts[0] += 1

    def _post_again(self) -> None:
        """Let the newest message of every link be sent again."""
        self._post(self._signed(link) for link, step in enumerate(self.last.tolist()) if step >= 0)

    def arrive(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Wait for the messages of step k, and add all that are there."""
        self._wait(k)
        taken, returned = self.inbox.take(k), self._returned()
        mixed, total, arrived = self._gathered(x, w, taken, returned)
        while (refused := self.outliers.refused(arrived, total)) is not None:
            self._stop_link(k, *refused)
            taken = [frame for frame in taken if frame.header.source != refused[0].source]
            mixed, total, arrived = self._gathered(x, w, taken, returned)
        for one, warned in self.outliers.warned(k, float(w[0]), arrived):
            self.members.accuse(one.source, warned)
        for frame in taken:
            self.links.take(self.sources.index(frame.header.source), frame)
        self.counts[1] += len(taken)
        told = [(frame.header.source, frame.header.step) for frame in taken]
        self._write(k, told, [(target, step) for target, step, _ in returned])
        self.members.step = k + 1
        self._pause_while_stopped(k)
        return torch.from_numpy(mixed)[None].to(x.device), torch.tensor([total], dtype=torch.float64)

    def _gathered(
        self, x: Tensor, w: Tensor, taken: list[Frame], returned: list[tuple[int, int, Sums]]
    ) -> tuple[NDArray[np.floating], float, list[Arrival]]:
        """Return x and w of the node after adding messages, and these messages as they are judged."""
        own, links = float(w[0]), [self.sources.index(frame.header.source) for frame in taken]
        sums = [(frame.sums(), self.links.arrived[link]) for frame, link in zip(taken, links, strict=True)]
        back = [(sent, None) for *_, sent in returned]
        mixed, total, found = gathered(x[0].cpu().numpy(), own, float(self.kept), [*sums, *back])
        after = [self.links.newest[link] for link in links]
        arrived = [self.outliers.arrival(*one, own) for one in zip(taken, after, found, strict=False)]
        return mixed, total, arrived

    def _stop_link(self, k: int, one: Arrival, why: Rejected) -> None:
        """Take nothing more over a link. To the sums of all sites, its messages are still on their way.

        A site that was suspended while a copy of it continued finds fault with honest messages. So peers first have the
        time to show it what the copy has sent.
        """
        wait_for(self.changed, lambda: self._asked_to_stop(k), self.agreement.limits.deadline)
        self.inbox.stop(one.source)
        self.members.accuse(one.source, why)

    def _pause_while_stopped(self, k: int) -> None:
        """Wait, and spend nothing, until every member whose link was stopped has left, or people stop this site."""
        phase = self.members.phase
        while (names := self._stopped()) and not self._asked_to_stop(k):
            if self.members.phase != "paused":
                text = "step %d waits: the link from %s is stopped (audit.jsonl). %s"
                _LOG.warning(text, k, names, _DECIDE, extra={"step": k, "peer": names})
                self.members.phase = "paused"
            with self.changed:
                self.changed.wait(_TICK)
        self.members.phase = phase

    def _stopped(self) -> str:
        """Return the names of members whose link to this site was stopped and that have not left."""
        stopped = sorted(self.inbox.stopped() - self.members.gone())
        return ", ".join(self.agreement.roster[j].name for j in stopped)

    def _write(self, k: int, taken: list[tuple[int, int]], returned: list[tuple[int, int]]) -> None:
        """Note what was taken when: with it a simulation can make the same run again."""
        more = {"returned": returned} if returned else {}
        sent = [target for target, used in zip(self.targets, self.used.tolist(), strict=True) if used]
        self.log.touch(0o600)
        with self.log.open("a") as file:
            file.write(json.dumps({"step": k, "sent": sent, "taken": taken} | more) + "\n")

    def _wait(self, k: int) -> None:
        """Wait for this step's messages until the deadline; longer for links that were silent for too long.

        While fewer sites than agreed on are there, nobody goes on, and nothing is spent.
        """
        edges, phase = self.graph.edges(k), self.members.phase
        due = [int(j) for j in edges.source[edges.target == self.node] if j != self.node]
        began, said = time.monotonic(), ""
        with self.changed:
            while not self._asked_to_stop(k) and (why := self._holds(k, due, time.monotonic() - began)) is not None:
                if why and why != said:
                    _LOG.warning("step %d waits: %s", k, why, extra={"step": k})
                    self.members.phase = "paused"
                said = why or said
                self.changed.wait(_TICK)
        if said:
            _LOG.warning("step %d goes on", k, extra={"step": k})
        self.members.phase = phase

    def _asked_to_stop(self, k: int) -> bool:
        """Raise an error if this site has to stop: people asked it to, or another copy of it was in the run."""
        self._refuse_copy()
        if self.stop():
            raise Interrupted(k)
        return False

    def _holds(self, k: int, due: list[int], waited: float) -> str | None:
        """Say what step k waits for: "" for messages that may still be in time, None where it can go on."""
        limits, gone = self.agreement.limits, self.members.gone()
        missing = [j for j in due if j not in gone and self.inbox.newest(j) < k]
        silent = [j for j in missing if self.inbox.newest(j) < (least := k - limits.staleness) and self._owes(j, least)]
        if silent:
            names = ", ".join(self.agreement.roster[j].name for j in silent)
            return f"nothing from {names} for more than {limits.staleness} steps"
        there, left = self.members.count(), len(self.agreement.roster) - len(gone)
        if left < limits.fewest and k < self.agreement.config.algorithm.steps:  # rounds of mixing spend nothing
            names = ", ".join(self.agreement.roster[j].name for j in sorted(gone))
            raise Ended(
                f"{names} left for good, and {left} of at least {limits.fewest} sites that were agreed on are left",
                "the run ends here, and what was spent stands in the ledger; agree anew with those who stay",
            )
        if there < min(limits.fewest, left):
            return f"{there} of at least {limits.fewest} sites are there"
        late = any(self.members.is_there(j) and self._owes(j, k) for j in missing) or self.members.ungreeted()
        if late and waited < limits.deadline:
            return ""
        self.counts[2] += len(missing)
        return None

    def _owes(self, source: int, step: int) -> bool:
        return self.members.owes(source, self.inbox.newest(source), step)

    def _refuse_copy(self) -> None:
        """Stop if a peer has shown a message or a process that this site signed and that is not of this folder."""
        if (found := self.members.foreign) is not None:
            name = self.agreement.roster[found.header.target].name
            raise Ended(
                f"{name} was sent a message of step {found.header.step} that this site signed and that is not in this "
                "folder's log: another copy of this site is in the run, or this folder is an older copy",
                "stop all copies of this site; go on with the one that sent this message if no other has sent any "
                "since, else `privsgp leave` and agree anew: steps that two copies sent are spent twice",
            )
        if self.members.newer:
            raise Refused(
                f"another copy of this site was started while this process runs: it is process {self.members.newer}, "
                f"and this one is process {self.members.incarnation}. The other sites refuse this process since then",
                "find the copy of this site's folder or machine, and stop it. To continue with this one, start it "
                "again with the same command: it sends nothing twice",
            )

    def _sent(self) -> dict[int, int]:
        return {i: step for i, step in zip(self.targets, self.last.tolist(), strict=True) if step >= 0}


def _sum(shares: NDArray[np.float64]) -> float:
    """Add up as `numpy.bincount` does: one after the other."""
    total = 0.0
    for share in shares.tolist():
        total += share
    return total
