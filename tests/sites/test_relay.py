"""A relay for sites that cannot be dialled: blind, and harmless where it tampers."""

from __future__ import annotations

import dataclasses
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
from consortium import Consortium
from test_mailbox import frame

from privsgp.errors import Refused
from privsgp.sites.canonical import canonical
from privsgp.sites.net.client import Client
from privsgp.sites.net.relay import Relay, Seal
from privsgp.sites.net.server import Server
from privsgp.sites.protocol.frames import Rejected
from privsgp.sites.protocol.gossip import Gossip
from privsgp.sites.protocol.mailbox import Inbox, Outbox
from privsgp.sites.study import Limits
from runs import command


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    return Consortium.make(tmp_path_factory.mktemp("relay") / "c", closed=(1, 2), relay=0)


def seals(c):
    return [Seal(site, c.agreement, node) for node, site in enumerate(c.sites)]


def test_only_the_receiver_can_open_a_sealed_message(closed):
    aachen, basel, cork = seals(closed)
    sent = frame(closed, 3, 0.5, source=1, target=2, x=1.5)
    sealed = basel.close(sent)
    opened = cork.open(1, sealed)
    assert opened.header == sent.header
    np.testing.assert_array_equal(opened.sums(), sent.sums())
    assert bytes(sent.body[:64]) not in sealed
    for who, source in ((aachen, 1), (cork, 0), (basel, 2), (basel, 1)):
        with pytest.raises(Rejected) as rejected:
            who.open(source, sealed)
        assert rejected.value.kind == "seal"


def test_the_silence_of_a_site_behind_a_relay_counts_from_the_relays_last_report(closed, monkeypatch):
    now = 1e7
    monkeypatch.setattr(time, "monotonic", lambda: now)
    aachen, basel, cork = (Gossip(closed.agreement, i, 1, closed.agreement.sign(closed.sites[i])) for i in range(3))
    assert basel.presence(2)["silent_seconds"] is None
    aachen.learn(2, canonical(cork.hello(0)))
    basel.learn(0, canonical(aachen.hello(1)))
    now += 600.0
    assert basel.presence(2)["silent_seconds"] == 600.0


@pytest.mark.parametrize("at", [0, 5, 12, 40, -1])
def test_a_relay_that_tampers_is_noticed(closed, at):
    _, basel, cork = seals(closed)
    sealed = bytearray(basel.close(frame(closed, 3, 0.5, source=1, target=2)))
    sealed[at] ^= 1
    with pytest.raises(Rejected, match="sealed"):
        cork.open(1, sealed)
    for cut in (b"", sealed[:5], sealed[:-1]):
        with pytest.raises(Rejected):
            cork.open(1, cut)


def test_what_is_sealed_is_checked_like_any_other_message(closed):
    _, basel, cork = seals(closed)
    other = frame(closed, 3, 0.5, source=1, target=2, run="0" * 64)
    with pytest.raises(Rejected) as rejected:
        cork.open(1, basel.close(other))
    assert rejected.value.kind == "run"
    forged = frame(closed, 3, 0.5, source=1, target=2)
    forged = dataclasses.replace(forged, signature=closed.sites[0].sign(b"message", forged.header.text()))
    with pytest.raises(Rejected, match="did not sign"):
        cork.open(1, basel.close(forged))


def test_a_relay_keeps_the_newest_of_each_link():
    relay = Relay()
    relay.put((1, 2), 3, b"three")
    relay.put((1, 2), 1, b"one")
    assert relay.newest((1, 2)) == 3
    assert relay.newest((2, 1)) == -1
    assert relay.next(2, {1: 2}) == (1, 3, b"three")
    assert relay.next(2, {1: 3}) is None
    assert relay.next(1, {}) is None
    assert relay.kept_of(1) == {2: 3}


