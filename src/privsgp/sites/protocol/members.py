"""Who is there: every site's signature, its step, when it was last heard of, and who has left for good.

Sites say hello to everybody they can dial, every second or so. A hello also tells what the speaker heard of others, so
that two sites that cannot dial each other know of each other. Nothing of it touches anybody's noise or budget: whoever
lies about a third site can make others wait or go on, no more. Signatures, goodbyes and what a site has sent to one
that never hears it are signed by whom they are of.

So are headers of messages: of every site the newest that anybody has goes round. Whoever is there can show a site that
was put back to an older copy what it had sent, and two messages of one step are seen by those who got neither.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo

from privsgp.options import Options
from privsgp.outside import MOST, From1, Hash, Whole, fault
from privsgp.sites.canonical import canonical
from privsgp.sites.protocol import pairs
from privsgp.sites.protocol.frames import PIECE, Frame, Header, Rejected, refuse_head
from privsgp.sites.protocol.mailbox import Inbox

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from privsgp.sites.agreement import Agreement
    from privsgp.sites.identity import Card

_SILENCE = 4.0  # seconds without a hello after which a site does not count as there, or the deadline if that is longer
_LONG_AGO = 1e6


def _on_roster(node: int, info: ValidationInfo) -> int:
    if node < 0 or (info.context is not None and node >= info.context):
        raise ValueError("no node of this run")
    return node


Node = Annotated[int, AfterValidator(_on_roster)]
_Signature = Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


class Evidence(Options):
    """The header of a message, as its sender signed it."""

    header: Annotated[str, Field(pattern=r"^[\x20-\x7e]{2,1024}$")]
    signature: _Signature


class Process(Options):
    """The number of a site's process in this run, as the site signed it."""

    incarnation: From1
    signature: _Signature


class Newest(Options):
    """The newest message of another site that this site has: its step, its header, and the newest process."""

    newest: Annotated[int, Field(ge=-1, le=MOST)]
    proof: Evidence | None
    process: Process | None = None


class Goodbye(Options):
    """A site leaves for good: the step of the last message that it took of each source, and its signature."""

    taken: dict[Node, Whole]
    signature: _Signature


class Hello(Options):
    """What sites tell each other every second or so. Peers send it: everything in it is checked."""

    run: Hash
    incarnation: From1
    process: _Signature | None  # of the incarnation
    step: Whole
    phase: Literal["signing", "training", "paused", "mixing", "finished", "left"]
    have: dict[Node, Whole]
    durable: dict[Node, Whole]
    sent: dict[Node, Whole]
    signatures: dict[Node, _Signature]
    vows: dict[Node, _Signature]
    passed_on: dict[Node, tuple[Whole, Annotated[int, Field(ge=-1, le=MOST)], _Signature]]
    left: dict[Node, Goodbye]
    heard: dict[Node, Annotated[float, Field(ge=0, le=_LONG_AGO)]]
    yours: Newest
    pair_keys: dict[Node, Annotated[str, Field(pattern=f"^{pairs.WORD}$")]]
    heads: dict[Node, Evidence]


Said = TypeVar("Said", bound=Options)


def read_said(kind: type[Said], text: bytes, nodes: int = 0, most: int = PIECE) -> Said:
    """Return what a peer of a run of so many nodes said; reject whatever is none of its kind."""
    try:
        return kind.model_validate_json(text[: most + 1], context=nodes)
    except ValidationError as error:
        raise Rejected("form", f"no {kind.__name__}: {fault(error)}") from None


def goodbye_text(run: str, taken: dict[int, int]) -> bytes:
    """Return what a site signs that leaves for good: the step of the last message that it took of each source."""
    return canonical({"run": run, "taken": {str(source): step for source, step in taken.items()}})


def left_for_good(card: Card, run: str, told: Goodbye) -> bool:
    """Tell whether a site signed that it leaves a run for good, having taken that."""
    return card.signed(b"leave", goodbye_text(run, told.taken), told.signature)


def progress_text(run: str, target: int, made: int, sent: int) -> bytes:
    """Return what a site signs for one that never hears it: steps that it has made, and the newest that it sent it."""
    return canonical({"run": run, "target": target, "made": made, "sent": sent})


def process_text(run: str, incarnation: int) -> bytes:
    """Return the text that a site signs when a process of it starts: no other text of a site has these keys."""
    return canonical({"run": run, "process": incarnation})


