"""What the doctor finds, and what people see of a run: doctor, status, leave."""

from __future__ import annotations

import json
import socket
import time
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from consortium import free_ports
from test_mailbox import frame
from wires import ConnectProxy

from privsgp.engine.folder import Folder
from privsgp.errors import Refused
from privsgp.sites.doctor import examine
from privsgp.sites.identity import Site
from privsgp.sites.join import Network
from privsgp.sites.metrics import served, text
from privsgp.sites.transport import SitesTransport
from runs import command


def findings(c, who=0):
    return {one.what: one for one in examine(c.sites[who], c.agreement)}


def test_everything_is_fine_but_nobody_has_joined_yet(three):
    found = findings(three)
    assert [what for what, one in found.items() if not one.fine] == ["basel", "cork"]
    assert "nobody has joined there yet" in found["basel"].text
    assert command("doctor", three.study, "--home", three.sites[0].home).code == 1


def test_a_site_that_is_there_answers_with_its_key(consortium):
    c = consortium(closed=(2,))
    folder = Folder(c.out(1))
    folder.path.mkdir()
    folder.prepare()
    network = Network.make(c.sites[1], c.agreement, folder)
    network.server.start(c.sites[1].listen)
    try:
        assert "key of its card" in findings(c)["basel"].text
        c.sites[1].rotate(days=-0.1)
        until = time.monotonic() + 20.0
        while "rotate" not in findings(c)["basel"].text:
            assert time.monotonic() < until
        c.sites[1].rotate()
        while not findings(c)["basel"].fine:
            assert time.monotonic() < until
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


def test_metrics_are_what_prometheus_reads(three, tmp_path):
    folder = Folder(tmp_path / "run")
    folder.path.mkdir()
    folder.prepare()
    network = Network.make(three.sites[0], three.agreement, folder)
    about = (three.sites[0], three.agreement, 0, network.inbox, network.outbox, network.members)
    transport = SitesTransport(*about, tmp_path / "log")
    network.audit.note("form", "basel", "x")
    (port,) = free_ports(1)
    with served(f"127.0.0.1:{port}", lambda: text(network.members, transport, network.audit)):
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            said = answer.read().decode()
        with pytest.raises(HTTPError) as error:
            urlopen(f"http://127.0.0.1:{port}/", timeout=5)
        error.value.close()
    values = dict(line.rsplit(" ", 1) for line in said.splitlines() if not line.startswith("#"))
    assert values["privsgp_site_rounds"] == "22"
    assert values['privsgp_site_refused_total{kind="form"}'] == "1"
    assert values['privsgp_site_peer_step{site="cork"}'] == "0"
    assert said.count("# TYPE") == 7
    with pytest.raises(Refused, match="--metrics"), served("9464", str):
        pass


def through_the_proxy(c, basel):
    """Cork, which only dials out, and that through the proxy, gets basel's signature and its message."""
    folder = Folder(c.out(2))
    folder.path.mkdir()
    folder.prepare()
    cork = Network.make(Site.open(c.sites[2].home), c.agreement, folder)
    cork.inbox.open()
    basel.outbox.post(frame(c, 4, 0.5, source=1, target=2))
    cork.client.start()
    until = time.monotonic() + 15
    while cork.inbox.newest(1) < 4 or 1 not in cork.members.signatures:
        assert time.monotonic() < until, cork.client.failures
        time.sleep(0.01)
    assert 2 in basel.members.signatures
    cork.client.stop()


def test_another_server_shows(consortium):
    c = consortium()
    folder = Folder(c.out(1))
    folder.path.mkdir()
    folder.prepare()
    intercepting = Network.make(c.sites[1], c.agreement, folder)
    intercepting.server.start(c.sites[2].listen)  # at cork's address
    try:
        assert "looks into TLS" in findings(c)["cork"].text
    finally:
        intercepting.server.stop()


def test_an_expired_certificate_and_a_taken_door_show(consortium):
    c = consortium()
    c.sites[0].rotate(days=-0.1)
    host, port = c.sites[0].listen.split(":")
    with socket.create_server((host, int(port))):
        found = findings(c)
    assert "site rotate" in found["certificate"].text
    assert not found["own door"].fine


@pytest.mark.parametrize(
    ("spent", "budget", "said"),
    [(None, None, "not private"), ([None, 1.0], None, "no finite"), ([2.5, None], [3.0, 3.0], "2.5 of 3, δ = 1e-05")],
)
def test_what_was_spent_is_said(spent, budget, said):
    from privsgp.cli_sites import _spent

    assert said in _spent({"epsilon_spent": spent, "epsilon_budget": budget, "delta": [1e-5, 1e-5]}, 0)


def test_join_says_where_no_older_ledger_would_be_noticed(three, tmp_path, monkeypatch):
    from privsgp.errors import Interrupted
    from privsgp.sites import join

    def stopped(*_, **__):
        raise Interrupted(0)

    monkeypatch.setattr(join, "join", stopped)
    arguments = ("join", three.study, "--data", three.files[0], "--home", three.sites[0].home)
    monkeypatch.setenv("PRIVSGP_STATE", str(tmp_path / "fine"))
    assert "state folder" not in command(*arguments).err
    (tmp_path / "file").touch()
    monkeypatch.setenv("PRIVSGP_STATE", str(tmp_path / "file"))
    ran = command(*arguments)
    assert ran.code == 130
    assert "nothing can be kept in the state folder" in ran.err