def test_two_closed_sites_learn_through_a_member(consortium):
    c = consortium(closed=(1, 2), relay=0, limits=Limits(deadline=5.0))
    c.start()
    for i, summary in enumerate(c.end()):
        assert summary["releases"][i] == 20 == c.sent(i)
        assert not c.audited(i)
        assert summary["site"]["messages"]["taken"] > 0
    assert any(source == 1 for taken in c.taken(2).values() for source, _ in taken)
    ran = command("status", c.study, "--home", c.sites[2].home, "--out", c.out(2), "--json")
    seen = json.loads(ran.out)
    basel = seen["sites"]["basel"]
    assert (basel["phase"], basel["relay"], basel["there"]) == ("finished", "aachen", False)
    assert basel["step"] == 22
    carried = {(one["source"], one["target"]): one["step"] for one in seen["links"]}
    assert carried["basel", "cork"] == carried["cork", "basel"] == 21


def test_a_rented_relay_serves_sites_that_are_all_closed_and_may_be_restarted(consortium):
    c = consortium(
        closed=(0, 1, 2), relay="rented", limits=Limits(deadline=5.0, staleness=10), algorithm={"final_mixing": 12}
    )
    c.start_relay()
    c.start()
    c.until_step(0, 4)
    c.kill(-1)
    time.sleep(0.2)
    c.start_relay()
    for i, summary in enumerate(c.end()):
        assert summary["releases"][i] == 20 == c.sent(i)
        assert not c.audited(i), c.audited(i)
    models = np.stack([c.model(i) for i in range(3)])
    assert np.abs(models - models.mean(0)).max() < 0.05 * np.abs(models).max()


def test_only_the_relay_relays(closed, tmp_path):
    ran = command("relay", closed.study, "--home", closed.sites[1].home, "--audit", tmp_path / "a")
    assert ran.code == 2
    assert "is not the relay" in ran.err
    ran = command("relay", closed.study, "--home", closed.sites[0].home, "--audit", tmp_path / "a")
    assert "relays too" in ran.err


def test_a_relay_must_be_reachable(tmp_path):
    with pytest.raises(Refused, match="nobody can dial"):
        Consortium.make(tmp_path / "c", closed=(1, 2), relay=1)


def test_a_message_that_nobody_can_open_does_not_hide_those_of_others(tmp_path):
    """Basel seals rubbish for delft; cork's message comes all the same."""
    c = Consortium.make(tmp_path / "c", (100, 100, 100, 100), closed=(1, 2, 3), relay=0)
    relay, inbox = Relay(), Inbox(c.agreement, 3, 2)
    relay.put((1, 3), 7, bytes(c.agreement.message_bytes))
    relay.put((2, 3), 0, Seal(c.sites[2], c.agreement, 2).close(frame(c, 0, 0.5, source=2, target=3)))
    members = Gossip(c.agreement, 3, 1, c.agreement.sign(c.sites[3]), inbox)
    client = Client(c.sites[3], members, Outbox(2), None)

    def collect(asked, timeout):
        found = relay.next(3, {int(j): step for j, step in json.loads(asked)["after"].items()})
        return [] if found is None else [canonical({"source": found[0], "step": found[1]}), found[2]]

    channel = SimpleNamespace(unary_stream=lambda _path: collect)
    with pytest.raises(Rejected, match="did not seal"):
        client._fetch([1, 2], -1, channel)
    client._fetch([1, 2], -1, channel)
    assert inbox.newest(2) == 0
    client._fetch([1, 2], -1, channel)  # nothing is left
    relay.put((1, 3), 8, Seal(c.sites[1], c.agreement, 1).close(frame(c, 8, 0.5, source=1, target=3)))
    client._fetch([1, 2], -1, channel)
    assert inbox.newest(1) == 8


def test_threads_of_a_relay_grow_with_its_members_and_not_with_their_links(closed):
    members = Gossip(closed.agreement, 0, 1, closed.agreement.sign(closed.sites[0]))
    server = Server(closed.sites[0], members, Outbox(1), None, relay=Relay())
    assert server._most == 4 * 3 + 4
