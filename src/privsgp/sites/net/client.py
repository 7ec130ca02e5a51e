"""Dials the other sites: says hello, brings them messages, and fetches one's own where nobody can dial this site.

A thread for each site that can be dialled. A failed call is repeated, after 0.2 s at first and 15 s at most, with a new
connection (so that a renewed certificate is shown) and the newest message.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from privsgp.options import Options
from privsgp.outside import Whole
from privsgp.sites.canonical import canonical
from privsgp.sites.identity import Card, Site, tls_name
from privsgp.sites.net.causes import Cause, cause_of
from privsgp.sites.net.relay import Seal, collected, most
from privsgp.sites.net.server import HELLO, PULL, SERVICE
from privsgp.sites.net.tls import grpc
from privsgp.sites.protocol import frames
from privsgp.sites.protocol.frames import PIECE, Frame, Rejected
from privsgp.sites.protocol.gossip import Gossip, Node, Yours, read_message
from privsgp.sites.protocol.mailbox import Outbox, counted, wait_for
from privsgp.sites.protocol.peers import RELAY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from privsgp.sites.audit import Audit

BEAT = 1.0  # seconds between two hellos
_FIRST, _LAST = 0.2, 15.0  # seconds between two attempts
_LOG = logging.getLogger(__name__)


class _Kept(Options):
    """By target: the step of this site's message that a relay keeps for it."""

    newest: dict[Node, Whole]


class _From(Options):
    """Sender and step of a message, as the peer states them."""

    source: Node
    step: Whole


def dialled(site: Site, card: Card) -> grpc.Channel:
    """Open a connection on which only the site of a card can answer: its own authority is all that is trusted."""
    key, certificate = site.tls()
    credentials = grpc.ssl_channel_credentials(card.authority_pem, key, certificate)
    proxy = [("grpc.http_proxy", site.proxy)] if site.proxy else [("grpc.enable_http_proxy", 0)]
    options = [
        ("grpc.ssl_target_name_override", tls_name(card.name)), ("grpc.max_receive_message_length", PIECE + 4096),
        ("grpc.keepalive_time_ms", 10000), ("grpc.keepalive_timeout_ms", 10000),
        ("grpc.use_local_subchannel_pool", 1), *proxy,
    ]  # fmt: skip
    return grpc.secure_channel(card.address or "", credentials, options)


