"""The door of a site: gRPC with mutual TLS, raw bytes, and nobody in but the roster.

Three calls: `Hello` (who is where), `Push` (a member brings its newest message), `Pull` (a member that nobody can dial
fetches its own). The trust store is the roster: a certificate counts only if the authority in a member's card issued
it, for that member. Each member has one stream of a kind; a new one ends the one before. Every call has an end, and a
connection that does not speak TLS is closed after seconds. What is refused goes into the audit log; who has no
certificate of the roster is turned away by TLS itself, which tells nobody.
"""

from __future__ import annotations

import contextlib
import logging
import math
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from pydantic import Field

from privsgp.errors import Refused
from privsgp.options import Options
from privsgp.outside import MOST, Hash, Whole
from privsgp.sites.canonical import canonical
from privsgp.sites.net import relay as relays
from privsgp.sites.net.tls import grpc
from privsgp.sites.protocol import frames
from privsgp.sites.protocol.frames import PIECE, Rejected
from privsgp.sites.protocol.mailbox import wait_for
from privsgp.sites.protocol.members import Node, read_said

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from privsgp.sites.agreement import Agreement
    from privsgp.sites.audit import Audit
    from privsgp.sites.identity import Card, Site
    from privsgp.sites.net.relay import Relay
    from privsgp.sites.protocol.mailbox import Inbox, Outbox
    from privsgp.sites.protocol.members import Members

SERVICE = "privsgp.Sites"
HANDSHAKE = 5.0  # seconds for TLS
HELLO = 10.0
PULL = 15.0  # seconds that a member may wait for a message that is not there yet
_ROOM = 4096  # bytes of a message of gRPC's besides a piece
_MOST_ASKED = 1 << 16
_BYE = 2.0
_LOOK = 1.0  # seconds between two looks at the certificate
_LOG = logging.getLogger(__name__)
_CUT = ("form", "length", "incarnation")  # what half a message looks like, and what a process sent before it died
_STRANGERS = 2048  # connections that may be open besides the members', of 25 kB each
_COPY = ("incarnation", "equivocation")  # what a copy of a site sends: the answer shows it what the other copy has sent
_MOMENT = 0.5  # seconds in which a connection that broke shows as such


class Wanted(Options):
    """A member asks for the next message for it after a step."""

    run: Hash
    after: Annotated[int, Field(ge=-1, le=MOST)]
    whole: bool


class Drop(Options):
    """A member brings the relay its message of a step for a node; without one, step −1, it asks what is kept."""

    run: Hash
    node: Whole
    step: Annotated[int, Field(ge=-1, le=MOST)]


class Collect(Options):
    """A member asks the relay for the next message for it, and tells what it has of each source."""

    run: Hash
    after: dict[Node, Whole]


Asked = TypeVar("Asked", Wanted, Drop, Collect)


