"""The door: who is let in, and what becomes of calls that are too long, too slow, too many or not TLS at all."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import socket
import ssl
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
from consortium import PATIENCE, Consortium
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from test_mailbox import frame

import malformed
from privsgp.engine.folder import Folder
from privsgp.errors import Refused
from privsgp.sites.agreement import Agreement
from privsgp.sites.canonical import canonical
from privsgp.sites.identity import Site, load_key, tls_name
from privsgp.sites.net.server import Server
from privsgp.sites.protocol.gossip import Gossip
from privsgp.sites.run import wire
from privsgp.sites.study import Limits
from runs import FORKS


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """Return a consortium with aachen's door open."""
    c = Consortium.make(tmp_path_factory.mktemp("door") / "c", limits=Limits(deadline=5.0, transfer=1.5))
    network = wire(c.sites[0], c.agreement, prepared(c))
    network.inbox.open()
    network.members._silence = 3600.0  # tests push without a hello each second
    network.server.start(c.sites[0].listen)
    yield c, network
    network.server.stop()


def channel(c, who, root=None, name="aachen"):
    key, certificate = who.tls()
    credentials = grpc.ssl_channel_credentials((root or c.sites[0]).card.authority_pem, key, certificate)
    options = [("grpc.ssl_target_name_override", tls_name(name)), ("grpc.use_local_subchannel_pool", 1)]
    return grpc.secure_channel(c.sites[0].card.address, credentials, options)


def push(c, who, pieces, seconds=30.0, **options):
    with channel(c, who, **options) as opened:
        return json.loads(opened.stream_unary("/privsgp.Sites/Push")(iter(pieces), timeout=seconds))


def code(error):
    return error.value.code().name


def kinds(network):
    return network.audit.counts()


def test_a_member_is_let_in(house):
    c, network = house
    said = push(c, c.sites[1], frame(c, 0, 0.4).pieces())
    assert said["newest"] == 0
    assert network.inbox.newest(1) == 0
    assert push(c, c.sites[1], frame(c, 0, 0.4).pieces())["newest"] == 0


def test_strangers_are_turned_away(house, tmp_path):
    c, _ = house
    stranger = Site.create(tmp_path / "s", "basel", address=None)  # a member's name on another key
    with pytest.raises(grpc.RpcError) as error:
        push(c, stranger, frame(c, 1, 0.5).pieces())
    assert code(error) == "UNAVAILABLE"


def test_a_certificate_that_has_expired_is_turned_away_and_a_new_one_let_in(house):
    c, _ = house
    c.sites[1].rotate(days=-0.1)
    with pytest.raises(grpc.RpcError) as error:
        push(c, c.sites[1], frame(c, 1, 0.5).pieces())
    assert code(error) == "UNAVAILABLE"
    c.sites[1].rotate()
    assert push(c, c.sites[1], frame(c, 1, 0.5).pieces())["newest"] == 1


def shown(c):
    """Return the certificate that aachen's door shows, None while it is closed."""
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(OSError), anybody.wrap_socket(socket.create_connection(place(c), 5.0)) as opened:
        return opened.getpeercert(binary_form=True)
    return None


def place(c):
    host, port = c.sites[0].listen.split(":")
    return host, int(port)


def test_strangers_who_open_many_connections_at_once_do_not_end_a_site(consortium):
    """With certificates that gRPC takes up while it listens, a few thousand did: a signal ended the process."""
    c = consortium()
    with opened(c) as door:
        end = time.monotonic() + 4.0
        strangers = [threading.Thread(target=knock, args=(place(c), end)) for _ in range(8)]
        for one in strangers:
            one.start()
        for one in strangers:
            one.join()
        assert door.exitcode is None, signal.Signals(-door.exitcode).name
        assert shown(c) is not None


def test_strangers_leave_descriptors_for_files_and_members(consortium):
    """Each connection takes a descriptor, and a process often has 1024 of them: here 256."""
    c = consortium()
    with opened(c, files=256) as door, contextlib.ExitStack() as held, channel(c, c.sites[1]) as member:
        hello = member.unary_unary("/privsgp.Sites/Hello")
        hello(canonical(_hello(c, 1)), timeout=20.0)
        for _ in range(300):
            held.enter_context(socket.create_connection(place(c), 5.0)).sendall(b"\x16\x03\x01\x02\x00\x01")
        time.sleep(1.0)  # each may stay for five seconds
        assert 100 < len(list(Path(f"/proc/{door.pid}/fd").iterdir())) < 220
        hello(canonical(_hello(c, 1)), timeout=20.0)  # a member that was connected still is
        until_shown(c)  # others are let in when the strangers have run out of time