@dataclass
class Member:
    """What is known of a site."""

    heard: float = -_LONG_AGO  # when it last spoke to this site, or to a site that reports it; on the monotonic clock
    met: float = -_LONG_AGO  # when it last spoke to this site itself
    reporter: str = ""  # the site whose report `heard` is from
    delivered: tuple[int, float] = (-1, -_LONG_AGO)  # the newest step of this site's that it has, and since when
    certificate_until: dt.datetime | None = None  # of the certificate that it showed last
    step: int = 0
    phase: str = "signing"
    incarnation: int = 0
    process: Process | None = None  # the same, signed
    have: dict[int, int] = field(default_factory=dict)  # by source: newest step that it has
    durable: dict[int, int] = field(default_factory=dict)  # by source: newest step that it will have after a crash
    sent: dict[int, int] = field(default_factory=dict)  # by target: the step of its newest message
    vows: dict[int, str] = field(default_factory=dict)  # by target that never hears it: its signature of how far it is
    progress: tuple[int, int] = (0, -1)  # steps that it has made, and the newest that it sent to this site, by its word
    answered: int = -1  # the newest step of this site's that its process has answered to have


class Members:
    """All sites of a run, as one of them knows them; several threads ask and tell."""

    def __init__(
        self, agreement: Agreement, node: int, incarnation: int, signature: str, inbox: Inbox | None = None,
        *, sign: Callable[[bytes], str] | None = None,
        accuse: Callable[[int, Rejected], None] = lambda _node, _evidence: None,
        keep: Callable[[Members], None] = lambda _members: None,
    ) -> None:  # fmt: skip
        """Take a site's messages from its `inbox`, and the log of its own messages from that one's store.

        Args:
            agreement: The run's.
            node: The site's number; −1 for a relay that is no member.
            incarnation: The number of this process.
            signature: The site's of the agreement.
            inbox: What has arrived; None where nothing will.
            sign: Signs the number of this process, and how far the site is for sites that never hear it.
            accuse: Is told of what a node did, with evidence.
            keep: Is called when a signature, a goodbye or a key came.

        """
        self.agreement, self.node, self.incarnation = agreement, node, incarnation
        self.inbox = inbox or Inbox(agreement, node, 1)
        self.store, self.changed = self.inbox.store, self.inbox.changed
        self.sign, self.accuse, self.keep = sign, accuse, keep
        self.foreign: Frame | None = None  # a message that another copy of this site has signed
        self.newer = 0  # the number of a process that another copy of this site has started after this one
        self.others = {i: Member() for i in range(len(agreement.roster)) if i != node}
        self.signatures = {node: signature} if node >= 0 else {}
        self.relay_has: dict[int, int] = {}  # by target: the step of this site's message that the relay keeps for it
        self.left: dict[int, Goodbye] = {}
        self.pair_keys: dict[int, str] = {}  # where noise is shared: each site's key for this run, signed
        self._pairs = pairs.needs_keys(agreement)
        self.step, self._phase = 0, "signing"
        self.durable = dict[int, int]()  # by source: the newest step of it that a restarted process would still have
        self.sent = dict[int, int]()  # by target: the step of this site's newest message
        self.told: dict[int, str] = {}  # the phase that a site was last told of
        self.version = 0  # grows when there is something that others should hear soon
        self._accused: set[int] = set()  # of whom two messages of one step are known: once is enough
        self._sources = {i: {j for j, target in agreement.links if target == i} for i in (node, *self.others)}
        self._near = [i for i in self.others if node < 0 or not agreement.is_relayed((node, i))]
        self._far = [i for j, i in agreement.links if j == node and agreement.is_relayed((j, i))]
        self._vowed: dict[int, tuple[bytes, str]] = {}  # by target: what was signed last, and the signature
        self._silence = max(_SILENCE, agreement.limits.deadline)

    @property
    def phase(self) -> str:
        """What this site is doing."""
        return self._phase

    @phase.setter
    def phase(self, now: str) -> None:
        with self.changed:
            if now != self._phase:
                self._phase, self.version = now, self.version + 1
                self.changed.notify_all()

    def posted(self, durable: dict[int, int], sent: dict[int, int] | None = None) -> None:
        """Note what a restarted process would still have of each source, and the newest that was sent to each target.

        Assumes: it is called before the messages are sent, and after the commit that holds them.
        """
        with self.changed:
            self.durable, self.sent = durable, self.sent if sent is None else sent

    def have(self) -> dict[int, int]:
        """Return, by source, the step of the newest message that is here."""
        return {j: step for j in self._sources[self.node] if (step := self.inbox.newest(j)) >= 0}

    def have_heard(self, phase: str) -> bool:
        """Tell whether all sites that are there, and in touch with this one, know what it is doing."""
        return all(self.told.get(i) == phase for i in self._near if self.is_there(i))

    def hello(self, peer: int) -> dict[str, Any]:
        """Return what this site says to a peer: of itself, of others, and what it has of the peer's."""
        with self.changed:
            now = time.monotonic()  # not before: ages would come out below 0
            ages = {i: now - m.heard for i, m in self.others.items()}
            return {
                "run": self.agreement.run, "incarnation": self.incarnation, "process": self._process(),
                "step": self.step, "phase": self.phase,
                "have": self.have(), "durable": self.durable, "sent": self.sent,
                "vows": self._vows(self._made(self.phase, self.step), self.sent), "passed_on": self._passed_on(peer),
                "signatures": dict(self.signatures), "left": {i: one.model_dump() for i, one in self.left.items()},
                "heard": {i: age for i, age in ages.items() if age < _LONG_AGO / 2},
                "yours": self.inbox.shown(peer) | self._process_of(peer), "pair_keys": dict(self.pair_keys),
                "heads": {i: head.evidence() for i in self.others if (head := self._head(i)) is not None},
            }  # fmt: skip

    def learn(self, peer: int, text: bytes, asked: int | None = None) -> None:
        """Take in what a peer says; reject what is no hello of this run.

        Of an answer, `asked` is the process that was known when it was asked for: it may have died since.
        """
        said = self._read(text)
        with self.changed:
            self._compare(said.yours.process)  # first: the peer may refuse this process because of it
            member = self.others[peer]
            if said.incarnation < member.incarnation:
                if asked is not None and asked < member.incarnation:
                    return
                what = f"process {said.incarnation} after {member.incarnation}: two copies of this site were started"
                raise Rejected("incarnation", f"{what}. It has to stop all of them, and join again with one")
            if said.incarnation > member.incarnation:
                member.process, member.answered = self._signed(peer, said), -1
            member.heard = member.met = time.monotonic()
            member.incarnation, member.step, member.phase = said.incarnation, said.step, said.phase
            member.have, member.durable, member.sent, member.vows = said.have, said.durable, said.sent, said.vows
            self._deliver(peer, self.have_of(peer))
            member.progress = self._made(member.phase, member.step), member.sent.get(self.node, -1)
            self.prove(said.yours.proof)
            self._hear_of_others(said, self.agreement.roster[peer].name)

    def learn_from_relay(self, text: bytes) -> None:
        """Take in what a relay that is no member says of members."""
        said, relay = self._read(text), self.agreement.relay
        with self.changed:
            self._compare(said.yours.process)
            self._hear_of_others(said, "" if relay is None else relay.name)

    def _read(self, text: bytes) -> Hello:
        said = read_said(Hello, text, len(self.agreement.roster))
        if said.run != self.agreement.run:
            raise Rejected("run", f"a hello of run {said.run[:16]}…: it has another agreement")
        return said

    def _hear_of_others(self, said: Hello, by: str) -> None:
        """Take in what a hello passes on; have a signature, a goodbye or a key that is new among it kept."""
        now = time.monotonic()
        for node, age in said.heard.items():
            if node in self.others and now - age > (member := self.others[node]).heard:
                member.heard, member.reporter = now - age, by
        self._hear_progress(said.passed_on)
        self._hear_heads(said.heads)
        if self._sign(said.signatures) | self._leave(said.left) | self._share(said.pair_keys):
            self.keep(self)
        self.changed.notify_all()

    def take_up(self, signatures: dict[int, str], goodbyes: dict[int, Goodbye], pair_keys: dict[int, str]) -> None:
        """Take up what earlier processes of this site had kept."""
        with self.changed:
            self._sign(signatures)
            self._leave(goodbyes)
            self.pair_keys |= {i: one for i, one in pair_keys.items() if i == self.node}
            self._share(pair_keys)
            self.keep(self)

    def leave(self, goodbye: Goodbye) -> None:
        """Note that this site leaves for good."""
        with self.changed:
            self.left[self.node] = goodbye
            self.keep(self)
        self.phase = "left"

    def _made(self, phase: str, step: int) -> int:
        """Return how many steps and rounds a site has made, by its own word."""
        return self.agreement.rounds if phase == "finished" else step

    def _vows(self, made: int, sent: dict[int, int]) -> dict[int, str]:
        """Sign how far this site is, for each target that never hears it: whoever passes that on can make up nothing.

        An older vow that somebody shows again is still true: steps that were made stay made, through crashes too.
        """
        if self.sign is None:
            return {}
        for i in self._far:
            text = progress_text(self.agreement.run, i, made, sent.get(i, -1))
            if i not in self._vowed or self._vowed[i][0] != text:
                self._vowed[i] = text, self.sign(text)
        return {i: vow for i, (_, vow) in self._vowed.items()}

    def _passed_on(self, peer: int) -> dict[int, tuple[int, int, str]]:
        """Return what sites that never speak to a peer have signed for it: steps made, and the newest sent to it."""
        vowed = {i: m for i, m in self.others.items() if peer in m.vows}
        return {i: (self._made(m.phase, m.step), m.sent.get(peer, -1), m.vows[peer]) for i, m in vowed.items()}

    def _hear_progress(self, told: dict[int, tuple[int, int, str]]) -> None:
        """Take in how far sites are that never speak to this one; what they did not sign for it is nobody's word."""
        for i, (made, sent, vow) in told.items():
            text = progress_text(self.agreement.run, self.node, made, sent)
            far = i in self.others and not self.others[i].incarnation and self.others[i].progress < (made, sent)
            if far and self.agreement.roster[i].signed(b"progress", text, vow):
                self.others[i].progress = made, sent

    def owes(self, source: int, newest: int, step: int) -> bool:
        """Tell whether a site may still bring a message of a step up to this one, to who has its message `newest`.

        Not so where it said that it is past that step and has sent nothing since: it has kept what it would have sent,
        because this site was not there, and will never send it. Who waited for that would wait for good.
        """
        with self.changed:
            made, sent = self.others[source].progress
            return made <= step or sent > newest

    def prove(self, told: Evidence | None) -> None:
        """Look at a message that a peer has from this site; note it if it is not in this site's log.

        The peer's word is not enough: it has to show this site's signature.
        """
        if told is None:
            return
        header = Header.read(told.header.encode())
        if self.foreign is None and self.node >= 0 and not self.store.signed(header):
            self.foreign = self._verified(self.node, header, told)
            name = self.agreement.roster[header.target].name
            what = f"this site signed a message of step {header.step} to {name} that its own log does not contain"
            self.accuse(self.node, Rejected("copy", what, self.foreign.evidence()))

    def look(self, told: Newest) -> None:
        """Look at what a peer has from this site; note what only another copy of this site can have sent."""
        self.prove(told.proof)
        self._compare(told.process)

    def has_of(self, peer: int) -> dict[str, Any]:
        """Return what this site has of a peer: the answer to a message."""
        return self.inbox.proof(peer) | self._process_of(peer)

    def _process(self) -> str | None:
        return None if self.sign is None else self.sign(process_text(self.agreement.run, self.incarnation))

    def _process_of(self, peer: int) -> dict[str, Any]:
        process = self.others[peer].process if peer in self.others else None
        return {"process": None if process is None else process.model_dump()}

    def _signed(self, peer: int, said: Hello) -> Process | None:
        """Return the process of a peer, with its signature; reject one that the peer did not sign.

        Processes before it are refused from now on, so this site must be able to show them why. There is none before
        the first.
        """
        text, word = process_text(self.agreement.run, said.incarnation), said.process or ""
        if self.agreement.roster[peer].signed(b"progress", text, word):
            return Process(incarnation=said.incarnation, signature=word)
        if said.incarnation > 1:
            raise Rejected("signature", f"process {said.incarnation}, which its site did not sign")
        return None

    def _compare(self, told: Process | None) -> None:
        """Note a process of this site that was started after this one: only another copy of the site can do that.

        Guarantee: only this site's own signature counts. The next process of this folder gets a higher number.
        """
        if told is None or self.node < 0 or told.incarnation <= max(self.incarnation, self.newer):
            return
        text = process_text(self.agreement.run, told.incarnation)
        if not self.agreement.roster[self.node].signed(b"progress", text, told.signature):
            raise Rejected("signature", f"process {told.incarnation} of this site, which this site did not sign")
        self.newer = told.incarnation
        what = f"process {self.newer} of this site was started, and this one is process {self.incarnation}"
        self.accuse(self.node, Rejected("copy", what, {"process": told.model_dump()}))
        self.store.skip(self.newer)

    def _verified(self, node: int, header: Header, told: Evidence) -> Frame:
        """Return a header of a message that a node may send in this run, and has signed; reject any other.

        It is passed on as this site writes it: everybody must find in it what was found here.
        """
        signature = bytes.fromhex(told.signature)
        refuse_head(self.agreement, node, header.target, header, signature)
        return Frame(header, signature, b"")

    def _head(self, node: int) -> Frame | None:
        """Return the newest header of a node that is known here, whomever it was for."""
        known = [head for head in (self.store.heard.get(node), self.store.seen.get(node)) if head is not None]
        return max(known, key=lambda head: head.header.step, default=None)

    def _hear_heads(self, told: dict[int, Evidence]) -> None:
        """Take in headers of others' messages; what shows two messages of one link and step is kept."""
        for node, one in told.items():
            if node == self.node:
                self.prove(one)
                continue
            header, known = Header.read(one.header.encode()), self._head(node)
            if known is None or header.step > known.header.step:
                self.store.hear(self._verified(node, header, one))
            elif header.contradicts(known.header) and node not in self._accused:
                second = self._verified(node, header, one).evidence()
                self._accused.add(node)
                what = f"two messages of step {header.step} to {self.agreement.roster[header.target].name}"
                self.accuse(node, Rejected("equivocation", what, {"first": known.evidence(), "second": second}))

    def _sign(self, signatures: dict[int, str]) -> bool:
        """Take in signatures that are right and new; anybody may bring them."""
        new = {i: one for i, one in signatures.items() if i not in self.signatures}
        right = {i: one for i, one in new.items() if self.agreement.signed_by(i, one)}
        self.signatures |= right
        return bool(right)

    def _share(self, words: dict[int, str]) -> bool:
        """Take in keys that are right and new. The first of a site stays: who signs two troubles nobody but itself."""
        new = {i: one for i, one in words.items() if self._pairs and i not in self.pair_keys and i != self.node}
        right = {i: one for i, one in new.items() if pairs.is_word(self.agreement, i, one)}
        self.pair_keys |= right
        return bool(right)

    def _leave(self, goodbyes: dict[int, Goodbye]) -> bool:
        """Take in goodbyes that are right and new; they stay in every hello, and must say no more than they have to.

        Else two members of a large roster could, as they leave, make everybody's hellos too long to be read.
        """
        new = {i: one for i, one in goodbyes.items() if i not in self.left and i != self.node}
        right = {i: one for i, one in new.items() if left_for_good(self.agreement.roster[i], self.agreement.run, one)}
        right = {i: one for i, one in right.items() if one.taken.keys() <= self._sources[i]}
        self.left |= right
        return bool(right)

    def last_taken(self, target: int) -> int | None:
        """Return the step of the last message that a target took of this site before it left; None where it has not."""
        with self.changed:
            told = self.left.get(target)
            return None if told is None else told.taken.get(self.node, -1)

    def has_newest(self, target: int, step: int) -> bool:
        """Tell whether this site's message of a step is with a target, or where it will fetch it."""
        if self.agreement.is_relayed((self.node, target)):
            return self.relay_has.get(target, -1) >= step
        return self.have_of(target) >= step

    def is_there(self, node: int) -> bool:
        """Tell whether a site was heard of lately."""
        with self.changed:
            return node not in self.left and time.monotonic() - self.others[node].heard <= self._silence

    def is_needed(self, peer: int) -> bool:
        """Tell whether a peer has not left, and it or this site has not finished."""
        with self.changed:
            return peer not in self.left and {self.phase, self.others[peer].phase} != {"finished"}

    def has_met_anybody(self) -> bool:
        """Tell whether any site has said hello to this process."""
        with self.changed:
            return any(member.incarnation for member in self.others.values())

    def count(self) -> int:
        """Return how many sites are there, this one included."""
        return 1 + sum(map(self.is_there, self.others))

    def gone(self) -> set[int]:
        """Return who has left for good."""
        with self.changed:
            return set(self.left)

    def unsigned(self) -> list[str]:
        """Return the names of those whose signature, or whose key where noise is shared, is missing."""
        with self.changed:
            shared = self.pair_keys if self._pairs else self.signatures
            known = self.signatures.keys() & shared.keys()
            return [card.name for i, card in enumerate(self.agreement.roster) if i not in known]

    def heard(self, peer: int) -> None:
        """Note that a peer is there; only its hello, which shows what it has of this site, makes it so at first."""
        with self.changed:
            if (member := self.others[peer]).incarnation:
                member.heard = member.met = time.monotonic()
                self.changed.notify_all()

    def ungreeted(self) -> list[int]:
        """Return who is there by what others say, could be in touch with this site, and has not said hello to it."""
        with self.changed:
            return [i for i in self._near if not self.others[i].incarnation and self.is_there(i)]

    def strangers(self) -> list[int]:
        """Return who could be in touch with this site, has not left, and has not said hello to this process."""
        with self.changed:
            return [i for i in self._near if i not in self.left and not self.others[i].incarnation]

    def have_of(self, target: int) -> int:
        """Return the newest step of this site's that a target said it has, −1 for none; a hello may be older."""
        with self.changed:
            return max(self.others[target].have.get(self.node, -1), self.others[target].answered)

    def took(self, target: int, step: int, answered: int, asked: int) -> None:
        """Note that a message of this site's was brought to a target, and which it answered to have.

        `asked` is the process that was known then. Where another has said hello since, the answer may be of the one
        before, and the message is lost with it.
        """
        with self.changed:
            member = self.others[target]
            if member.incarnation != asked:
                return
            member.have[self.node] = step
            member.heard = member.met = time.monotonic()
            member.answered = answered
            self._deliver(target, self.have_of(target))

    def relayed(self, newest: dict[int, int]) -> None:
        """Note which message of this site's the relay keeps for each target."""
        with self.changed:
            self.relay_has = newest
            for target in self._far:
                self._deliver(target, newest.get(target, -1))

    def showed(self, peer: int, until: dt.datetime) -> None:
        """Note until when the certificate is valid that a peer has shown."""
        self.others[peer].certificate_until = until

    def _deliver(self, target: int, step: int) -> None:
        member = self.others[target]
        if step != member.delivered[0]:
            member.delivered = step, time.monotonic()

    def presence(self, node: int) -> dict[str, Any]:
        """Return what people are shown of a site: how far it is, and whether it speaks to this one.

        A site that speaks through the relay alone is as far as its newest signed message and its signed progress say.
        """
        with self.changed:
            member, now, head = self.others[node], time.monotonic(), self._head(node)
            step = max(member.step, member.progress[0], -1 if head is None else head.header.step + 1)
            is_reported, relay = member.met < member.heard >= now - self._silence, self.agreement.relay
            return {
                "step": step,
                "phase": self._phase_of(node, step),
                "there": node not in self.left and now - member.met <= self._silence,
                "silent_seconds": None if member.met == -_LONG_AGO else round(now - member.met, 1),
                "reported_by": member.reporter if is_reported else None,
                "relay": relay.name if relay is not None and node not in self._near else None,
                "signed": node in self.signatures,
            }

    def _phase_of(self, node: int, step: int) -> str:
        """Return what a site does: by its own word, or by what it has signed if it never spoke to this one."""
        if node in self.left or self.others[node].incarnation:
            return "left" if node in self.left else self.others[node].phase
        if step == 0:
            return "signed" if node in self.signatures else "signing"
        if step >= self.agreement.rounds:
            return "finished"
        return "training" if step <= self.agreement.config.algorithm.steps else "mixing"

    def is_served(self, target: int, step: int) -> bool:
        """Tell whether a target needs nothing more from this site, whose last message is of `step`."""
        with self.changed:
            m = self.others[target]
            if self.agreement.is_relayed((self.node, target)):
                return target in self.left or self.relay_has.get(target, -1) >= step
            return target in self.left or m.phase == "finished" or m.durable.get(self.node, -1) >= step
