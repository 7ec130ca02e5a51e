"""What the doctor finds, and what people see of a run: doctor, status, leave."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import socket
import ssl
import threading
import time
from functools import partial
from types import SimpleNamespace
from unittest import mock

import grpc
import numpy as np
import pytest
from consortium import PATIENCE, free_ports
from test_mailbox import frame
from wires import ConnectProxy

from privsgp.accounting.book import Book, Entry
from privsgp.engine.folder import Folder
from privsgp.errors import Interrupted, Refused
from privsgp.sites import doctor, identity, status
from privsgp.sites import run as join
from privsgp.sites.canonical import canonical
from privsgp.sites.doctor import examine
from privsgp.sites.identity import Site
from privsgp.sites.net.causes import cause_of
from privsgp.sites.net.client import Client
from privsgp.sites.net.relay import Relay
from privsgp.sites.net.server import Server
from privsgp.sites.protocol.gossip import Gossip
from privsgp.sites.protocol.mailbox import Outbox
from privsgp.sites.run import wire
from privsgp.sites.status import state
from runs import command, unwrapped


def _peer(site, card, agreement):
    return doctor._found(card.name, partial(doctor._peer, card), site, agreement)


def findings(c, who=0):
    return {one.what: one for one in examine(c.sites[who], c.agreement)}


def test_everything_is_fine_but_nobody_has_joined_yet(three):
    found = findings(three)
    assert [what for what, one in found.items() if not one.fine] == ["basel", "cork"]
    assert "refuses the connection: ask basel whether `privsgp join` runs there" in found["basel"].text
    assert command("doctor", three.study, "--home", three.sites[0].home).code == 3


def test_a_site_that_is_there_answers_with_its_key(consortium):
    c = consortium(closed=(2,))
    folder = Folder(c.out(1))
    folder.path.mkdir()
    folder.prepare()
    network = wire(c.sites[1], c.agreement, folder)
    network.server.start(c.sites[1].listen)
    try:
        assert "key of its card" in findings(c)["basel"].text
        with ConnectProxy() as (url, asked):
            settings = c.sites[2].home / "site.json"
            settings.write_text(json.dumps(json.loads(settings.read_text()) | {"proxy": url}))
            found = {one.what: one for one in examine(Site.open(c.sites[2].home), c.agreement)}
            assert found["basel"].fine, found["basel"]
            assert asked == [c.sites[0].card.address, c.sites[1].card.address]
            assert not found["aachen"].fine
            through_the_proxy(c, network)
    finally:
        network.server.stop()


def test_the_doctor_talks_tls_1_3_only(three):
    """As `join` does: TLS 1.2 shows the certificates of both sites to anyone on the way."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(three.sites[1].home / "tls.key")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            plain, _ = server.accept()
            with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as secured:
                secured.sendall(b"x")

        thread = threading.Thread(target=answer)
        thread.start()
        address = "{}:{}".format(*server.getsockname())
        found = _peer(three.sites[0], three.sites[1].card.model_copy(update={"address": address}), three.agreement)
        thread.join()
    assert not found.fine
    assert "does not answer in TLS 1.3" in found.text


def network_of(c, i):
    folder = Folder(c.out(i))
    folder.path.mkdir(exist_ok=True)
    folder.prepare()
    return wire(Site.open(c.sites[i].home), c.agreement, folder)


