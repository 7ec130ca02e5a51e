"""A relay for sites that cannot be dialled: blind, and harmless where it tampers."""

from __future__ import annotations

import dataclasses
import json
import time

import numpy as np
import pytest
from consortium import Consortium
from test_mailbox import frame

from privsgp.errors import Refused
from privsgp.sites.agreement import Limits
from privsgp.sites.frames import Rejected
from privsgp.sites.relay import Relay, Seal
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
    assert relay.wait((1, 2), 2, 1.0, lambda: False) == b"three"
    assert relay.wait((1, 2), 3, 0.05, lambda: False) is None


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
