"""Hellos: what sites send each other about every second, and which parts a site believes.

A hello also tells what the speaker heard of others, so that two sites that cannot dial each other know of each other.
Nothing of it touches anybody's noise or budget: a lie about a third site can make others wait or go on, no more.
Signatures and goodbyes are signed by the site they are of.

So are headers of messages: of every site the newest that anybody has goes round. Any site can show one that was put
back to an older copy what it had sent, and two messages of one step are seen by sites that got neither.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo

from privsgp.options import Options
from privsgp.outside import MOST, From1, Hash, Signature, Whole, fault
from privsgp.sites.canonical import canonical
from privsgp.sites.protocol import pairs
from privsgp.sites.protocol.frames import PIECE, Frame, Header, Rejected, refuse_head
from privsgp.sites.protocol.mailbox import Inbox
from privsgp.sites.protocol.peers import LONG_AGO, RELAY, PeerTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from privsgp.sites.agreement import Agreement
    from privsgp.sites.identity import Card, Site


def _on_roster(node: int, info: ValidationInfo) -> int:
    if node < 0 or (info.context is not None and node >= info.context):
        raise ValueError("no node of this run")
    return node


Node = Annotated[int, AfterValidator(_on_roster)]
Newest = Annotated[int, Field(ge=-1, le=MOST)]  # a step, −1 where there is none yet
_Word = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]


class _Evidence(Options):
    """The header of a message, as its sender signed it."""

    header: Annotated[str, Field(pattern=r"^[\x20-\x7e]{2,1024}$")]
    signature: Signature


class Process(Options):
    """The number of a site's process in this run, as the site signed it."""

    incarnation: From1
    signature: Signature


class Yours(Options):
    """The newest step, header and process number that a site knows of its peer."""

    newest: Newest
    proof: _Evidence | None
    process: Process | None = None
    word: _Word | None = None  # of its last hello
    continues: bool = False  # whether it can read increments to that step's sums


class Goodbye(Options):
    """A site leaves for good: the step of the last message that it took of each source, and its signature."""

    taken: dict[Node, Whole]
    signature: Signature

    @classmethod
    def make(cls, site: Site, run: str, taken: dict[int, int]) -> Goodbye:
        """Sign that a site leaves."""
        return cls(taken=taken, signature=site.sign(b"leave", _goodbye_text(run, taken)).hex())

    def is_of(self, card: Card, run: str) -> bool:
        """Tell whether the site of a card signed this."""
        return card.signed(b"leave", _goodbye_text(run, self.taken), self.signature)


def _goodbye_text(run: str, taken: dict[int, int]) -> bytes:
    return canonical({"run": run, "taken": {str(source): step for source, step in taken.items()}})


class Hello(Options):
    """The content of a hello, which sites send about every second. Peers send it: everything in it is checked."""

    run: Hash
    incarnation: From1
    process: Signature | None  # of the incarnation
    word: _Word  # a new one in each hello: the listener's next hello has it
    step: Whole
    phase: Literal["signing", "training", "paused", "mixing", "finished", "left"]
    durable: Newest  # the step of the listener's that the speaker will have after a crash
    sent: Newest  # the newest step that the speaker sent to the listener
    signatures: dict[Node, Signature]
    left: dict[Node, Goodbye]
    heard: dict[Node, Annotated[float, Field(ge=0, le=LONG_AGO)]]
    yours: Yours
    pair_keys: dict[Node, Annotated[str, Field(pattern=f"^{pairs.WORD}$")]]
    heads: dict[Node, _Evidence]


Answer = TypeVar("Answer", bound=Options)


def read_message(kind: type[Answer], text: bytes, nodes: int = 0, most: int = PIECE) -> Answer:
    """Return what a peer of a run of so many nodes said; reject anything that is not of its kind."""
    try:
        return kind.model_validate_json(text[: most + 1], context=nodes)
    except ValidationError as error:
        raise Rejected("form", f"no {kind.__name__}: {fault(error)}") from None


def process_text(run: str, incarnation: int) -> bytes:
    """Return the text that a site signs when a process of it starts: no other text of a site has these keys."""
    return canonical({"run": run, "process": incarnation})


