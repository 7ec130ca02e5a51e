"""Who is there: every site's signature, its step, when it was last heard of, and who has left for good.

Sites say hello to everybody they can dial, every second or so. A hello also tells what the speaker heard of others, so
that two sites that cannot dial each other know of each other. Nothing of it touches anybody's noise or budget: whoever
lies about a third site can make others wait or go on, no more. Signatures, goodbyes and what a site has sent to one
that never hears it are signed by whom they are of.

So are headers of messages: of every site the newest that anybody has goes round. Whoever is there can show a site that
was put back to an older copy what it had sent, and two messages of one step are seen by those who got neither.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from privsgp.sites import pairs
from privsgp.sites.canonical import canonical
from privsgp.sites.frames import Frame, Header, Rejected, refuse_head
from privsgp.sites.own_messages import OwnMessages
from privsgp.sites.seen import Heard
from privsgp.transport import forms

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from privsgp.sites.agreement import Agreement
    from privsgp.sites.identity import Card

PHASES = ("signing", "training", "paused", "mixing", "finished", "left")
_SIGNATURE = forms.text("[0-9a-f]{128}", "a signature")
_PAIR_KEY = forms.text(pairs.WORD, "a key for a run, signed")
_PHASE = forms.text("|".join(PHASES), "a phase")
_PROOF = forms.keys({"header": forms.text(r"[\x20-\x7e]{2,1024}", "a header"), "signature": _SIGNATURE})
NEWEST = forms.keys({"newest": forms.whole(-1), "proof": forms.perhaps(_PROOF)})
_PROGRESS = forms.row(forms.whole(), forms.whole(-1), _SIGNATURE)
_SILENCE = 4.0  # seconds without a hello after which a site does not count as there, or the deadline if that is longer
_LONG_AGO = 1e6


def _by_node(form: forms.Form, nodes: int) -> forms.Form:
    known = {str(node) for node in range(nodes)}

    def fits(said: object) -> bool:
        return isinstance(said, dict) and said.keys() <= known and all(map(form.fits, said.values()))

    return forms.Form(f"by node: {form.text}", fits)


def _goodbye_form(nodes: int) -> forms.Form:
    return forms.keys({"taken": _by_node(forms.whole(), nodes), "signature": _SIGNATURE})


def goodbye_text(run: str, taken: dict[str, int]) -> bytes:
    """Return what a site signs that leaves for good: the step of the last message that it took of each source."""
    return canonical({"run": run, "taken": taken})


def left_for_good(card: Card, run: str, told: dict[str, Any]) -> bool:
    """Tell whether a site signed that it leaves a run for good, having taken that."""
    return card.signed(b"leave", goodbye_text(run, told["taken"]), told["signature"] or "")


def progress_text(run: str, target: int, made: int, sent: int) -> bytes:
    """Return what a site signs for one that never hears it: steps that it has made, and the newest that it sent it."""
    return canonical({"run": run, "target": target, "made": made, "sent": sent})


def hello_form(nodes: int) -> forms.Form:
    """Say what a hello must look like."""
    steps = _by_node(forms.whole(), nodes)
    return forms.keys(
        {
            "run": forms.text("[0-9a-f]{64}", "a run"), "incarnation": forms.whole(1), "step": forms.whole(),
            "phase": _PHASE, "have": steps, "durable": steps, "sent": steps, "signatures": _by_node(_SIGNATURE, nodes),
            "vows": _by_node(_SIGNATURE, nodes), "passed_on": _by_node(_PROGRESS, nodes),
            "left": _by_node(_goodbye_form(nodes), nodes), "heard": _by_node(forms.real(0.0, _LONG_AGO), nodes),
            "yours": NEWEST, "pair_keys": _by_node(_PAIR_KEY, nodes), "heads": _by_node(_PROOF, nodes),
        }
    )  # fmt: skip


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
    have: dict[str, int] = field(default_factory=dict)  # by source: newest step that it has
    durable: dict[str, int] = field(default_factory=dict)  # by source: newest step that it will have after a crash
    sent: dict[str, int] = field(default_factory=dict)  # by target: the step of its newest message
    vows: dict[str, str] = field(default_factory=dict)  # by target that never hears it: its signature of how far it is
    progress: tuple[int, int] = (0, -1)  # steps that it has made, and the newest that it sent to this site, by its word
    answered: int = -1  # the newest step of this site's that its process has answered to have


class Members:
    """All sites of a run, as one of them knows them; several threads ask and tell."""

    def __init__(
        self, agreement: Agreement, node: int, incarnation: int, signature: str, own: OwnMessages | None = None
    ) -> None:
        self.agreement, self.node, self.incarnation = agreement, node, incarnation
        self.own = OwnMessages() if own is None else own  # an empty one is false
        self.foreign: Frame | None = None  # a message that another copy of this site has signed
        self.changed = threading.Condition()
        self.others = {i: Member() for i in range(len(agreement.roster)) if i != node}
        self.signatures = {node: signature} if node >= 0 else {}
        self.relay_has: dict[int, int] = {}  # by target: the step of this site's message that the relay keeps for it
        self.left: dict[int, dict[str, Any]] = {}  # goodbyes: what was taken of whom, signed
        self.pair_keys: dict[int, str] = {}  # where noise is shared: each site's key for this run, signed
        self._pairs = pairs.needs_keys(agreement)
        self.step, self._phase = 0, "signing"
        self.told: dict[int, str] = {}  # the phase that a site was last told of
        self.version = 0  # grows when there is something that others should hear soon
        self.on_change: Callable[[], None] = lambda: None
        self.proof: Callable[[int], dict[str, Any]] = lambda _peer: {"newest": -1, "proof": None}
        self.seen: Callable[[int], Frame | None] = lambda _source: None  # what came over its link to this site
        self.accuse: Callable[[int, Rejected], None] = lambda _node, _evidence: None
        self.told_of = Heard(agreement, node)  # by node: the newest header it signed that others have told of
        self._accused: set[int] = set()  # of whom two messages of one step are known: once is enough
        self.have: Callable[[], dict[str, int]] = dict
        self.durable: Callable[[], dict[str, int]] = dict
        self.sent: Callable[[], dict[str, int]] = dict
        self.sign: Callable[[bytes], str] | None = None  # for those who never hear this site
        self._near = [i for i in self.others if node < 0 or not agreement.is_relayed((node, i))]
        self._far = [i for j, i in agreement.links if j == node and agreement.is_relayed((j, i))]
        self._vowed: dict[int, tuple[bytes, str]] = {}  # by target: what was signed last, and the signature
        self.keep: Callable[[], None] = lambda: None  # called when a signature or a goodbye came
        self._form = hello_form(len(agreement.roster))
        self._silence = max(_SILENCE, agreement.limits.deadline)

    @property
    def phase(self) -> str:
        """What this site is doing."""
        return self._phase

    @phase.setter
    def phase(self, now: str) -> None:
        before, self._phase = self._phase, now
        if before != now:
            self.version += 1
            self.on_change()

    def have_heard(self, phase: str) -> bool:
        """Tell whether all sites that are there, and in touch with this one, know what it is doing."""
        return all(self.told.get(i) == phase for i in self._near if self.is_there(i))

    def hello(self, peer: int) -> dict[str, Any]:
        """Return what this site says to a peer: of itself, of others, and what it has of the peer's."""
        step, phase = self.step, self.phase  # before what was sent: at least all up to this step is in that
        have, durable, sent = self.have(), self.durable(), self.sent()
        with self.changed:
            now = time.monotonic()  # not before: ages would come out below 0
            ages = {str(i): now - m.heard for i, m in self.others.items()}
            return {
                "run": self.agreement.run, "incarnation": self.incarnation, "step": step, "phase": phase,
                "have": have, "durable": durable, "sent": sent,
                "vows": self._vows(self._made(phase, step), sent), "passed_on": self._passed_on(peer),
                "signatures": {str(i): one for i, one in self.signatures.items()},
                "left": {str(i): one for i, one in self.left.items()},
                "heard": {i: age for i, age in ages.items() if age < _LONG_AGO / 2},
                "yours": self.proof(peer), "pair_keys": {str(i): one for i, one in self.pair_keys.items()},
                "heads": {str(i): head.evidence() for i in self.others if (head := self._head(i)) is not None},
            }  # fmt: skip

    def learn(self, peer: int, said: object, asked: int | None = None) -> None:
        """Take in what a peer says; reject what is no hello of this run.

        Of an answer, `asked` is the process that was known when it was asked for: it may have died since.
        """
        if not self._form.fits(said) or not isinstance(said, dict):
            raise Rejected("form", f"no hello: {forms.shown(said)}")
        if said["run"] != self.agreement.run:
            raise Rejected("run", f"a hello of run {said['run'][:16]}…: it has another agreement")
        with self.changed:
            member = self.others[peer]
            if said["incarnation"] < member.incarnation:
                if asked is not None and asked < member.incarnation:
                    return
                raise Rejected("incarnation", f"process {said['incarnation']} after {member.incarnation}")
            if said["incarnation"] > member.incarnation:
                member.answered = -1
            member.heard = member.met = time.monotonic()
            member.incarnation = said["incarnation"]
            member.step, member.phase = said["step"], said["phase"]
            member.have, member.durable = said["have"], said["durable"]
            member.sent, member.vows = said["sent"], said["vows"]
            self._deliver(peer, self.have_of(peer))
            member.progress = self._made(member.phase, member.step), member.sent.get(str(self.node), -1)
            self.prove(said["yours"]["proof"])
            news = self._hear_of_others(said, self.agreement.roster[peer].name)
        if news:
            self.keep()

    def learn_from_relay(self, said: object) -> None:
        """Take in what a relay that is no member says of members."""
        if not self._form.fits(said) or not isinstance(said, dict) or said["run"] != self.agreement.run:
            raise Rejected("form", f"no hello: {forms.shown(said)}")
        relay = self.agreement.relay
        with self.changed:
            news = self._hear_of_others(said, "" if relay is None else relay.name)
        if news:
            self.keep()

    def _hear_of_others(self, said: dict[str, Any], by: str) -> bool:
        """Take in what a hello passes on; tell whether a signature, a goodbye or a key among it is new."""
        now = time.monotonic()
        for node, age in said["heard"].items():
            if int(node) in self.others and now - age > (member := self.others[int(node)]).heard:
                member.heard, member.reporter = now - age, by
        self._hear_progress(said["passed_on"])
        self._hear_heads(said["heads"])
        news = self._sign(said["signatures"]) | self._leave(said["left"]) | self._share(said["pair_keys"])
        self.changed.notify_all()
        return news

    def _made(self, phase: str, step: int) -> int:
        """Return how many steps and rounds a site has made, by its own word."""
        return self.agreement.rounds if phase == "finished" else step

    def _vows(self, made: int, sent: dict[str, int]) -> dict[str, str]:
        """Sign how far this site is, for each target that never hears it: whoever passes that on can make up nothing.

        An older vow that somebody shows again is still true: steps that were made stay made, through crashes too.
        """
        if self.sign is None:
            return {}
        for i in self._far:
            text = progress_text(self.agreement.run, i, made, sent.get(str(i), -1))
            if i not in self._vowed or self._vowed[i][0] != text:
                self._vowed[i] = text, self.sign(text)
        return {str(i): vow for i, (_, vow) in self._vowed.items()}

    def _passed_on(self, peer: int) -> dict[str, list[Any]]:
        """Return what sites that never speak to a peer have signed for it: steps made, and the newest sent to it."""
        to = str(peer)
        vowed = {i: m for i, m in self.others.items() if to in m.vows}
        return {str(i): [self._made(m.phase, m.step), m.sent.get(to, -1), m.vows[to]] for i, m in vowed.items()}

    def _hear_progress(self, told: dict[str, list[Any]]) -> None:
        """Take in how far sites are that never speak to this one; what they did not sign for it is nobody's word."""
        for name, (made, sent, vow) in told.items():
            i, text = int(name), progress_text(self.agreement.run, self.node, made, sent)
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

    def prove(self, told: dict[str, str] | None) -> None:
        """Look at a message that a peer has from this site; note it if it is not in this site's log.

        The peer's word is not enough: it has to show this site's signature.
        """
        if told is None:
            return
        header = Header.read(told["header"].encode())
        if self.foreign is None and self.node >= 0 and header not in self.own:
            self.foreign = self._verified(self.node, header, told)
            name = self.agreement.roster[header.target].name
            what = f"this site signed a message of step {header.step} to {name} that its own log does not contain"
            self.accuse(self.node, Rejected("copy", what, self.foreign.evidence()))

    def _verified(self, node: int, header: Header, told: dict[str, str]) -> Frame:
        """Return a header of a message that a node may send in this run, and has signed; reject any other.

        It is passed on as this site writes it: everybody must find in it what was found here.
        """
        signature = bytes.fromhex(told["signature"])
        refuse_head(self.agreement, node, header.target, header, signature)
        return Frame(header, signature, b"")

    def _head(self, node: int) -> Frame | None:
        """Return the newest header of a node that is known here, whomever it was for."""
        known = [head for head in (self.told_of.newest(node), self.seen(node)) if head is not None]
        return max(known, key=lambda head: head.header.step, default=None)

    def _hear_heads(self, told: dict[str, dict[str, str]]) -> None:
        """Take in headers of others' messages; what shows two messages of one link and step is kept."""
        for name, one in told.items():
            node = int(name)
            if node == self.node:
                self.prove(one)
                continue
            header, known = Header.read(one["header"].encode()), self._head(node)
            if known is None or header.step > known.header.step:
                self.told_of.note(self._verified(node, header, one))
            elif header.contradicts(known.header) and node not in self._accused:
                second = self._verified(node, header, one).evidence()
                self._accused.add(node)
                what = f"two messages of step {header.step} to {self.agreement.roster[header.target].name}"
                self.accuse(node, Rejected("equivocation", what, {"first": known.evidence(), "second": second}))

    def _sign(self, signatures: dict[str, str]) -> bool:
        """Take in signatures that are right and new; anybody may bring them."""
        new = {int(i): one for i, one in signatures.items() if int(i) not in self.signatures}
        right = {i: one for i, one in new.items() if self.agreement.signed_by(i, one)}
        self.signatures |= right
        return bool(right)

    def _share(self, words: dict[str, str]) -> bool:
        """Take in keys that are right and new. The first of a site stays: who signs two troubles nobody but itself."""
        new = {int(i): one for i, one in words.items() if self._pairs and int(i) not in self.pair_keys}
        right = {i: one for i, one in new.items() if i != self.node and pairs.is_word(self.agreement, i, one)}
        self.pair_keys |= right
        return bool(right)

    def _leave(self, goodbyes: dict[str, dict[str, Any]]) -> bool:
        """Take in goodbyes that are right and new; they stay in every hello, and must say no more than they have to.

        Else two members of a large roster could, as they leave, make everybody's hellos too long to be read.
        """
        new = {int(i): one for i, one in goodbyes.items() if int(i) not in self.left and int(i) != self.node}
        right = {i: one for i, one in new.items() if left_for_good(self.agreement.roster[i], self.agreement.run, one)}
        right = {i: one for i, one in right.items() if one["taken"].keys() <= self._sources(i)}
        self.left |= right
        return bool(right)

    def _sources(self, node: int) -> set[str]:
        return {str(j) for j, i in self.agreement.links if i == node}

    def last_taken(self, target: int) -> int | None:
        """Return the step of the last message that a target took of this site before it left; None where it has not."""
        with self.changed:
            told = self.left.get(target)
            return None if told is None else int(told["taken"].get(str(self.node), -1))

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
            return max(self.others[target].have.get(str(self.node), -1), self.others[target].answered)

    def took(self, target: int, step: int, answered: int, asked: int) -> None:
        """Note that a message of this site's was brought to a target, and which it answered to have.

        `asked` is the process that was known then. Where another has said hello since, the answer may be of the one
        before, and the message is lost with it.
        """
        with self.changed:
            member = self.others[target]
            if member.incarnation != asked:
                return
            member.have[str(self.node)] = step
            member.heard = member.met = time.monotonic()
            member.answered = answered
            self._deliver(target, self.have_of(target))

    def relayed(self, target: int, step: int) -> None:
        """Note which message of this site's the relay keeps for a target."""
        with self.changed:
            self.relay_has[target] = step
            self._deliver(target, step)

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
            return target in self.left or m.phase == "finished" or m.durable.get(str(self.node), -1) >= step