class Client:
    """A site's connections to those that can be dialled."""

    def __init__(self, site: Site, members: Gossip, outbox: Outbox, audit: Audit) -> None:
        self.site, self.members, self.outbox, self.audit = site, members, outbox, audit
        self.agreement, self.node, self.inbox = members.agreement, members.node, members.inbox
        self.ended = threading.Event()
        self.failures: dict[int, Cause] = {}  # why the last attempt to talk to a peer failed, if it has
        self._unusable: dict[int, int] = {}  # by source: the step of a relay's message that could not be used
        self._threads: list[threading.Thread] = []
        self._channels: set[grpc.Channel] = set()
        self.seal, self.changed = Seal(site, self.agreement, self.node), members.changed

    def start(self) -> None:
        """Dial everybody who can be dialled, and the relay for links whose other end is as closed as this one."""
        relay, links = self.agreement.relay, self.agreement.links
        relayed = [link for link in links if self.node in link and self.agreement.is_relayed(link)]
        sources = sorted(j for j, i in relayed if i == self.node)
        for peer, card in enumerate(self.agreement.roster):
            if peer == self.node or card.address is None:
                continue
            self._spawn(peer, self._talk)
            is_fetched = self.site.card.address is None and (peer, self.node) in links
            if is_fetched and sources and relay is not None and card.identity == relay.identity:
                sources.append(peer)  # one call asks for its messages and for those that it relays
            elif is_fetched:
                self._spawn(peer, partial(self._fetch, [peer]))
        if sources:
            self._spawn(RELAY, partial(self._fetch, sources))
        if targets := sorted(i for j, i in relayed if j == self.node):
            self._spawn(RELAY, partial(self._drop, targets))
        if relayed and relay is not None and self.agreement.command(relay) == "relay":
            self._spawn(RELAY, self._greet_relay)

    def stop(self) -> None:
        """End all calls."""
        self.ended.set()
        with self.changed:
            self.changed.notify_all()
        for channel in list(self._channels):
            channel.close()
        for thread in self._threads:
            thread.join(2.0)

    def _spawn(self, peer: int, work: Callable[[int, grpc.Channel], None]) -> None:
        thread = threading.Thread(target=self._persist, args=(peer, work), daemon=True)
        thread.start()
        self._threads.append(thread)

    def _persist(self, peer: int, work: Callable[[int, grpc.Channel], None]) -> None:
        """Work with a peer until the end; begin again where that fails, later each time."""
        pause = _FIRST
        while not self.ended.is_set():
            try:
                with self._opened(peer) as channel:
                    while not self.ended.is_set():
                        work(peer, channel)
                        pause = _FIRST
            except Exception as error:  # noqa: BLE001 - whatever it is: nobody else talks to this peer
                self._failed(peer, error)
            self._pause(peer, pause * random.uniform(0.5, 1.0))  # noqa: S311 - so that not all dial at once
            pause = min(_LAST, 2 * pause)

    def _pause(self, peer: int, seconds: float) -> None:
        """Wait before the next attempt, but no longer than until the peer is heard of."""
        began = time.monotonic()

        def heard() -> bool:
            return self.ended.is_set() or (peer != RELAY and self.members.others[peer].heard > began)

        wait_for(self.changed, heard, seconds)

    @contextmanager
    def _opened(self, peer: int) -> Iterator[grpc.Channel]:
        channel = self._channel(peer)
        self._channels.add(channel)
        try:
            yield channel
        finally:
            self._channels.discard(channel)
            channel.close()

    def _failed(self, peer: int, error: Exception) -> None:
        """Keep why a peer cannot be talked to; log a cause once, and an error that nobody expected with its trace."""
        card, before = self._card(peer), self.failures.get(peer)
        cause = cause_of(error, self.site, card, self.agreement.command(card))
        is_new = (before is None or before.what != cause.what) and not self.ended.is_set()
        is_new = is_new and (peer == RELAY or self.members.is_needed(peer))
        if isinstance(error, Rejected):
            self.audit.note(error.kind, card.name, str(error), **error.evidence)
        elif is_new and not isinstance(error, grpc.RpcError | OSError):
            _LOG.error("talking to %s failed", card.name, exc_info=error)
        if is_new:
            named = {"peer": card.name, "remedy": cause.remedy}
            _LOG.warning("no messages to or from %s: %s. To do: %s", card.name, *cause, extra=named)
        self.failures[peer] = cause

    def _channel(self, peer: int) -> grpc.Channel:
        return dialled(self.site, self._card(peer))

    def _card(self, peer: int) -> Card:
        relay = self.agreement.relay
        return relay if peer == RELAY and relay is not None else self.agreement.roster[peer]

    def _greet_relay(self, _peer: int, channel: grpc.Channel) -> None:
        """Tell a relay that is no member that this site is there, and hear of others."""
        hello = channel.unary_unary(f"/{SERVICE}/Hello")
        self.members.learn_from_relay(hello(canonical(self.members.hello(RELAY)), timeout=HELLO))
        self.failures.pop(RELAY, None)
        self.ended.wait(BEAT)

    def _drop(self, targets: list[int], _peer: int, channel: grpc.Channel) -> None:
        """Leave the next message of this site's at the relay; without one, ask what it keeps: it may have restarted."""

        def waiting() -> Frame | None:
            found = (self.outbox.next(i, self.members.relay_has.get(i, -1)) for i in targets)
            return next((frame for frame in found if frame is not None and self.members.is_fresh()), None)

        wait_for(self.changed, lambda: self.ended.is_set() or waiting() is not None, BEAT)
        frame = waiting()
        target, step = (targets[0], -1) if frame is None else (frame.header.target, frame.header.step)
        asked = canonical({"run": self.agreement.run, "node": target, "step": step})
        sealed = b"" if frame is None else self.seal.close(frame)
        drop = channel.stream_unary(f"/{SERVICE}/Drop")
        parts = chain([asked], counted(self.outbox.bytes_to, target, frames.in_pieces(sealed)))
        answer = drop(parts, timeout=self.agreement.limits.transfer)
        self.failures.pop(RELAY, None)
        self.members.relayed(read_message(_Kept, answer, len(self.agreement.roster)).newest)

    def _talk(self, peer: int, channel: grpc.Channel) -> None:
        """Say hello, then bring the peer what it does not have; for a beat."""
        hello, version = channel.unary_unary(f"/{SERVICE}/Hello"), self.members.version
        hello_text, asked = self.members.hello(peer), self.members.others[peer].incarnation
        self.members.learn(peer, hello(canonical(hello_text), timeout=HELLO), asked)
        self.members.informed(peer, hello_text["phase"])
        self.failures.pop(peer, None)

        def urgent() -> bool:
            return self.ended.is_set() or self.members.version != version

        until = time.monotonic() + BEAT
        while not urgent() and (remaining := until - time.monotonic()) > 0:  # a hello costs as much as a step
            frame = self.outbox.wait(peer, self.members.have_of(peer), remaining, urgent)
            if frame is not None and not self.members.is_fresh():  # a hello comes first: a copy may have continued
                self.ended.wait(_FIRST)
                return
            if frame is not None:
                self._push(peer, channel, frame)

    def _push(self, peer: int, channel: grpc.Channel, frame: Frame) -> None:
        """Bring a peer a message."""
        push, asked = channel.stream_unary(f"/{SERVICE}/Push"), self.members.others[peer].incarnation
        have, continues = self.members.have_of(peer), self.members.others[peer].continues
        pieces = self.outbox.pieces(frame, have, continues=continues)
        pieces = counted(self.outbox.bytes_to, peer, pieces)
        answer = read_message(Yours, push(pieces, timeout=self.agreement.limits.transfer))
        self.members.look(answer)
        # Increments that could not be read there are sent again, as exact sums.
        least = -1 if self.agreement.increment_bytes else frame.header.step
        self.members.took(peer, max(answer.newest, least), answer.newest, asked, continues=answer.continues)
        if max(answer.newest, least) < frame.header.step:
            self.ended.wait(_FIRST)

    def _is_ready(self, sources: list[int]) -> bool:
        """Tell whether messages may be fetched: a source that is dialled has been shown what this site has of it."""
        own = [j for j in sources if not self.agreement.is_relayed((j, self.node))]
        known = all(self.members.others[j].incarnation > 0 for j in own)
        return known and self.inbox.is_open and self.members.is_fresh()

    def _fetch(self, sources: list[int], peer: int, channel: grpc.Channel) -> None:
        """Fetch the next message from a peer, its own or one that it relays, and wait for it there."""
        if not wait_for(self.changed, lambda: self._is_ready(sources), BEAT) or self.ended.is_set():
            return
        have = {j: max(self.inbox.newest(j), self._unusable.get(j, -1)) for j in sources}
        asked = {"run": self.agreement.run, "after": {j: step for j, step in have.items() if step >= 0}}
        asked["continues"] = [j for j in sources if self.inbox.proof(j)["continues"]]
        pull = channel.unary_stream(f"/{SERVICE}/Pull")
        parts = iter(pull(canonical(asked), timeout=PULL + self.agreement.limits.transfer))
        first = next(parts, None)
        if peer == RELAY:
            self.failures.pop(RELAY, None)
        if first is not None:
            header = read_message(_From, first, len(self.agreement.roster))
            if header.source not in sources:
                raise Rejected("source", f"a message of node {header.source}")
            self._take(header, parts)
        if all(self.inbox.newest(j) <= step for j, step in have.items()):
            self.ended.wait(_FIRST)

    def _take(self, header: _From, parts: Iterator[bytes]) -> None:
        """Let a fetched message in, unless this process was suspended while it waited: then a copy may have continued.

        A sealed message that cannot be used is not asked for again: it must not hide those of others.
        """
        if not self.agreement.is_relayed((header.source, self.node)):
            if self.members.is_fresh():
                self.inbox.receive(header.source, next(parts, b""), parts)
            return
        self._unusable[header.source] = header.step
        sealed = collected(counted(self.inbox.bytes_from, header.source, parts), most(self.agreement))
        frame = self.seal.open(header.source, sealed)
        if not self.members.is_fresh():
            del self._unusable[header.source]
        elif self.inbox.is_news(frame.header, frame.signature):
            del self._unusable[header.source]
            self.inbox.put(frame)