class Server:
    """A site's server during a run."""

    def __init__(
        self,
        site: Site,
        agreement: Agreement,
        node: int,
        inbox: Inbox,
        outbox: Outbox,
        members: Members,
        audit: Audit,
        relay: Relay | None = None,
    ) -> None:
        self.relay, self.changed = relay, members.changed
        self.site, self.agreement, self.node = site, agreement, node
        self.inbox, self.outbox, self.members, self.audit = inbox, outbox, members, audit
        self.ended = threading.Event()
        self._streams: dict[tuple[int, str], _Stream] = {}
        self._roots = b"".join(card.authority_pem for card in agreement.trusted)
        n = len(agreement.roster)
        self._calls = (3 if relay is None else 5) * n + 4  # of each member one of a kind
        self._threads = ThreadPoolExecutor(self._calls, "server")
        self._servers: list[grpc.Server] = []  # the last is open, the one before it may be ending its calls
        self._watch: threading.Thread | None = None

    def start(self, listen: str) -> None:
        """Listen; refuse an address that is taken."""
        shown = self.site.tls()
        self._servers = [self._opened(listen, *shown)]
        self._watch = threading.Thread(target=self._renew, args=(listen, shown), daemon=True)
        self._watch.start()

    def _opened(self, listen: str, key: bytes, certificate: bytes) -> grpc.Server:
        """Open the door with a certificate to show; it stays the same for as long as this door is open.

        gRPC would take another one while it listens. But it frees the one before under connections that are just being
        opened (grpc issue 36693): a stranger who opened many at once ended the process.
        """
        options = [
            ("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", PIECE + _ROOM),
            ("grpc.server_handshake_timeout_ms", int(1000 * HANDSHAKE)), ("grpc.max_concurrent_streams", 64),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000), ("grpc.keepalive_time_ms", 20000),
            ("grpc.keepalive_timeout_ms", 10000), ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.max_allowed_incoming_connections", self._connections()),
        ]  # fmt: skip
        server = grpc.server(self._threads, options=options, maximum_concurrent_rpcs=self._calls)
        # All take streams, also of one message: gRPC would wait for it in a thread, without an end.
        handlers = {"Hello": _answer(self._hello)}
        if self.node >= 0:
            handlers |= {"Push": _answer(self._push), "Pull": _stream(self._pull)}
        if self.relay is not None:
            handlers |= {"Drop": _answer(self._drop), "Collect": _stream(self._collect)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        credentials = grpc.ssl_server_credentials([(key, certificate)], self._roots, require_client_auth=True)
        try:
            server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            raise Refused(
                f"cannot listen at {listen}", "is the port taken, or not this machine's? see --listen"
            ) from error
        server.start()
        return server

    def _connections(self) -> int:
        """Return how many connections may be open: anybody can open one, and the run's files need descriptors too.

        gRPC closes any more at once, and those that have not finished TLS after `HANDSHAKE` seconds.
        """
        return self._calls + min(_STRANGERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

    def _renew(self, listen: str, shown: tuple[bytes, bytes]) -> None:
        """End calls that take too long. Open the door again when there is a new certificate to show."""
        while not self.ended.wait(_LOOK):
            self._end_slow()
            if (now := self._newest(shown)) != shown:
                self._servers[-1].stop(self.agreement.limits.transfer)
                shown = self._open_again(listen, now)

    def _end_slow(self) -> None:
        with self.changed:
            late = [stream for stream in self._streams.values() if stream.until < time.monotonic()]
        for stream in late:
            stream.late = True
            stream.end()

    def _newest(self, shown: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        """Return the key and certificate to show from now on; with another's nobody could come in."""
        try:
            now = self.site.tls()
            return now if now == shown or _is_own(self.site.card, *now) else shown
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm):  # it is being written, or damaged
            return shown

    def _open_again(self, listen: str, shown: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        """Open the door, and return what it shows; the one before lets go of the port a moment after it was stopped."""
        until = time.monotonic() + _BYE
        while not self.ended.is_set():
            try:
                self._servers = [*self._servers[-1:], self._opened(listen, *shown)]
                break
            except Exception as error:  # noqa: BLE001 - whatever it is: nobody else opens the door
                if until < time.monotonic():
                    _LOG.warning("the door with the new certificate is closed: %s; trying again", error)
                    until = math.inf
                self.ended.wait(_LOOK / 20)
                shown = self._newest(shown)
        return shown

    def stop(self) -> None:
        """End all calls and close the door."""
        self.ended.set()
        with self.changed:
            self.changed.notify_all()
        if self._watch is not None:
            self._watch.join()
        for stopping in [server.stop(_BYE) for server in self._servers]:
            stopping.wait(_BYE)

    def _hello(self, parts: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        peer = self._who(context)
        with self._border(peer, context), self._alone(peer, "hello", context, HELLO):
            self.members.learn(peer, next(parts, b""))
        said = self.members.hello(peer)
        self.members.told[peer] = said["phase"]
        return canonical(said)

    def _push(self, pieces: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Let a member's message in; of one that is not newer than what is here, the body is not read."""
        peer = self._who(context)
        limits = self.agreement.limits
        with self._border(peer, context), self._alone(peer, "push", context, limits.transfer) as stream:
            patience = min(limits.deadline, limits.transfer / 2)
            self.inbox.until_open(patience, lambda: self._over(stream))
            head = frames.opened(next(pieces, b""))
            receive(self.agreement, self.node, self.inbox, peer, *head, pieces)
            self.members.heard(peer)
        return canonical(self.members.has_of(peer))

    def _pull(self, parts: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Hand a member the next message for it, once there is one."""
        peer = self._who(context)
        with self._alone(peer, "pull", context, self.agreement.limits.transfer + PULL) as stream:
            with self._border(peer, context):
                said = self._asked(Wanted, next(parts, b""))
            self.members.heard(peer)
            frame = self.outbox.wait(peer, said.after, PULL, lambda: self._over(stream))
            if frame is not None:
                yield from self.outbox.counted(peer, frame.pieces(None if said.whole else said.after))

    def _drop(self, parts: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Keep a member's sealed message for another; say what is kept of it."""
        peer, kept = self._who(context), self._relay()
        with self._border(peer, context), self._alone(peer, "drop", context, self.agreement.limits.transfer):
            said = self._asked(Drop, next(parts, b""))
            link = peer, said.node
            if not self._carries(link):
                raise Rejected("link", f"a sealed message over the link {link}")
            if said.step > kept.newest(link):
                sealed = relays.collected(parts, relays.most(self.agreement))
                if len(sealed) < self.agreement.message_bytes or not context.is_active():  # a connection that broke
                    raise Rejected("length", f"{len(sealed)} bytes of a sealed message")
                kept.put(link, said.step, sealed)
        return canonical({"newest": kept.kept_of(peer)})

    def _collect(self, parts: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Hand a member the sealed message of another, once there is one: first whose it is."""
        peer, kept = self._who(context), self._relay()
        with self._alone(peer, "collect", context, self.agreement.limits.transfer + PULL) as stream:
            with self._border(peer, context):
                after = self._asked(Collect, next(parts, b"")).after
            wait_for(self.changed, lambda: self._over(stream) or kept.next(peer, after) is not None, PULL)
            if (found := kept.next(peer, after)) is not None:
                yield canonical({"source": found[0], "step": found[1]})
                yield from frames.in_pieces(found[2])

    def _relay(self) -> Relay:
        if self.relay is None:
            raise AssertionError  # the calls are not offered
        return self.relay

    def _over(self, stream: _Stream) -> bool:
        return self.ended.is_set() or stream.over

    def _carries(self, link: tuple[int, int]) -> bool:
        return link in self.agreement.links and self.agreement.is_relayed(link)

    def _asked(self, kind: type[Asked], text: bytes) -> Asked:
        """Read what a member asks for."""
        said = read_said(kind, text, len(self.agreement.roster), _MOST_ASKED)
        if said.run != self.agreement.run:
            raise Rejected("run", "a request of another run")
        return said

    def _who(self, context: grpc.ServicerContext) -> int:
        """Return which node's site is at the other end, by the key in its certificate."""
        pem = context.auth_context().get("x509_pem_cert", [b""])[0]
        certificate = _read(pem)
        peer = None if certificate is None else _member(self.agreement.roster, certificate)
        if certificate is None or peer is None or peer == self.node:
            name = "?" if certificate is None else certificate.subject.rfc4514_string()[:80]
            who = f"a certificate of no other member, {name}, from {context.peer()}"
            self.audit.note("stranger", "?", who)  # counted together: a member can issue any number of names
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "no other member's certificate")
            raise AssertionError  # abort does not return
        self.members.showed(peer, certificate.not_valid_after_utc)
        return peer

    @contextlib.contextmanager
    def _border(self, peer: int, context: grpc.ServicerContext) -> Iterator[None]:
        """Write down what is rejected, and say so; a copy of a site gets its answer, so that it stops."""
        try:
            yield
        except Rejected as rejected:
            if rejected.kind in _CUT and _broke(context):  # nobody's fault
                raise grpc.RpcError from rejected
            self.audit.note(rejected.kind, self.agreement.roster[peer].name, str(rejected), **rejected.evidence)
            if rejected.kind not in _COPY:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, rejected.kind)

    @contextlib.contextmanager
    def _alone(self, peer: int, kind: str, context: grpc.ServicerContext, seconds: float) -> Iterator[_Stream]:
        """Give a member its one stream of a kind, for so long: a new one ends the one before, time ends any."""
        stream = _Stream(context, self.changed, time.monotonic() + seconds)
        with self.changed:
            before = self._streams.get((peer, kind))
            self._streams[peer, kind] = stream
        if before is not None:
            before.end()
        try:
            yield stream
        finally:
            if stream.late:
                self.audit.note("slow", self.agreement.roster[peer].name, f"a {kind} that took more than {seconds:g} s")
            with self.changed:
                if self._streams.get((peer, kind)) is stream:
                    del self._streams[peer, kind]


def _answer(handler: Callable[[Iterator[bytes], grpc.ServicerContext], bytes]) -> grpc.RpcMethodHandler:
    def call(parts: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with _in_few_words(context):
            return handler(parts, context)

    return grpc.stream_unary_rpc_method_handler(call)


def _stream(handler: Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]) -> grpc.RpcMethodHandler:
    def call(parts: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        with _in_few_words(context):
            yield from handler(parts, context)

    return grpc.stream_stream_rpc_method_handler(call)


@contextlib.contextmanager
def _in_few_words(context: grpc.ServicerContext) -> Iterator[None]:
    """Keep the text of an error here: gRPC would send it to the peer, whatever it says of files and values."""
    try:
        yield
    except grpc.RpcError:
        raise
    except Exception:
        if context.code() is None:  # else it was said already
            _LOG.exception("a call failed")
            context.abort(grpc.StatusCode.INTERNAL, "this site could not answer")
        raise


@dataclass(eq=False)
class _Stream:
    """A call that can be ended."""

    context: grpc.ServicerContext
    changed: threading.Condition
    until: float
    over: bool = False
    late: bool = False

    def end(self) -> None:
        """End it, whatever it waits for."""
        with self.changed:
            self.over = True
            self.changed.notify_all()
        self.context.cancel()


def receive(
    agreement: Agreement, node: int, inbox: Inbox, peer: int, header: frames.Header, signature: bytes,
    base: int | None, pieces: Iterator[bytes],
) -> None:  # fmt: skip
    """Read a message of a peer's through all checks into the inbox; one that is not news is not read.

    Nor is what is new after another message than the one that is here: the answer says which that is.
    """
    pieces = inbox.counted(peer, pieces)
    frames.refuse_head(agreement, peer, node, header, signature)
    if not inbox.is_news(header, signature):
        return
    after, before = inbox.last(peer)
    most = agreement.most_weight((peer, node), after, header.step)
    border = frames.Border(header, signature, before, most, agreement.config.engine.dtype)
    if base is None:
        inbox.put(frames.read_sums(header, signature, pieces, border), after)
    elif base == after:
        share = agreement.share(header.step, (peer, node))
        if share is None or agreement.step_bytes is None:
            raise Rejected("link", f"a step that the link does not carry: {header.step}")
        inbox.put(frames.read_step(header, signature, pieces, border, base, agreement.step_bytes, share), after)


def _broke(context: grpc.ServicerContext) -> bool:
    """Tell whether a call's connection is gone; gRPC tells that its messages have ended a moment before it."""
    until = time.monotonic() + _MOMENT
    while context.is_active() and time.monotonic() < until:
        time.sleep(_MOMENT / 50)
    return not context.is_active()


def _is_own(card: Card, key: bytes, certificate: bytes) -> bool:
    """Tell whether a certificate is of a key, and one that the site of a card is known by."""
    private, shown = serialization.load_pem_private_key(key, None), x509.load_pem_x509_certificate(certificate)
    return private.public_key() == shown.public_key() and card.issued(shown)


def _read(pem: bytes) -> x509.Certificate | None:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError:
        return None


def _member(roster: tuple[Card, ...], certificate: x509.Certificate) -> int | None:
    return next((node for node, card in enumerate(roster) if card.issued(certificate)), None)