@contextlib.contextmanager
def opened(c, files=None):
    """Open aachen's door in a process of its own, with so many descriptors."""
    door = FORKS.Process(target=keep_open, args=(c.study, c.sites[0].home, files))
    door.start()
    try:
        until_shown(c)
        yield door
    finally:
        door.kill()
        door.join()


def until_shown(c):
    until = time.monotonic() + PATIENCE
    while shown(c) is None:
        assert time.monotonic() < until
        time.sleep(0.1)


def keep_open(study, home, files):
    if files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    site, agreement = Site.open(home), Agreement.read(study)
    Server(site, Gossip(agreement, 0, 1, "0" * 128), None, None).start(site.listen)
    signal.pause()


def knock(place, end):
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(place, 1.0) as plain:
            plain.sendall(b"\x16\x03\x01\x02\x00\x01")  # as TLS begins


def test_another_server_is_not_taken_for_the_site(house):
    c, _ = house
    with pytest.raises(grpc.RpcError) as error:
        push(c, c.sites[1], frame(c, 2, 0.6).pieces(), root=c.sites[2])
    assert code(error) == "UNAVAILABLE"


@pytest.mark.parametrize("what", malformed.MESSAGES)
def test_a_message_that_no_honest_site_sends_is_refused_at_the_door(house, what):
    c, network = house
    changes, kind = malformed.MESSAGES[what]
    before, newest = kinds(network).get(kind, 0), network.inbox.newest(1)
    one = frame(c, **{"step": 11, "w": 1.2} | changes)
    with pytest.raises(grpc.RpcError) as error:
        push(c, c.sites[1], one.pieces())
    assert (code(error), error.value.details()) == ("INVALID_ARGUMENT", kind)
    assert (kinds(network)[kind] - before, network.inbox.newest(1)) == (1, newest)


def test_a_member_cannot_speak_for_another(house):
    c, network = house
    before = kinds(network).get("source", 0)
    with pytest.raises(grpc.RpcError, match="source"):
        push(c, c.sites[2], frame(c, 17, 0.9).pieces())
    assert kinds(network)["source"] == before + 1
    assert network.inbox.newest(1) < 17


def test_the_text_of_an_error_stays_here(house, monkeypatch):
    c, network = house

    def full(*_):
        raise OSError(28, "No space left on device", "/srv/patients/seen")

    with monkeypatch.context() as patched:
        patched.setattr(network.inbox.store, "see", full)
        with pytest.raises(grpc.RpcError) as error:
            push(c, c.sites[2], frame(c, 0, 0.4, source=2).pieces())
    assert (code(error), error.value.details()) == ("INTERNAL", "this site could not answer")
    assert network.inbox.newest(2) == -1  # what cannot be noted is not let in
    monkeypatch.setattr(network.members, "hello", full)
    with channel(c, c.sites[2]) as opened, pytest.raises(grpc.RpcError) as error:
        opened.unary_unary("/privsgp.Sites/Hello")(canonical(_hello(c)), timeout=30.0)
    assert error.value.details() == "this site could not answer"


def _hello(c, node=2):
    return Gossip(c.agreement, node, 1, "0" * 128).hello(0)


def test_a_member_whose_certificate_names_another_is_refused(house, monkeypatch):
    c, network = house
    from privsgp.sites import identity

    authority = load_key(c.sites[2].home / "authority.key", EllipticCurvePrivateKey)
    key = identity._p256()
    certificate = identity._certificate("basel", key, authority, "cork authority", 1.0)
    monkeypatch.setattr(c.sites[2], "tls", lambda: (identity.private_pem(key), identity._pem(certificate)))
    with pytest.raises(grpc.RpcError) as error:
        push(c, c.sites[2], frame(c, 7, 0.9).pieces())
    assert code(error) == "PERMISSION_DENIED"
    assert kinds(network)["stranger"] == 1


