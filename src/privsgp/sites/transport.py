"""Push-sum of one site with the others: running sums over each link, committed before they are sent.

The arithmetic of links is transport/link.py's. A run of sites gives the same bits as one process for the same messages
(tests/sites/oracle.py).
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from privsgp.errors import Interrupted, Refused
from privsgp.sites.protocol.frames import Frame, Header, Rejected, body_of
from privsgp.sites.protocol.increments import Increment, rounded
from privsgp.sites.protocol.mailbox import Outbox, wait_for
from privsgp.sites.protocol.outliers import Arrival, Outliers
from privsgp.transport.link import gathered, grown
from privsgp.transport.protocol import Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray
    from torch import Tensor

    from privsgp.sites.identity import Site
    from privsgp.sites.protocol.gossip import Gossip
    from privsgp.transport.link import Sums
    from privsgp.transport.rounding import Rounding

_LOG = logging.getLogger(__name__)
_TICK = 0.25  # seconds between two looks at who is there
_DECIDE = "The run continues when they leave it. Or stop this site, and propose a new agreement"


class Ended(Refused):
    """A refusal after which this site can make no more steps of its run: keys for them are not needed any more."""


class SitesTransport(Transport):
    """Mixes the one node of a site with those of others."""

    local: ClassVar[bool] = False

    def __init__(
        self, site: Site, members: Gossip, outbox: Outbox, stop: Callable[[], bool] = lambda: False,
        rounding: Rounding | None = None,
    ) -> None:  # fmt: skip
        self.site, self.members, self.outbox = site, members, outbox
        self.agreement, self.node, self.inbox = members.agreement, members.node, members.inbox
        self.graph, self.message_bytes = self.agreement.graph, self.agreement.message_bytes
        self.outliers = Outliers(self.agreement, self.node)
        self.targets = sorted(i for j, i in self.agreement.links if j == self.node)
        self.sources = sorted(j for j, i in self.agreement.links if i == self.node)
        # Running sums of each link: what was sent to each target, and what was taken from each source.
        self.sums: list[Sums] = [np.zeros(self.agreement.weights + 1) for _ in self.targets]
        self.arrived: list[Sums] = [np.zeros(self.agreement.weights + 1) for _ in self.sources]
        self.newest = torch.full((len(self.sources),), -1)  # the step of the message that was taken last
        self.last = torch.full((len(self.targets),), -1)  # the step of each link's newest message
        self.given = torch.zeros(len(self.targets), dtype=torch.float64)  # the share of each link at the last step
        self.rounding = rounding
        # The rest of x and w that the node kept, if messages are rounded; the last step at which each link began anew.
        self.held = () if rounding is None else (rounding.start.cpu().clone(), torch.ones(1, dtype=torch.float64))
        self.anew = torch.full((len(self.targets),), -1)
        self._increments: dict[int, Increment] = {}  # by link: to the sums of this step, until they are committed
        self.counts = torch.zeros(3, dtype=torch.int64)  # messages posted, taken, missed at the deadline
        self.stop, self.changed = stop, members.changed
        self.device = torch.device("cpu")

    def mix(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Refuse: between `prepare` and `post` a site commits, which its driver does (`SiteDriver`)."""
        raise NotImplementedError

    def prepare(self, k: int, x: Tensor, w: Tensor) -> list[Frame]:
        """Split what the node holds among its links, and make the messages of step k; none of them leaves yet."""
        links, shares = self._shares(k)  # asked once: sites may come and go at any moment
        self.refuse_copy()
        self.given.zero_()[links] = torch.from_numpy(shares)
        if self.rounding is None:
            for link, share in zip(links.tolist(), shares.tolist(), strict=True):
                self.sums[link] = grown(self.sums[link], x[0].cpu().numpy(), float(w[0]), share)
        else:
            self._round(self.rounding, k, (x.cpu(), w), dict(zip(links.tolist(), shares.tolist(), strict=True)))
        self.last[links] = k
        return [self._signed(link) for link in links.tolist()]

    def _round(self, rounding: Rounding, k: int, own: tuple[Tensor, Tensor], shares: dict[int, float]) -> None:
        """Grow the sums of links by rounded shares; the node keeps what they do not grow by.

        A relay cannot say what a site that fetches from it has: over it messages are exact.
        """
        (x, w), held = own, np.append(own[0][0].double().numpy(), float(own[1][0]))
        for link, share in shares.items():
            ends, before = (self.node, self.targets[link]), self.sums[link]
            if self.agreement.is_relayed(ends):
                self.sums[link] = grown(before, x[0].numpy(), float(w[0]), share)
            else:
                if anew := self.outbox.begins_anew(ends[1]):
                    self.anew[link] = k
                rows, steps = (x, w, share), (int(self.last[link]), k)
                self.sums[link], self._increments[link] = rounded(rounding, ends, rows, before, steps, anew=anew)
            held -= self.sums[link] - before
        for kept, value in zip(self.held, (held[:-1], held[-1:]), strict=True):
            kept.copy_(torch.from_numpy(value))

    def post(self, messages: list[Frame]) -> None:
        """Let the messages of a step be sent.

        Guarantee: nothing leaves after a peer has shown a message that another copy of this site has signed.
        Assumes: the step is committed, so that a restarted process would send them again as they are.
        """
        self.members.posted(self.taken(), self._sent())
        self.refuse_copy()  # again: a commit may take seconds
        self._post(messages)

    def resume(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Finish step k, which was committed and taken up: send the same messages again, and take what is there.

        An older copy sends nothing: peers first have the time to show what they have from this site.
        """
        self.members.posted(self.taken(), self._sent())
        self.greet(k)
        self._post_again()
        return self.arrive(k, x, w)

    def greet(self, k: int) -> None:
        """Give everybody the time to show what it has of this site, before a process makes its first new step."""
        met = lambda: not self._asked_to_stop(k) and not self.members.strangers()  # noqa: E731
        wait_for(self.changed, met, self.agreement.limits.deadline)
        self.refuse_copy()
        self.inbox.open()

    def serve(self) -> None:
        """Let the last messages of a run that is over be sent again."""
        self.inbox.open()
        self.members.posted({j: self.inbox.newest(j) for j in self.sources}, self._sent())
        self._post_again()

    def restored(self, k: int) -> None:
        """Take up the links as they were when step k was committed; tell the inbox what had been taken."""
        self.members.reached(k)
        if (known := self.members.store.count()) < (posted := int(self.counts[0])):
            raise Refused(
                f"{self.members.store.path} lists {known} messages, and this site has sent {posted}: without the list "
                "the site cannot recognise a copy of itself",
                "restore the run folder as it was when the run stopped",
            )
        for source, step, sums in zip(self.sources, self.newest.tolist(), self.arrived, strict=True):
            if step >= 0:
                self.inbox.restore(source, step, sums)

    def taken(self) -> dict[int, int]:
        """Return the step of the last message that was taken of each source."""
        steps = zip(self.sources, self.newest.tolist(), strict=True)
        return {j: step for j, step in steps if step >= 0}

    def messages(self, k: int) -> int:
        """Count the messages to other sites at step k."""
        return len(self._shares(k)[0])

    def arrays(self) -> dict[str, Tensor]:
        """Return what a commit must hold besides x and w."""
        own = {"last": self.last, "given": self.given, "counts": self.counts, "newest": self.newest}
        own |= {"held.x": self.held[0], "held.w": self.held[1], "anew": self.anew} if self.held else {}
        for way, nodes, sums in (("sums", self.targets, self.sums), ("arrived", self.sources, self.arrived)):
            own |= {f"{way}.{node}": torch.from_numpy(one) for node, one in zip(nodes, sums, strict=True)}
        return own

    def report(self) -> dict[str, Any]:
        """Return what happened."""
        posted, taken, missed = self.counts.tolist()
        left = [self.agreement.roster[i].name for i in sorted(self.members.gone())]
        return {"posted": posted, "taken": taken, "missed": missed, "left": left}

    def _shares(self, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the links that step k uses, and the share of each; the share of a site that is not there is kept.

        It would lie on the link, and w with it: (2/3)^k of it would be left after k steps without one of three sites.
        Through a relay a message leaves with a share of 0: its target never hears that none will come.
        """
        edges, gone = self.graph.edges(k), self.members.gone()
        absent = [i for i in self.targets if not self.members.is_there(i) and not self.agreement.is_sum]
        idle = [i for i in absent if i not in gone and self.agreement.is_relayed((self.node, i))]
        own = (edges.source == self.node) & (edges.target != self.node)
        own &= ~np.isin(edges.target, absent) | np.isin(edges.target, idle)
        targets = edges.target[own]
        return np.searchsorted(self.targets, targets), np.where(np.isin(targets, idle), 0.0, edges.share[own])

    def _signed(self, link: int) -> Frame:
        """Sign the newest sums of a link."""
        body, digest = body_of(self.sums[link])
        about = self.agreement.run, self.node, self.targets[link], self.members.incarnation, int(self.last[link])
        return Frame.make(self.site, Header(*about, len(body), digest), body)

    def _post(self, messages: Iterable[Frame]) -> None:
        """Let messages be sent, except to sites that have left; first they are in the log of own messages."""
        gone = self.members.gone()
        wanted = [frame for frame in messages if frame.header.target not in gone]
        self.members.store.sign(frame.header for frame in wanted)
        for frame in wanted:
            self.outbox.post(frame, self._increments.pop(self.targets.index(frame.header.target), None))
            self.counts[0] += 1
        self._increments.clear()

    def _post_again(self) -> None:
        """Let the newest message of every link be sent again."""
        self._post(self._signed(link) for link, step in enumerate(self.last.tolist()) if step >= 0)

    def arrive(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Wait for the messages of step k, and add all that are there."""
        self._wait(k)
        sent, taken = self._sent_at(k), self.inbox.take(k)
        returned = self._returned()
        mixed, total, arrived = self._gathered(x, w, taken, returned)
        while (refused := self.outliers.refused(arrived, total)) is not None:
            self._stop_link(k, *refused)
            taken = [frame for frame in taken if frame.header.source != refused[0].source]
            mixed, total, arrived = self._gathered(x, w, taken, returned)
        for one, warned in self.outliers.warned(arrived):
            self.members.accuse(one.source, warned)
        for frame in taken:
            link, sums = self.sources.index(frame.header.source), frame.sums()
            self.arrived[link] = sums if sums.flags.writeable else sums.copy()  # PyTorch takes no other
            self.newest[link] = frame.header.step
        self.counts[1] += len(taken)
        done = {
            "step": k, "sent": sent, "taken": [(frame.header.source, frame.header.step) for frame in taken],
            "anew": [self.targets[link] for link in (self.anew == k).nonzero()[:, 0].tolist()],
            "returned": [(target, step) for target, step, _ in returned],
        }  # fmt: skip
        _LOG.debug("step %d is done", k, extra=done)  # with these a simulation can make the same run again
        self.members.reached(k + 1)
        self._hold(k, self._stopped)
        return torch.from_numpy(mixed)[None].to(x.device), torch.tensor([total], dtype=torch.float64)

    def _returned(self) -> list[tuple[int, int, tuple[Sums, Sums]]]:
        """Return what was on its way to sites that have left: target, last step it took, sums now and at that step.

        It is this site's own, and was noised when it was sent. A step that is made again takes it back again: until the
        next commit, the commit before knows nothing of it.
        """
        back = []
        for link, target in enumerate(self.targets):
            taken, now = self.members.last_taken(target), self.sums[link]
            if taken is None or taken >= self.last[link]:
                continue
            self.last[link] = taken  # it is taken back once
            before = self.outbox.of_step(target, taken)
            if before is not None or taken < 0:
                back.append((target, taken, (now, np.zeros_like(now) if before is None else before.sums())))
            else:
                text, name = "%s left: what was on its way to it after step %d is lost with it", self._names([target])
                _LOG.warning(text, name, taken, extra={"peer": name, "step": taken})
        return back

    def _gathered(
        self, x: Tensor, w: Tensor, taken: list[Frame], returned: list[tuple[int, int, tuple[Sums, Sums]]]
    ) -> tuple[NDArray[np.floating], float, list[Arrival]]:
        """Return x and w of the node after adding messages, and these messages as they are judged."""
        own, links = float(w[0]), [self.sources.index(frame.header.source) for frame in taken]
        kept = (x[0].cpu(), own, 1 - _sum(self.given)) if not self.held else (self.held[0], float(self.held[1]), 1.0)
        sums = [(frame.sums(), self.arrived[link]) for frame, link in zip(taken, links, strict=True)]
        back = [sums for _, _, sums in returned]
        mixed, total, found = gathered(kept[0].numpy(), *kept[1:], [*sums, *back])
        after = self.newest[links].tolist()
        return mixed, total, [self.outliers.arrival(*one, own) for one in zip(taken, after, found, strict=False)]

    def _stop_link(self, k: int, one: Arrival, why: Rejected) -> None:
        """Take nothing more over a link. To the sums of all sites, its messages are still on their way.

        A site that was suspended while a copy of it continued finds fault with honest messages. So peers first have the
        time to show it what the copy has sent.
        """
        wait_for(self.changed, lambda: self._asked_to_stop(k), self.agreement.limits.deadline)
        self.inbox.stop(one.source)
        self.members.accuse(one.source, why)

    def _stopped(self) -> str | None:
        """Say which members' links to this site were stopped, if they have not left: nothing is spent until then."""
        stopped = sorted(self.inbox.stopped() - self.members.gone())
        return f"the link from {self._names(stopped)} is stopped (audit.jsonl). {_DECIDE}" if stopped else None

    def _names(self, nodes: Iterable[int]) -> str:
        return ", ".join(self.agreement.roster[j].name for j in nodes)

    def _wait(self, k: int) -> None:
        """Wait for this step's messages until the deadline; longer for links that were silent for too long.

        While fewer sites than agreed on are online, all wait, and spend nothing.
        """
        edges, began = self.graph.edges(k), time.monotonic()
        due = [int(j) for j in edges.source[edges.target == self.node] if j != self.node]
        self._hold(k, lambda: self._holds(k, due, time.monotonic() - began))

    def _hold(self, k: int, reason: Callable[[], str | None]) -> None:
        """Wait while there is a reason to; people are told of one that is not empty."""
        phase, last_warned = self.members.phase, ""
        with self.changed:
            while not self._asked_to_stop(k) and (why := reason()) is not None:
                if why not in ("", last_warned):
                    _LOG.warning("step %d waits: %s", k, why, extra={"step": k})
                    self.members.enter("paused")
                    last_warned = why
                self.changed.wait(_TICK)
        if last_warned:
            _LOG.warning("step %d goes on", k, extra={"step": k})
        self.members.enter(phase)

    def _asked_to_stop(self, k: int) -> bool:
        """Raise an error if this site has to stop: people asked it to, or another copy of it was in the run."""
        self.refuse_copy()
        if self.stop():
            raise Interrupted(k)
        return False

    def _holds(self, k: int, due: list[int], waited: float) -> str | None:
        """Say what step k waits for: "" for messages that may still be in time, None where it can go on."""
        limits, gone, least = self.agreement.limits, self.members.gone(), k - self.agreement.limits.staleness
        newest = {j: self.inbox.newest(j) for j in due if j not in gone}
        missing = {j: step for j, step in newest.items() if step < k}
        if self.agreement.is_sum:
            return self._lacks(missing, gone, late=waited > limits.deadline)
        silent = [j for j, step in missing.items() if step < least and self.members.may_still_send(j, step, least)]
        if silent:
            return f"nothing from {self._names(silent)} for more than {limits.staleness} steps"
        present, remaining = self.members.count(), len(self.agreement.roster) - len(gone)
        if remaining < limits.fewest and k < self.agreement.config.algorithm.steps:  # rounds of mixing spend nothing
            raise Ended(
                f"{self._names(sorted(gone))} left for good, and {remaining} of at least {limits.fewest} sites that "
                "were agreed on are left",
                "the run ends here, and what was spent is in the ledger. Propose a new agreement with those who stay",
            )
        if present < min(limits.fewest, remaining):
            return f"{present} of at least {limits.fewest} sites are there"
        late = [j for j, step in missing.items() if self.members.is_there(j)]
        late = [j for j in late if self.members.may_still_send(j, missing[j], k)] or self.members.ungreeted()
        if late and waited < limits.deadline:
            return ""
        self.counts[2] += len(missing)
        return None

    def _lacks(self, missing: Iterable[int], gone: set[int], *, late: bool) -> str | None:
        """Say whose message a noised sum waits for, however long: without it, shared noise would not cancel."""
        if gone:
            raise Ended(
                f"{self._names(sorted(gone))} left for good: without its message there is no sum, and nothing is shown",
                "the release is spent. Propose a new agreement with those who stay",
            )
        names = self._names(missing)
        return (f"no sum without the message of {names}" if late else "") if names else None

    def refuse_copy(self) -> None:
        """Stop if a peer has shown a message or a process that this site signed and that is not of this folder."""
        if (found := self.members.foreign) is not None:
            name = self.agreement.roster[found.header.target].name
            raise Ended(
                f"{name} was sent a message of step {found.header.step} that this site signed and that is not in this "
                "folder's log: another copy of this site is in the run, or this folder is an older copy",
                "stop all copies of this site; go on with the one that sent this message if no other has sent any "
                "since, else `privsgp leave` and propose a new agreement: steps that two copies sent are spent twice",
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

    def _sent_at(self, k: int) -> list[int]:
        given = zip(self.targets, self.last.tolist(), self.given.tolist(), strict=True)
        return [i for i, step, share in given if step == k and share]


def _sum(shares: Tensor) -> float:
    """Add up as `numpy.bincount` does: one after the other."""
    total = 0.0
    for share in shares.tolist():
        total += share
    return total
