"""The door of a site: gRPC with mutual TLS, raw bytes, and nobody in but the roster.

Three calls: `Hello` (who is where), `Push` (a member brings its newest message), `Pull` (a member that nobody can dial
fetches the next for it). A relay has `Drop` too: a member leaves a sealed message for another. The trust store is the
roster: a certificate counts only if the authority in a member's card issued it, for that member. Each member has one
stream of a kind; a new one ends the one before. Every call has an end, and a connection that does not speak TLS is
closed after seconds. What is refused goes into the audit log. A stranger without a certificate of the roster is turned
away by TLS itself, which reports nothing.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from cryptography import x509

from privsgp.errors import Refused
from privsgp.options import Options
from privsgp.outside import Hash, Whole
from privsgp.sites.canonical import canonical
from privsgp.sites.net import relay as relays
from privsgp.sites.net.tls import grpc
from privsgp.sites.protocol import frames
from privsgp.sites.protocol.frames import PIECE, Rejected
from privsgp.sites.protocol.gossip import Gossip, Newest, Node, read_message
from privsgp.sites.protocol.mailbox import Outbox, counted, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from privsgp.sites.audit import Audit
    from privsgp.sites.identity import Site
    from privsgp.sites.net.relay import Relay

SERVICE = "privsgp.Sites"
HANDSHAKE = 5.0  # seconds for TLS
HELLO = 10.0
PULL = 15.0  # seconds that a member may wait for a message that is not there yet
_ROOM = 4096  # bytes of a message of gRPC's besides a piece
_MOST_ASKED = 1 << 16
_BYE = 2.0
_LOOK = 1.0  # seconds between two looks at calls that take too long
_LOG = logging.getLogger(__name__)
_CUT = ("form", "length", "incarnation")  # what half a message looks like, and what a process sent before it died
_STRANGERS = 2048  # connections that may be open besides the members', of 25 kB each
_COPY = ("incarnation", "equivocation")  # what a copy of a site sends: the answer shows it what the other copy has sent
_MOMENT = 0.5  # seconds in which a connection that broke shows as such


class _Wanted(Options):
    """A member asks for the next message for it; `after` has, by source, the step of the newest that it has."""

    run: Hash
    after: dict[Node, Whole]
    continues: tuple[Node, ...] = ()  # sources whose increments to that step's sums it can read


class _Drop(Options):
    """A member brings the relay its message of a step for a node; without one, step −1, it asks what is kept."""

    run: Hash
    node: Whole
    step: Newest


Asked = TypeVar("Asked", _Wanted, _Drop)


class _Call:
    """A member's call, which can be ended."""

    def __init__(self, peer: int, context: grpc.ServicerContext, changed: threading.Condition, seconds: float) -> None:
        self.peer, self.context, self.changed = peer, context, changed
        self.until, self.is_over, self.is_late = time.monotonic() + seconds, False, False

    def end(self, *, late: bool = False) -> None:
        """End it, whatever it waits for."""
        with self.changed:
            self.is_over, self.is_late = True, late
            self.changed.notify_all()
        self.context.cancel()


