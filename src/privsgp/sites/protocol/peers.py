"""The peers of a site: which are online, how far each is, and which have left.

All of it was checked when it came (gossip.py). Several threads ask and write: one condition guards everything.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privsgp.sites.protocol.pairs import needs_keys

if TYPE_CHECKING:
    from privsgp.sites.agreement import Agreement
    from privsgp.sites.protocol.frames import Frame
    from privsgp.sites.protocol.gossip import Goodbye, Process
    from privsgp.sites.protocol.mailbox import Inbox


_SILENCE = 4.0  # seconds without a hello after which a site does not count as there, or the deadline if that is longer
LONG_AGO = 1e6
RELAY = -1  # in the place of a node
_WORDS = 8  # hellos to a peer of which an answer counts


@dataclass
class _Peer:
    """What is known of a site."""

    heard: float = -LONG_AGO  # when it last spoke to this site, or to a site that reports it; on the monotonic clock
    met: float = -LONG_AGO  # when it last spoke to this site itself
    reporter: str = ""  # the site whose report `heard` is from
    delivered: tuple[int, float] = (-1, -LONG_AGO)  # the newest step of this site's that it has, and since when
    step: int = 0
    phase: str = "signing"
    incarnation: int = 0  # 0 until it says hello
    process: Process | None = None  # the same, signed
    have: int = -1  # the newest step of this site's that it has
    answered: int = -1  # the same, by its process's answers to messages
    continues: bool = False  # whether it can read increments to the sums of that step
    durable: int = -1  # the newest step of this site's that it will have after a crash
    sent: int = -1  # the newest step that it sent to this site


class PeerTable:
    """All sites of a run, as one of them knows them."""

    def __init__(self, agreement: Agreement, node: int, inbox: Inbox) -> None:
        self.agreement, self.node, self.inbox = agreement, node, inbox
        self.store, self.changed = inbox.store, inbox.changed
        self.others = {i: _Peer() for i in range(len(agreement.roster)) if i != node}
        self.signatures: dict[int, str] = {}
        self.goodbyes: dict[int, Goodbye] = {}
        self.pair_keys: dict[int, str] = {}  # where noise is shared: each site's key for this run, signed
        self.relay_has: dict[int, int] = {}  # by target: the step of this site's message that the relay keeps for it
        self.step, self.phase = 0, "signing"  # of this site
        self.durable = dict[int, int]()  # by source: the newest step of it that a restarted process would still have
        self.sent = dict[int, int]()  # by target: the step of this site's newest message
        self.version = 0  # grows when there is something that others should hear soon
        self._informed: dict[int, str] = {}  # the phase of this site that each other one was last told of
        self._pairs = needs_keys(agreement)
        self._near = [i for i in self.others if node < 0 or not agreement.is_relayed((node, i))]
        self._far = [i for j, i in agreement.links if j == node and agreement.is_relayed((j, i))]
        self._asked: dict[int, deque[tuple[str, float]]] = {}  # by peer: words of the last hellos to it, and when
        self._words: dict[int, str] = {}  # by peer: the word of its last hello
        self._spoke = float("inf")  # when the last hello that was answered was said; before it the inbox is closed
        self._silence = max(_SILENCE, agreement.limits.deadline)

    def enter(self, phase: str) -> None:
        """Begin something else; others hear of it soon."""
        with self.changed:
            if phase != self.phase:
                self.phase, self.version = phase, self.version + 1
                self.step = self.agreement.rounds if phase == "finished" else self.step
                self.changed.notify_all()

    def reached(self, step: int) -> None:
        """Keep how many steps and rounds this site has made."""
        with self.changed:
            self.step = step

    def posted(self, durable: dict[int, int], sent: dict[int, int]) -> None:
        """Keep what a restarted process would still have of each source, and the newest that was sent to each target.

        Assumes: it is called before the messages are sent, and after the commit that holds them.
        """
        with self.changed:
            self.durable, self.sent = durable, sent

    def is_fresh(self) -> bool:
        """Tell whether a hello that this process said lately was answered.

        A process that was suspended has said none. A copy of the site may have continued, and then honest messages look
        wrong to this process. So it judges none and sends none before the next answer shows it what the copy has sent.
        A hello that came during the suspension is no answer: it may be older than the copy.
        """
        return time.monotonic() - self._spoke <= self._silence

    def word_for(self, peer: int) -> str:
        """Return a new word for a hello to a peer, which shows by it that it has heard this hello."""
        self._asked.setdefault(peer, deque(maxlen=_WORDS)).append((word := secrets.token_hex(8), time.monotonic()))
        return word

    def answered(self, peer: int, word: str, answer: str | None) -> None:
        """Keep the word of a peer's hello, and when this process said the hello that it answers."""
        self._words[peer] = word
        for asked, at in self._asked.get(peer, ()):
            if asked == answer:
                self._spoke = at if self._spoke == float("inf") else max(self._spoke, at)

    def informed(self, peer: int, phase: str) -> None:
        """Keep that a peer was told what this site is doing."""
        with self.changed:
            self._informed[peer] = phase
            self.changed.notify_all()

    def all_informed(self) -> bool:
        """Tell whether all sites that are there, and in touch with this one, know what it is doing."""
        with self.changed:
            return all(self._informed.get(i) == self.phase for i in self._near if self.is_there(i))

    def heard(self, peer: int) -> None:
        """Keep that a peer is there; only its hello, which shows what it has of this site, makes it so at first."""
        with self.changed:
            if (other := self.others[peer]).incarnation:
                other.heard = other.met = time.monotonic()
                self.changed.notify_all()

    def took(self, target: int, step: int, answered: int, asked: int, *, continues: bool) -> None:
        """Keep that a message of this site's was brought to a target, and which it answered to have.

        `asked` is the process that was known then. If another process has said hello since, the answer may be of the
        one before, and the message is lost with it.
        """
        with self.changed:
            other = self.others[target]
            if other.incarnation == asked:
                other.have, other.answered, other.heard = step, answered, time.monotonic()
                other.continues = continues
                other.met = other.heard
                self._deliver(target, self.have_of(target))

    def relayed(self, newest: dict[int, int]) -> None:
        """Keep which message of this site's the relay keeps for each target."""
        with self.changed:
            self.relay_has = newest
            for target in self._far:
                self._deliver(target, newest.get(target, -1))

    def _deliver(self, target: int, step: int) -> None:
        if step != self.others[target].delivered[0]:
            self.others[target].delivered = step, time.monotonic()

    def may_still_send(self, source: int, newest: int, step: int) -> bool:
        """Tell whether a site may still bring a message of a step up to this one, if its message `newest` is here.

        It cannot if it reported a later step and has sent no message since. It then kept the shares of those steps,
        because this site was absent, and will never send them. A site that never speaks to this one sends a message at
        each step.
        """
        with self.changed:
            return self.others[source].step <= step or self.others[source].sent > newest

    def have_of(self, target: int) -> int:
        """Return the newest step of this site's that a target said it has, −1 for none; a hello may be older."""
        with self.changed:
            return max(self.others[target].have, self.others[target].answered)

    def last_taken(self, target: int) -> int | None:
        """Return the step of the last message that a target took of this site before it left; None if it has not."""
        with self.changed:
            goodbye = self.goodbyes.get(target)
            return None if goodbye is None else goodbye.taken.get(self.node, -1)

    def has_newest(self, target: int, step: int) -> bool:
        """Tell whether this site's message of a step is with a target, or at the relay from which it will fetch it."""
        if self.agreement.is_relayed((self.node, target)):
            return self.relay_has.get(target, -1) >= step
        return self.have_of(target) >= step

    def is_served(self, target: int, step: int) -> bool:
        """Tell whether a target needs nothing more from this site, whose last message is of `step`."""
        with self.changed:
            if target in self.goodbyes or self.agreement.is_relayed((self.node, target)):
                return target in self.goodbyes or self.has_newest(target, step)
            return self.others[target].phase == "finished" or self.others[target].durable >= step

    def is_there(self, node: int) -> bool:
        """Tell whether a site was heard of lately."""
        with self.changed:
            return node not in self.goodbyes and time.monotonic() - self.others[node].heard <= self._silence

    def is_needed(self, peer: int) -> bool:
        """Tell whether a peer has not left, and it or this site has not finished."""
        with self.changed:
            return peer not in self.goodbyes and {self.phase, self.others[peer].phase} != {"finished"}

    def count(self) -> int:
        """Return how many sites are there, this one included."""
        return 1 + sum(map(self.is_there, self.others))

    def gone(self) -> set[int]:
        """Return the sites that have left for good."""
        with self.changed:
            return set(self.goodbyes)

    def unsigned(self) -> list[str]:
        """Return the names of those whose signature, or whose key where noise is shared, is missing."""
        with self.changed:
            known = self.signatures.keys() & (self.pair_keys if self._pairs else self.signatures).keys()
            return [card.name for i, card in enumerate(self.agreement.roster) if i not in known]

    def ungreeted(self) -> list[int]:
        """Return peers that others report alive, and that could greet this site but have not."""
        return [i for i in self.strangers() if self.is_there(i)]

    def strangers(self) -> list[int]:
        """Return the sites that could be in touch with this one, have not left, and have not greeted this process."""
        with self.changed:
            return [i for i in self._near if i not in self.goodbyes and not self.others[i].incarnation]

    def head(self, node: int) -> Frame | None:
        """Return the newest header of a node that is known here, whichever site it was for."""
        known = [one for one in (self.store.heard.get(node), self.store.seen.get(node)) if one is not None]
        return max(known, key=lambda one: one.header.step, default=None)

    def presence(self, node: int) -> dict[str, Any]:
        """Return what people are shown of a site: how far it is, and whether it speaks to this one.

        A site that speaks through the relay alone is as far as its newest signed message and its signed progress say.
        """
        with self.changed:
            other, now, head = self.others[node], time.monotonic(), self.head(node)
            step = max(other.step, -1 if head is None else head.header.step + 1)
            spoke = other.met if node in self._near else other.heard  # a relay speaks for the others
            is_reported, relay = other.met < other.heard >= now - self._silence, self.agreement.relay
            return {
                "step": step,
                "phase": self._phase_of(node, step),
                "there": node not in self.goodbyes and now - other.met <= self._silence,
                "silent_seconds": None if spoke == -LONG_AGO else round(now - spoke, 1),
                "reported_by": other.reporter if is_reported else None,
                "relay": relay.name if relay is not None and node not in self._near else None,
                "signed": node in self.signatures,
            }

    def _phase_of(self, node: int, step: int) -> str:
        """Return what a site does: by its own word, or by what it has signed if it never spoke to this one."""
        if node in self.goodbyes or self.others[node].incarnation:
            return "left" if node in self.goodbyes else self.others[node].phase
        if step == 0:
            return "signed" if node in self.signatures else "signing"
        return "finished" if step >= self.agreement.rounds else "training"