def not_yet_valid(site):
    """Give a site a certificate that is valid from the day after tomorrow on."""
    later = SimpleNamespace(
        UTC=dt.UTC, datetime=SimpleNamespace(now=lambda zone: dt.datetime.now(zone) + dt.timedelta(days=3))
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(identity, "dt", later)
        site.rotate()


@contextlib.contextmanager
def answers(*said):
    """Listen, and answer each connection with what is said; a listener that says nothing never accepts one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    one, _ = listener.accept()
                    with one:
                        if said[0]:
                            one.recv(4096)
                            one.sendall(said[0])

        if said:
            threading.Thread(target=answer, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


def why(c, site, card):
    """Return the cause of a failed link as a run finds it, having checked that the doctor finds the same."""
    client = Client(site, Gossip(c.agreement, 0, 1, "0" * 128), Outbox(1), None)
    client._card = lambda _peer: card
    with client._opened(1) as channel, pytest.raises(grpc.RpcError) as failed:
        channel.unary_unary("/privsgp.Sites/Hello")(b"{}", timeout=2.0)
    cause = cause_of(failed.value, site, card)
    found = _peer(site, card, c.agreement)
    assert not found.fine
    assert cause.what in found.text
    assert cause.remedy.split(" (")[0] in found.text  # up to the clock
    return cause


OWN = {
    "expired": (lambda site: site.rotate(days=-0.1), "the certificate of this site expired at 20", "site rotate"),
    "not valid yet": (not_yet_valid, "the certificate of this site is not valid before 20", "set the clock here"),
    "another's": (
        lambda site: (site.home / "tls.key").write_bytes(
            (Site.create(site.home / "other", "aachen", address=None).home / "tls.key").read_bytes()
        ),
        "basel does not accept the certificate of this site",
        "compare the clock",
    ),
}


@pytest.mark.parametrize("what", OWN)
def test_a_site_names_what_is_wrong_with_its_own_certificate(consortium, what):
    c = consortium()
    basel = network_of(c, 1)
    basel.server.start(c.sites[1].listen)
    spoil, cause, remedy = OWN[what]
    spoil(c.sites[0])
    try:
        found = why(c, c.sites[0], c.sites[1].card)
    finally:
        basel.server.stop()
    assert found.what.startswith(cause)
    assert remedy in found.remedy
    assert findings(c)["certificate"].fine == (what == "another's")
    assert ("expired" in findings(c)["certificate"].text) == (what == "expired")


def test_a_site_whose_own_certificate_has_expired_does_not_join(consortium, monkeypatch):
    c = consortium()
    c.sites[0].rotate(days=-0.1)
    ran = command("join", c.study, "--data", c.files[0], "--home", c.sites[0].home, "--out", c.out(0))
    assert ran.code == 2
    assert "the certificate of this site expired at" in unwrapped(ran.err)
    assert "privsgp site rotate" in ran.err
    monkeypatch.setattr(join, "wire", mock.Mock(side_effect=AssertionError))  # it would wait for signatures
    with pytest.raises(Refused, match="the certificate of this site expired at"):  # from Python too
        join.join(c.study, c.files[0], home=c.sites[0].home, out=c.out(0))
    assert not (c.out(0) / "signatures.json").exists()


@pytest.mark.parametrize(("version", "accepted"), [(ssl.TLSVersion.TLSv1_2, False), (ssl.TLSVersion.TLSv1_3, True)])
def test_the_door_accepts_tls_13_alone(consortium, version, accepted):
    c = consortium()
    basel = network_of(c, 1)
    basel.server.start(c.sites[1].listen)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=c.sites[1].card.authority)
    context.load_cert_chain(c.sites[0].home / "tls.key")
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version
    host, _, port = c.sites[1].listen.rpartition(":")
    try:
        with (
            contextlib.nullcontext() if accepted else pytest.raises(OSError),
            socket.create_connection((host, int(port)), 5) as plain,
            context.wrap_socket(plain, server_hostname=identity.tls_name("basel")) as secured,
        ):
            assert secured.version() == "TLSv1.3"
    finally:
        basel.server.stop()


@pytest.mark.parametrize(
    ("spoil", "what"),
    [(lambda site: site.rotate(days=-0.1), "has expired"), (not_yet_valid, "is not valid yet")],
    ids=["expired", "not valid yet"],
)
def test_a_site_names_what_is_wrong_with_the_certificate_of_another(consortium, spoil, what):
    c = consortium()
    spoil(c.sites[1])
    basel = network_of(c, 1)
    basel.server.start(c.sites[1].listen)
    try:
        found = why(c, c.sites[0], c.sites[1].card)
    finally:
        basel.server.stop()
    assert found.what == f"the certificate of basel {what}"
    assert "clock" in found.remedy


UNREACHED = {
    "refused": (None, "{address} refuses the connection"),
    "name": (None, "the name in no.such.name.invalid:443 was not found"),
    "silent": ((), "no answer from {address}"),
    "closed": ((b"",), "{address} closes the connection before TLS is set up"),
    "no TLS": ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), "{address} does not answer in TLS 1.3"),
}


@pytest.mark.parametrize("what", UNREACHED)
def test_a_site_names_why_another_cannot_be_reached(three, monkeypatch, what):
    monkeypatch.setattr(doctor, "_PATIENCE", 1.0)
    said, cause = UNREACHED[what]
    with contextlib.nullcontext(f"127.0.0.1:{free_ports(1)[0]}") if said is None else answers(*said) as address:
        where = "no.such.name.invalid:443" if what == "name" else address
        found = why(three, three.sites[0], three.sites[1].card.model_copy(update={"address": where}))
    assert found.what == cause.format(address=where)
    assert "basel" in found.remedy


def test_a_site_names_a_proxy_that_refuses(three, monkeypatch):
    site, card = three.sites[0], three.sites[1].card
    with answers(b"HTTP/1.1 403 Forbidden\r\n\r\n") as address:
        monkeypatch.setattr(Site, "proxy", f"http://{address}")
        assert why(three, site, card).what == f"the proxy http://{address} refused to connect to {card.address}"
    found = why(three, site, card).what
    assert found == f"{card.address} through the proxy http://{address} refuses the connection"


def through_the_proxy(c, basel):
    """Cork, which only dials out, and that through the proxy, gets basel's signature and its message."""
    folder = Folder(c.out(2))
    folder.path.mkdir()
    folder.prepare()
    cork = wire(Site.open(c.sites[2].home), c.agreement, folder)
    cork.inbox.open()
    basel.outbox.post(frame(c, 4, 0.5, source=1, target=2))
    cork.client.start()
    until = time.monotonic() + PATIENCE
    while cork.inbox.newest(1) < 4 or 1 not in cork.members.signatures:
        assert time.monotonic() < until, cork.client.failures
        time.sleep(0.01)
    assert 2 in basel.members.signatures
    cork.client.stop()


def until(there, about=lambda: None, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, about()
        time.sleep(0.05)


def rows(network):
    return {(one["source"], one["target"]): one for one in state(network)["links"]}


def shown(c, network, i):
    """Return what `privsgp status` prints of a network, and its JSON."""
    status._write(network, Folder(c.out(i)))
    about = ("status", c.study, "--home", c.sites[i].home, "--out", c.out(i))
    return unwrapped(command(*about).out), json.loads(command(*about, "--json").out)


def test_status_and_log_show_each_link_and_why_one_fails(consortium, caplog):
    c = consortium(closed=(2,))
    basel, cork = network_of(c, 1), network_of(c, 2)
    cork.members._silence = 4.0  # several beats: a site that heard no hello for so long sends nothing
    for network in (basel, cork):
        network.inbox.open()
    caplog.set_level("INFO", "privsgp")
    basel.outbox.post(frame(c, 4, 0.5, source=1, target=2))
    basel.server.start(c.sites[1].listen)
    cork.client.start()
    try:
        until(lambda: rows(cork)["basel", "cork"]["step"] == 4, lambda: state(cork))
        # last: it is not in cork's own log, so that cork takes nothing more in once basel shows that it has it
        cork.outbox.post(frame(c, 3, 0.5, source=2, target=1))
        until(lambda: rows(cork)["cork", "basel"]["step"] == 3, lambda: state(cork))
        until(lambda: rows(basel)["basel", "cork"]["step"] == 4 and rows(basel)["cork", "basel"]["step"] == 3)
        for way in (("basel", "cork"), ("cork", "basel")):
            assert rows(cork)[way]["bytes"] == rows(basel)[way]["bytes"] >= c.agreement.message_bytes
        assert rows(cork)["aachen", "cork"]["step"] is None
        until(lambda: state(cork)["sites"]["basel"]["there"])
        assert state(cork)["sites"]["basel"]["error"] is None
        basel.server.stop()
        until(lambda: "refuses" in (rows(cork)["cork", "basel"]["error"] or ""), lambda: state(cork))
        until(lambda: not state(cork)["sites"]["basel"]["there"])
        aachen = Gossip(c.agreement, 0, 1, c.agreement.sign(c.sites[0]))
        cork.members.learn(0, canonical(aachen.hello(2) | {"heard": {1: 0.25}}))
        text, told = shown(c, cork, 2)
        assert told["sites"]["basel"]["reported_by"] == "aachen"
        assert told["links"][-1]["error"].endswith("refuses the connection")
        assert "(reported alive by aachen)" in text
        assert "basel → cork" in text
        assert "step 4, " in text
        cause = f"{c.sites[1].card.address} refuses the connection"
        assert cause in text
        assert "→ ask basel whether `privsgp join` runs there, and check the firewalls between the two" in text
        assert f"no messages to or from basel: {cause}. To do: ask basel whether" in caplog.text
        lines = [one for one in caplog.records if one.getMessage().startswith("no messages to or from basel")]
        assert {(one.peer, one.remedy[:9]) for one in lines} == {("basel", "ask basel")}  # fields of the log in JSON
        cork.members.enter("finished")
        cork.members.others[1].phase = "finished"
        assert rows(cork)["cork", "basel"]["error"] is None  # it is not needed any more
    finally:
        cork.client.stop()
        basel.server.stop()


def test_both_ends_show_a_certificate_that_has_expired(consortium, caplog):
    """Cork dials out only: aachen sees that it does not dial, and cork why."""
    c = consortium(closed=(2,))
    aachen, cork = network_of(c, 0), network_of(c, 2)
    aachen.members._silence = 3600.0
    aachen.server.start(c.sites[0].listen)
    try:
        with cork.client._opened(0) as channel:
            cork.client._talk(0, channel)
        assert state(aachen)["sites"]["cork"]["there"]
        aachen.members._silence = 0.0
        assert state(aachen)["sites"]["cork"]["error"] == "cork does not dial this site"
        with status.kept(aachen, Folder(c.out(0))):
            until(lambda: "no messages to or from cork: cork does not dial this site" in caplog.text)
        c.sites[2].rotate(days=-0.1)
        cork.client.start()
        own = "the certificate of this site expired at"
        until(lambda: (rows(cork)["cork", "aachen"]["error"] or "").startswith(own), lambda: state(cork))
        assert own in shown(c, cork, 2)[0]
        with status.kept(cork, Folder(c.out(2))):
            until(lambda: f"no site can exchange messages with this one: {own}" in caplog.text)
    finally:
        cork.client.stop()
        aachen.server.stop()


def test_a_site_that_dials_out_only_and_does_not_is_named(consortium):
    c = consortium(closed=(2,))
    aachen = network_of(c, 0)
    assert state(aachen)["sites"]["cork"]["error"] == "cork does not dial this site"
    assert state(aachen)["sites"]["basel"]["error"] is None  # nobody has dialled it yet
    aachen.inbox.restore(2, 5, np.zeros(1))  # an earlier process took it
    aachen.members._deliver(2, 3)
    assert (rows(aachen)["cork", "aachen"]["step"], rows(aachen)["cork", "aachen"]["seconds_ago"]) == (5, None)
    assert "step 5, before this process" in shown(c, aachen, 0)[0]


def test_the_doctor_knows_the_relay(consortium):
    c = consortium(closed=(1, 2), relay="rented", graph={"name": "complete"})
    assert not findings(c, 1)["relay"].fine
    assert "refuses the connection" in findings(c, 1)["relay"].text
    assert "`privsgp relay` runs there" in findings(c, 1)["relay"].text
    relay = Site.open(c.folder / "home-relay")
    nobody = Gossip(c.agreement, -1, 1, "")
    carrying = Server(relay, nobody, Outbox(1), None, relay=Relay())
    carrying.start(relay.listen)
    aachen = network_of(c, 0)
    aachen.server.start(c.sites[0].listen)
    try:
        ran = command("doctor", c.study, "--home", c.sites[1].home)
        assert "dials out only" in unwrapped(ran.out)
        assert ran.code == 0, ran.out
        assert "relay" not in findings(c, 0)  # aachen can be dialled: it has no use for it
        assert "is the relay of study" in {one.what: one for one in examine(relay, c.agreement)}["roster"].text
    finally:
        carrying.stop()
        aachen.server.stop()


def test_another_server_shows(consortium):
    c = consortium()
    folder = Folder(c.out(1))
    folder.path.mkdir()
    folder.prepare()
    intercepting = wire(c.sites[1], c.agreement, folder)
    intercepting.server.start(c.sites[2].listen)  # at cork's address
    try:
        found = findings(c)["cork"].text
        assert "shows another key than the card of cork" in found
    finally:
        intercepting.server.stop()


def test_an_expired_certificate_and_a_taken_door_show(consortium):
    c = consortium()
    c.sites[0].rotate(days=-0.1)
    host, port = c.sites[0].listen.split(":")
    with socket.create_server((host, int(port))):
        found = findings(c)
    assert "site rotate" in found["certificate"].text
    assert not found["own port"].fine


def test_the_port_of_a_run_that_is_on_is_no_fault(consortium, tmp_path, monkeypatch):
    c = consortium()
    monkeypatch.chdir(tmp_path)
    folder = Folder(c.agreement.default_folder)
    host, port = c.sites[0].listen.split(":")
    with folder.locked(), socket.create_server((host, int(port))):
        folder.prepare()
        folder.identify({}, c.agreement.run)
        assert findings(c)["own port"].fine


def test_join_without_a_budget_book_signs_nothing(three, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PRIVSGP_STATE", str(tmp_path / "file"))
    out = tmp_path / "out"
    ran = command("join", three.study, "--data", three.files[0], "--home", three.sites[0].home, "--out", out)
    assert ran.code == 2
    assert "the budget book" in ran.err
    assert not (out / "signatures.json").exists()


@pytest.mark.parametrize("name", ["join", "relay"])
def test_all_that_is_logged_can_be_json(three, tmp_path, monkeypatch, name):
    def stopped(*_, say, **__):
        say("waiting for cork")
        logging.getLogger("privsgp.sites.transport").warning("step 3 waits", extra={"step": 3})
        raise Interrupted(3) if name == "join" else Refused("not the relay", "see it")

    monkeypatch.setattr(logging.getLogger("privsgp"), "handlers", [])
    monkeypatch.setattr(join, name, stopped)
    monkeypatch.setenv("PRIVSGP_STATE", str(tmp_path))
    data = ("--data", three.files[0]) if name == "join" else ()
    ran = command(name, three.study, *data, "--home", three.sites[0].home, "--log-format", "json")
    lines = [json.loads(line) for line in ran.err.splitlines()]
    assert [(line["level"], line.get("step")) for line in lines if line["message"] == "step 3 waits"] == [
        ("warning", 3)
    ]
    assert "waiting for cork" in [line["message"] for line in lines]
    assert ran.code == (130 if name == "join" else 2)
    if name == "relay":
        assert (lines[-1]["message"], lines[-1]["remedy"]) == ("not the relay", "see it")


def test_status_names_the_member_that_it_warns_of(three, tmp_path):
    folder = Folder(tmp_path / "run")
    folder.path.mkdir()
    folder.prepare()
    network = wire(three.sites[0], three.agreement, folder)
    network.audit.note("outlier", "basel", "it is far away")
    network.audit.note("form", "cork", "no hello")
    network.audit.note("not finite", "cork", "its message is no model")
    again = wire(three.sites[0], three.agreement, folder)  # after a restart it is still known
    assert [(one["peer"], one["refused"]) for one in again.audit.warnings()] == [("basel", False), ("cork", True)]
    assert network.audit.counts() == {"form": 1, "not finite": 1}  # what was taken was not refused
    status._write(again, folder)
    ran = command("status", three.study, "--home", three.sites[0].home, "--out", folder.path)
    assert "WARNING: basel" in ran.out
    assert "WARNING: cork" in ran.out
    assert "it is far away. This site accepted it" in unwrapped(ran.out)


def entry(run, folder):
    return Entry(
        run=run, node=0, ledger=run, command="join", name=run, data="a.csv", folder=str(folder), simulation=False,
        relation="zero-out", trust="per-node", epsilon=1.0, delta=1e-6,
    )  # fmt: skip


def test_doctor_lists_the_keys_of_runs_that_have_stopped(three, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [tmp_path / three.agreement.default_folder, tmp_path / "elsewhere", tmp_path / "in use"]
    for at, run in enumerate(runs):
        (run / "private").mkdir(parents=True)
        (run / "private" / "pair.key").touch()
        if at:
            Book().enter([entry(f"run{at}", folder=run)], [None])
    with Folder(runs[2], "-0-0").locked():
        left = [one for one in examine(three.sites[0], three.agreement) if one.what == "key left"]
    assert [one.fine for one in left] == [True, True]
    for run in runs[:2]:
        assert any(str(run / "private" / "pair.key") in one.text for one in left)
