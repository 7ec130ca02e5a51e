"""Networks that lose, double, reorder, fall silent, hear one way only, or let nobody in: the average stays right."""

from __future__ import annotations

import json
import time

import numpy as np
from average import firsts, held_at_the_end
from consortium import PATIENCE
from wires import ConnectProxy, Wires

from privsgp.sites.net.relay import Seal
from privsgp.sites.study import Limits

MIXING = {"steps": 1, "final_mixing": 30}  # one step makes the models differ; all that follows must only average them


def agree(c, to=1e-4):
    """Check that all came to the average of what they held at first, and where a computation of its own comes to."""
    first, held = np.stack(firsts(c))[:, :-1], held_at_the_end(c)
    spread = np.ptp(first, 0).max()
    for i in range(len(c.sites)):
        np.testing.assert_allclose(c.flat(i), held[i][:-1] / held[i][-1], rtol=0, atol=1e-5 * spread)
        np.testing.assert_allclose(c.flat(i), first.mean(0), rtol=0, atol=to * spread)


def counted(c, *which, releases=1, refused=()):
    """Check that each site paid for what it sent, holds some weight, and refused nothing, or what it should."""
    for i in which or range(len(c.sites)):
        summary = c.summary(i)
        assert summary["releases"][i] == releases == c.ledger(i).charged == c.sent(i)
        assert summary["site"]["w"] > 0
        assert {line["kind"] for line in c.audited(i)} == set(refused), c.audited(i)


def test_wires_that_are_cut_or_carry_one_way_only_for_longer_than_the_deadline(consortium):
    with Wires(3) as wires:
        c = consortium(wires=wires, limits=Limits(deadline=0.3, staleness=30), algorithm=MIXING)
        c.start()
        for begin, end in ((wires.cut, wires.mend), (wires.deafen, wires.undeafen)):
            k = max(c.taken(0), default=0)
            c.until_step(0, k + 1)
            begin(1, 0)
            c.until_step(0, k + 4)
            end(1, 0)
        c.end()
    counted(c)
    agree(c)
    assert sum(c.summary(i)["site"]["messages"]["missed"] for i in range(3)) >= 4


def test_status_shows_wires_that_are_cut_or_carry_one_way_only(consortium):
    """Of four sites two lose their wire, and of the other two one is not heard; the rest report all alive."""
    with Wires(4) as wires:
        c = consortium(
            sizes=(100, 120, 140, 100), wires=wires, limits=Limits(deadline=0.3, staleness=5),
            algorithm=MIXING | {"final_mixing": 2000},
        )  # fmt: skip
        c.start()
        c.until_step(0, 3)
        wires.cut(0, 1)
        wires.deafen(2, 3)
        for i, peer in ((0, 1), (1, 0), (2, 3), (3, 2)):
            name, end = c.sites[peer].name, time.monotonic() + PATIENCE
            while (one := seen(c, i)["sites"][name])["there"] or one["reported_by"] is None or one["error"] is None:
                assert time.monotonic() < end, one
                time.sleep(0.1)
            assert one["error"].startswith(
                (f"no answer from {c.sites[peer].card.address}", f"{c.sites[peer].card.address} is unreachable")
            )
            links = [link for link in seen(c, i)["links"] if name in (link["source"], link["target"])]
            assert len(links) == 2
            assert all(link["error"] == one["error"] and link["seconds_ago"] > 1 for link in links)
            others = [other for other in seen(c, i)["sites"] if other != name]
            assert all(seen(c, i)["sites"][other]["there"] for other in others)


def seen(c, i):
    return json.loads((c.out(i) / "status.json").read_text())


def test_two_sites_without_a_wire_between_them_learn_through_a_relay_that_reads_nothing_and_tampers(consortium):
    with Wires(3, [(0, 2), (1, 2)]) as wires:
        c = consortium(
            sizes=(100, 120), wires=wires, closed=(0, 1), relay="rented", limits=Limits(deadline=1.0), algorithm=MIXING
        )
        c.start_relay(tampers=(5,))
        c.start()
        c.end()
    counted(c, refused=["seal"])
    agree(c)
    seen = {path.name: path.read_bytes() for path in c.folder.glob("relay-?-?-*")}
    said, sealed = (firsts(c)[0] / 2).tobytes(), seen["relay-0-1-0"]
    assert Seal(c.sites[1], c.agreement, 1).open(0, sealed).body == said
    assert len(seen) > 40
    assert not any(said[:64] in text or c.agreement.run.encode() in text for text in seen.values())


def test_a_site_that_reaches_nothing_but_a_proxy_takes_part(consortium):
    with (
        Wires(4, [(0, 1), (0, 3), (1, 3), (2, 3)]) as wires,
        ConnectProxy(wires.hosts[3], wires.spaces[3]) as (url, asked),
    ):
        c = consortium(wires=wires, closed=(2,), proxies={2: url}, limits=Limits(deadline=5.0), algorithm=MIXING)
        c.start()
        c.end()
    counted(c)
    agree(c)
    assert set(asked) == {c.sites[i].card.address for i in (0, 1)}


def test_a_third_is_lost_a_tenth_comes_twice_some_come_late(consortium):
    c = consortium(limits=Limits(deadline=0.3, staleness=40), algorithm=MIXING)
    c.start(loss=0.3, twice=0.1, late=0.1)
    c.end()
    counted(c)
    agree(c)
    assert c.faults()["loss"] > 20
    assert c.faults().keys() == {"loss", "twice", "late"}


def test_the_rest_agree_on_the_average_of_what_a_site_that_left_did_not_take_with_it(consortium):
    c = consortium(limits=Limits(deadline=1.5, staleness=40), algorithm=MIXING)
    c.start(loss=0.3, twice=0.1, late=0.1)
    c.until_step(2, 0)
    (c.out(2) / "private" / "leaving").touch()  # what `privsgp leave` does while the site is in the run
    c.processes[2].join(PATIENCE)
    assert c.processes[2].exitcode == 130, c.log(2)
    c.end(0, 1)
    counted(c, 0, 1)
    first, held = np.stack(firsts(c)), held_at_the_end(c)
    rest, spread = first.sum(0) - held[2], np.ptp(first[:, :-1], 0).max()
    for i in (0, 1):
        np.testing.assert_allclose(c.flat(i), rest[:-1] / rest[-1], rtol=0, atol=1e-4 * spread)


def test_clocks_may_be_hours_apart_and_certificates_renewed_in_the_middle(consortium):
    c = consortium(limits=Limits(deadline=5.0), algorithm=MIXING)
    for i, hours in enumerate((-5.0, 0.0, 5.0)):
        c.start(i, hours=hours)
    c.until_step(0, 5)
    for site in c.sites:
        site.rotate()
    c.end()
    counted(c)
    agree(c)