def test_an_endless_stream_ends(house):
    c, network = house
    head = next(frame(c, 8, 0.9).pieces())
    sent = []

    def endless():
        yield head
        while True:
            sent.append(1)
            yield bytes(1 << 20)

    with pytest.raises(grpc.RpcError) as error:
        push(c, c.sites[1], endless())
    assert code(error) in ("INVALID_ARGUMENT", "CANCELLED")
    assert kinds(network)["length"] >= 1
    assert len(sent) < 64
    assert network.inbox.newest(1) < 8


def test_a_piece_that_is_too_large_is_not_taken(house):
    c, _ = house
    with pytest.raises(grpc.RpcError) as error:
        push(c, c.sites[1], [bytes(64 << 20)])
    assert code(error) in ("RESOURCE_EXHAUSTED", "CANCELLED", "UNAVAILABLE")


def test_a_trickle_is_cut_off_and_a_new_call_of_the_member_ends_the_old_one(house):
    c, network = house
    ended = []

    def trickle(step):
        head, body = frame(c, step, 0.9).pieces()
        yield head
        for byte in body:
            time.sleep(0.1)
            yield bytes([byte])

    def slow(step=8):
        began = time.monotonic()
        with pytest.raises(grpc.RpcError):
            push(c, c.sites[1], trickle(step), seconds=30.0)
        ended.append(time.monotonic() - began)

    threads = [threading.Thread(target=slow) for _ in range(3)]
    for thread in threads:
        thread.start()
        time.sleep(0.15)
    assert push(c, c.sites[1], frame(c, 9, 1.0).pieces())["newest"] == 9  # they hold nothing up
    slow(10)
    for thread in threads:
        thread.join()
    assert max(ended) < 25  # the call itself may take 30
    until = time.monotonic() + PATIENCE
    while "slow" not in kinds(network) and time.monotonic() < until:
        time.sleep(0.01)
    assert kinds(network)["slow"] == 1


def test_a_connection_that_does_not_speak_tls_is_closed(house):
    c, _ = house
    host, port = c.sites[0].card.address.split(":")
    with socket.create_connection((host, int(port)), 15) as silent:
        began = time.monotonic()
        assert silent.recv(1) == b""
        assert time.monotonic() - began < 10


def test_hellos_that_are_none_are_refused_and_written_down(house):
    c, network = house
    good, before = _hello(c, 1) | {"phase": "training"}, kinds(network).get("form", 0)
    with channel(c, c.sites[1]) as opened:
        hello = opened.unary_unary("/privsgp.Sites/Hello")
        wrong = [canonical(good | {"run": "0" * 64}), canonical(good | {"step": -1})]
        for said in (b"", b"[]", b"{", b"[" * 100_000, *wrong):
            with pytest.raises(grpc.RpcError) as error:
                hello(said, timeout=30)
            assert code(error) == "INVALID_ARGUMENT"
        forged = good | {"signatures": {"2": "0" * 128}, "left": {"2": {"taken": {}, "signature": "0" * 128}}}
        hello(canonical(forged), timeout=30)
    assert 2 not in network.members.signatures
    assert not network.members.gone()
    assert kinds(network)["form"] - before == 5


def test_a_member_that_nobody_can_dial_fetches_its_messages(house):
    c, network = house
    network.outbox.post(frame(c, 4, 0.5, source=0, target=1, x=1.5))
    with channel(c, c.sites[1]) as opened:
        pull = opened.unary_stream("/privsgp.Sites/Pull")
        whose, head, body = pull(canonical({"run": c.agreement.run, "after": {}}), timeout=30)
        assert json.loads(whose) == {"source": 0, "step": 4}
        assert np.frombuffer(body)[0] == 1.5
        assert b'"step":4' in head
        with pytest.raises(grpc.RpcError):
            list(pull(canonical({"run": "0" * 64, "after": {}}), timeout=30))


def test_a_port_that_is_taken_is_refused(house):
    c, network = house
    with pytest.raises(Refused, match="cannot listen"):
        type(network.server)(c.sites[0], network.members, network.outbox, network.audit).start(c.sites[0].listen)


def prepared(c):
    folder = Folder(c.out(0))
    folder.path.mkdir()
    folder.prepare()
    return folder