class Server:
    """A site's server during a run."""

    def __init__(self, site: Site, members: Gossip, outbox: Outbox, audit: Audit, relay: Relay | None = None) -> None:
        self.site, self.members, self.outbox, self.audit, self.relay = site, members, outbox, audit, relay
        self.agreement, self.node, self.inbox = members.agreement, members.node, members.inbox
        self.changed = members.changed
        self.ended = threading.Event()
        self._open: dict[tuple[int, str], _Call] = {}
        self._most = (3 if relay is None else 4) * len(self.agreement.roster) + 4  # calls: of each member one of a kind
        self._server: grpc.Server | None = None
        self._failure = ""  # of the disk, that was logged last

    def start(self, listen: str) -> None:
        """Listen, with the certificate that the site has now; refuse an address that is taken."""
        options = [
            ("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", PIECE + _ROOM),
            ("grpc.server_handshake_timeout_ms", int(1000 * HANDSHAKE)), ("grpc.max_concurrent_streams", 64),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5000), ("grpc.keepalive_time_ms", 20000),
            ("grpc.keepalive_timeout_ms", 10000), ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.max_allowed_incoming_connections", self._connections()),
        ]  # fmt: skip
        pool = ThreadPoolExecutor(self._most, "server")
        server = grpc.server(pool, options=options, maximum_concurrent_rpcs=self._most)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._handlers()),))
        roots = b"".join(card.authority_pem for card in self.agreement.trusted)
        credentials = grpc.ssl_server_credentials([self.site.tls()], roots, require_client_auth=True)
        try:
            server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            raise Refused(
                f"cannot listen at {listen}", "choose a free address of this machine with --listen"
            ) from error
        server.start()
        self._server = server
        threading.Thread(target=self._end_slow, daemon=True).start()

    def _handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """Return the calls that are offered. All take streams: gRPC would wait for one message without an end."""
        answers = {"Hello": self._hello} | ({"Push": self._push} if self.node >= 0 else {})
        if self.relay is not None:
            answers["Drop"] = partial(self._drop, self.relay)
        unary = {name: grpc.stream_unary_rpc_method_handler(handler) for name, handler in answers.items()}
        return unary | {"Pull": grpc.stream_stream_rpc_method_handler(self._pull)}

    def _connections(self) -> int:
        """Return how many connections may be open: anybody can open one, and the run's files need descriptors too.

        gRPC closes any more at once, and those that have not finished TLS after `HANDSHAKE` seconds.
        """
        return self._most + min(_STRANGERS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)

    def _end_slow(self) -> None:
        while not self.ended.wait(_LOOK):
            with self.changed:
                late = [call for call in self._open.values() if call.until < time.monotonic()]
            for call in late:
                call.end(late=True)

    def stop(self) -> None:
        """End all calls and close the port."""
        self.ended.set()
        with self.changed:
            self.changed.notify_all()
        if self._server is not None:
            self._server.stop(_BYE).wait(_BYE)

    def _hello(self, parts: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with self._call("hello", context, HELLO) as call:
            with self._border(call):
                self.members.learn(call.peer, next(parts, b""))
            hello_text = self.members.hello(call.peer)
            self.members.informed(call.peer, hello_text["phase"])
            return canonical(hello_text)

    def _push(self, parts: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Let a member's message in; of one that is not newer than what is here, the body is not read."""
        limits = self.agreement.limits
        with self._call("push", context, limits.transfer) as call:
            with self._border(call):
                seconds = min(limits.deadline, limits.transfer / 2)
                wait_for(self.changed, lambda: self.inbox.is_open or self._over(call), seconds)
                if self.members.is_fresh():
                    self.inbox.receive(call.peer, next(parts, b""), parts)
                    self.members.heard(call.peer)
            return canonical(self.members.has_of(call.peer))

    def _pull(self, parts: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        """Hand a member the next message for it, once there is one: first whose it is, and of which step."""
        with self._call("pull", context, self.agreement.limits.transfer + PULL) as call, self._border(call):
            peer, asked = call.peer, self._asked(_Wanted, next(parts, b""))
            self.members.heard(peer)
            wait_for(self.changed, lambda: self._over(call) or self._next(peer, asked) is not None, PULL)
            source, step, pieces = self._next(peer, asked) or (None, -1, None)
            if pieces is not None and (
                source != self.node or self.members.is_fresh()
            ):  # else a copy may have continued
                yield canonical({"source": source, "step": step})
                yield from pieces

    def _next(self, target: int, asked: _Wanted) -> tuple[int, int, Iterator[bytes]] | None:
        """Return the source, the step and the pieces of a message: this site's own, else one that it relays."""
        newest = asked.after.get(self.node, -1)
        if (frame := self.outbox.next(target, newest)) is not None:
            pieces = self.outbox.pieces(frame, newest, continues=self.node in asked.continues)
            return self.node, frame.header.step, counted(self.outbox.bytes_to, target, pieces)
        if self.relay is None or (kept := self.relay.next(target, asked.after)) is None:
            return None
        return kept[0], kept[1], frames.in_pieces(kept[2])

    def _drop(self, kept: Relay, parts: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        """Keep a member's sealed message for another; say what is kept of it."""
        with self._call("drop", context, self.agreement.limits.transfer) as call, self._border(call):
            asked = self._asked(_Drop, next(parts, b""))
            link = call.peer, asked.node
            if link not in self.agreement.links or not self.agreement.is_relayed(link):
                raise Rejected("link", f"a sealed message over the link {link}")
            if asked.step > kept.newest(link):
                sealed = relays.collected(parts, relays.most(self.agreement))
                if len(sealed) < self.agreement.message_bytes or not context.is_active():  # a connection that broke
                    raise Rejected("length", f"{len(sealed)} bytes of a sealed message")
                kept.put(link, asked.step, sealed)
            return canonical({"newest": kept.kept_of(call.peer)})
        raise AssertionError  # `_border` does not let what was rejected pass here

    def _over(self, call: _Call) -> bool:
        return self.ended.is_set() or call.is_over

    def _asked(self, kind: type[Asked], text: bytes) -> Asked:
        """Read what a member asks for."""
        asked = read_message(kind, text, len(self.agreement.roster), _MOST_ASKED)
        if asked.run != self.agreement.run:
            raise Rejected("run", "a request of another run")
        return asked

    def _who(self, context: grpc.ServicerContext) -> int:
        """Return which node's site is at the other end, by the key in its certificate."""
        name = "?"
        with contextlib.suppress(ValueError):
            shown = x509.load_pem_x509_certificate(context.auth_context().get("x509_pem_cert", [b""])[0])
            name = shown.subject.rfc4514_string()[:80]
            for peer, card in enumerate(self.agreement.roster):
                if peer != self.node and card.issued(shown):
                    return peer
        what = f"a certificate of no other member, {name}, from {context.peer()}"
        self.audit.note("stranger", "?", what)  # counted together: a member can issue any number of names
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "no other member's certificate")
        raise AssertionError  # abort does not return

    @contextlib.contextmanager
    def _border(self, call: _Call) -> Iterator[None]:
        """Write down what is rejected, and say so; a copy of a site gets its answer, so that it stops."""
        try:
            yield
        except Rejected as rejected:
            if rejected.kind in _CUT and _broke(call.context):  # nobody's fault
                raise grpc.RpcError from rejected
            self.audit.note(rejected.kind, self.agreement.roster[call.peer].name, str(rejected), **rejected.evidence)
            if rejected.kind not in _COPY:
                call.context.abort(grpc.StatusCode.INVALID_ARGUMENT, rejected.kind)

    @contextlib.contextmanager
    def _call(self, kind: str, context: grpc.ServicerContext, seconds: float) -> Iterator[_Call]:
        """Give a member its one call of a kind, for so long: a new one ends the one before, time ends any.

        The text of an error stays here: gRPC would send it to the peer, whatever it says of files and values.
        """
        call = _Call(self._who(context), context, self.changed, seconds)
        with self.changed:
            before = self._open.get((call.peer, kind))
            self._open[call.peer, kind] = call
        if before is not None:
            before.end()
        try:
            yield call
        except grpc.RpcError:
            raise
        except Exception as error:
            if context.code() is None:  # else it was said already
                if not isinstance(error, OSError):
                    _LOG.exception("a call failed")
                elif str(error) != self._failure:  # a full disk fails every call
                    _LOG.warning("a message of %s was not kept: %s", self.agreement.roster[call.peer].name, error)
                    self._failure = str(error)
                context.abort(grpc.StatusCode.INTERNAL, "this site could not answer")
            raise
        finally:
            if call.is_late:
                name = self.agreement.roster[call.peer].name
                self.audit.note("slow", name, f"a {kind} that took more than {seconds:g} s")
            with self.changed:
                if self._open.get((call.peer, kind)) is call:
                    del self._open[call.peer, kind]


def _broke(context: grpc.ServicerContext) -> bool:
    """Tell whether a call's connection is gone; gRPC tells that its messages have ended a moment before it."""
    gone = threading.Event()
    return not context.add_callback(gone.set) or gone.wait(_MOMENT)