class Gossip(PeerTable):
    """The table of peers, and the hellos that it is made of."""

    def __init__(
        self, agreement: Agreement, node: int, incarnation: int, signature: str, inbox: Inbox | None = None,
        *, sign: Callable[[bytes], str] | None = None,
        accuse: Callable[[int, Rejected], None] = lambda _node, _evidence: None,
        keep: Callable[[PeerTable], None] = lambda _table: None,
    ) -> None:  # fmt: skip
        """Take a site's messages from its `inbox`, and the log of its own messages from that one's store.

        Args:
            agreement: The agreement of the run.
            node: The site's number. A relay that is no member has −1.
            incarnation: The number of this process.
            signature: The site's signature of the agreement.
            inbox: The messages that have arrived. None if no message will arrive.
            sign: Signs the number of this process.
            accuse: A function that takes a node's offence and the evidence.
            keep: A function that is called after a signature, a departure or a key has arrived.

        """
        super().__init__(agreement, node, inbox or Inbox(agreement, node, 1))
        self.incarnation, self.sign, self.accuse, self.keep = incarnation, sign, accuse, keep
        self.signatures |= {node: signature} if node >= 0 else {}
        self.foreign: Frame | None = None  # a message that another copy of this site has signed
        self.newer = 0  # the number of a process that another copy of this site has started after this one
        self._accused: set[int] = set()  # sites of which two messages of one step are known: once is enough

    def hello(self, peer: int) -> dict[str, Any]:
        """Return what this site says to a peer: of itself, of others, and what it has of the peer's."""
        with self.changed:
            now = time.monotonic()  # not before: ages would come out below 0
            ages = {i: now - other.heard for i, other in self.others.items()}
            process = None if self.sign is None else self.sign(process_text(self.agreement.run, self.incarnation))
            return {
                "run": self.agreement.run, "incarnation": self.incarnation, "process": process,
                "word": self.word_for(peer), "step": self.step, "phase": self.phase,
                "durable": self.durable.get(peer, -1), "sent": self.sent.get(peer, -1),
                "signatures": dict(self.signatures), "left": {i: one.model_dump() for i, one in self.goodbyes.items()},
                "heard": {i: age for i, age in ages.items() if age < LONG_AGO / 2},
                "yours": self.inbox.shown(peer) | self._process_of(peer) | {"word": self._words.get(peer)},
                "pair_keys": dict(self.pair_keys),
                "heads": {i: head.evidence() for i in self.others if (head := self.head(i)) is not None},
            }  # fmt: skip

    def learn(self, peer: int, text: bytes, asked: int | None = None) -> None:
        """Take in what a peer says; reject what is no hello of this run.

        Of an answer, `asked` is the process that was known when it was asked for: it may have died since.
        """
        hello = self._read(text)
        with self.changed:
            self._compare(hello.yours.process)  # first: the peer may refuse this process because of it
            other = self.others[peer]
            if hello.incarnation < other.incarnation:
                if asked is not None and asked < other.incarnation:
                    return
                what = f"process {hello.incarnation} after {other.incarnation}: two copies of this site were started"
                raise Rejected("incarnation", f"{what}. It has to stop all of them, and join again with one")
            if hello.incarnation > other.incarnation:
                other.process, other.answered = self._process_signed(peer, hello), -1
            other.heard = other.met = time.monotonic()
            other.incarnation, other.step, other.phase = hello.incarnation, hello.step, hello.phase
            other.have, other.durable, other.sent = hello.yours.newest, hello.durable, hello.sent
            other.continues = hello.yours.continues
            self._deliver(peer, self.have_of(peer))
            self.prove(hello.yours.proof)
            self._hear_of_others(hello, self.agreement.roster[peer].name)
            self.answered(peer, hello.word, hello.yours.word)

    def learn_from_relay(self, text: bytes) -> None:
        """Take in what a relay that is no member says of members."""
        hello, relay = self._read(text), self.agreement.relay
        with self.changed:
            self._compare(hello.yours.process)
            self._hear_of_others(hello, "" if relay is None else relay.name)
            self.answered(RELAY, hello.word, hello.yours.word)

    def _read(self, text: bytes) -> Hello:
        hello = read_message(Hello, text, len(self.agreement.roster))
        if hello.run != self.agreement.run:
            raise Rejected("run", f"a hello of run {hello.run[:16]}…: it has another agreement")
        return hello

    def _hear_of_others(self, hello: Hello, by: str) -> None:
        """Take in what a hello passes on; have a signature, a goodbye or a key that is new among it kept."""
        now = time.monotonic()
        for node, age in hello.heard.items():
            if node in self.others and now - age > (other := self.others[node]).heard:
                other.heard, other.reporter = now - age, by
        self._hear_heads(hello.heads)
        self.take_up(hello.signatures, hello.left, hello.pair_keys)
        self.changed.notify_all()

    def take_up(self, signatures: dict[int, str], goodbyes: dict[int, Goodbye], pair_keys: dict[int, str]) -> None:
        """Take in signatures, goodbyes and keys that are right and new, from anybody; the first of a site stays.

        A goodbye stays in every hello, and may name the site's sources alone. Else two members of a large roster could,
        as they leave, make everybody's hellos too long to be read.
        """
        agreement = self.agreement
        with self.changed:
            known = [len(self.signatures), len(self.goodbyes), len(self.pair_keys)]
            for i, one in signatures.items():
                if i not in self.signatures and agreement.signed_by(i, one):
                    self.signatures[i] = one
            for i, goodbye in goodbyes.items():
                is_new = i not in self.goodbyes and i != self.node
                is_new &= all((source, i) in agreement.links for source in goodbye.taken)
                if is_new and goodbye.is_of(agreement.roster[i], agreement.run):
                    self.goodbyes[i] = goodbye
            for i, one in pair_keys.items():
                if self._pairs and i not in self.pair_keys and pairs.is_word(agreement, i, one):
                    self.pair_keys[i] = one
            if known != [len(self.signatures), len(self.goodbyes), len(self.pair_keys)]:
                self.keep(self)

    def is_fresh(self) -> bool:
        """Tell whether this process may judge messages: it has heard a hello lately, and knows of no copy of its site.

        After a copy has continued, honest messages look wrong to this process.
        """
        return self.foreign is None and not self.newer and super().is_fresh()

    def leave(self, goodbye: Goodbye) -> None:
        """Leave for good."""
        with self.changed:
            self.goodbyes[self.node] = goodbye
            self.keep(self)
        self.enter("left")

    def prove(self, evidence: _Evidence | None) -> None:
        """Look at a message that a peer has from this site; keep it if it is not in this site's log.

        The peer's word is not enough: it has to show this site's signature.
        """
        if evidence is None:
            return
        header = Header.read(evidence.header.encode())
        if self.foreign is None and self.node >= 0 and not self.store.signed(header):
            self.foreign = self._verified(self.node, header, evidence)
            name = self.agreement.roster[header.target].name
            what = f"this site signed a message of step {header.step} to {name} that its own log does not contain"
            self.accuse(self.node, Rejected("copy", what, self.foreign.evidence()))

    def look(self, answer: Yours) -> None:
        """Look at what a peer has from this site; keep what only another copy of this site can have sent."""
        self.prove(answer.proof)
        self._compare(answer.process)

    def has_of(self, peer: int) -> dict[str, Any]:
        """Return what this site has of a peer: the answer to a message."""
        return self.inbox.proof(peer) | self._process_of(peer)

    def _process_of(self, peer: int) -> dict[str, Any]:
        process = self.others[peer].process if peer in self.others else None
        return {"process": None if process is None else process.model_dump()}

    def _process_signed(self, peer: int, hello: Hello) -> Process | None:
        """Return the process of a peer, with its signature; reject one that the peer did not sign.

        Processes before it are refused from now on, so this site must be able to show them why. There is none before
        the first.
        """
        text, word = process_text(self.agreement.run, hello.incarnation), hello.process or ""
        if self.agreement.roster[peer].signed(b"progress", text, word):
            return Process(incarnation=hello.incarnation, signature=word)
        if hello.incarnation > 1:
            raise Rejected("signature", f"process {hello.incarnation}, which its site did not sign")
        return None

    def _compare(self, process: Process | None) -> None:
        """Keep a process of this site that was started after this one: only another copy of the site can do that.

        Guarantee: only this site's own signature counts. The next process of this folder gets a higher number.
        """
        if process is None or self.node < 0 or process.incarnation <= max(self.incarnation, self.newer):
            return
        text = process_text(self.agreement.run, process.incarnation)
        if not self.agreement.roster[self.node].signed(b"progress", text, process.signature):
            raise Rejected("signature", f"process {process.incarnation} of this site, which this site did not sign")
        self.newer = process.incarnation
        what = f"process {self.newer} of this site was started, and this one is process {self.incarnation}"
        self.accuse(self.node, Rejected("copy", what, {"process": process.model_dump()}))
        self.store.skip(self.newer)

    def _verified(self, node: int, header: Header, evidence: _Evidence) -> Frame:
        """Return a header of a message that a node may send in this run, and has signed; reject any other.

        It is passed on as this site writes it: everybody must find in it what was found here.
        """
        signature = bytes.fromhex(evidence.signature)
        refuse_head(self.agreement, node, header.target, header, signature)
        return Frame(header, signature, b"")

    def _hear_heads(self, heads: dict[int, _Evidence]) -> None:
        """Take in headers of others' messages; keep evidence of two messages of one link and step."""
        for node, one in heads.items():
            if node == self.node:
                self.prove(one)
                continue
            header, known = Header.read(one.header.encode()), self.head(node)
            if known is None or header.step > known.header.step:
                self.store.hear(self._verified(node, header, one))
            elif header.contradicts(known.header) and node not in self._accused:
                second = self._verified(node, header, one).evidence()
                self._accused.add(node)
                what = f"two messages of step {header.step} to {self.agreement.roster[header.target].name}"
                self.accuse(node, Rejected("equivocation", what, {"first": known.evidence(), "second": second}))
