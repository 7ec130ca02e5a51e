"""A run folder that is put back by a few steps is noticed by the site itself, whoever else is there."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from consortium import PATIENCE, copied, mixed
from test_mailbox import frame

from privsgp.algorithms import State
from privsgp.engine import checkpoint
from privsgp.engine.checkpoint import Progress
from privsgp.engine.folder import Folder
from privsgp.errors import Refused
from privsgp.sites.canonical import canonical
from privsgp.sites.protocol.frames import Rejected
from privsgp.sites.protocol.gossip import Gossip, Yours, _Evidence, process_text
from privsgp.sites.protocol.mailbox import Inbox, Outbox
from privsgp.sites.run import _see_off, _take_up_links, wire
from privsgp.sites.store import Store
from privsgp.sites.study import Limits
from privsgp.sites.trainer import SiteTrainer
from privsgp.sites.transport import Ended, SitesTransport


def test_a_folder_alone_that_was_put_back_by_a_few_steps_makes_none_again(consortium):
    c = consortium(limits=Limits(deadline=1.0, staleness=40), algorithm={"steps": 400})
    c.start()
    c.until_step(1, 3)
    for i in (1, 2):
        assert c.ask_to_stop(i) == 130
        shutil.copytree(c.out(i), c.folder / f"copy-{i}")
    c.start(1, 2)
    c.until_step(1, 9)
    for i in range(3):
        c.kill(i)
    for i in (1, 2):
        shutil.rmtree(c.out(i))
        shutil.copytree(c.folder / f"copy-{i}", c.out(i))
    messages = c.sent(1)
    c.start(1, 2)  # aachen, which could tell, is away; cork was put back too, or lies
    c.processes[1].join(PATIENCE)
    assert c.processes[1].exitcode == 2, c.log(1)
    assert c.sent(1) == messages


def test_an_older_copy_is_noticed_by_sites_that_never_had_a_message_of_it(consortium):
    """On a ring only the next site gets messages; it is away. All that the site has was put back, others restarted."""
    c = consortium(
        sizes=(60, 70, 80), graph={"name": "ring-directed"}, limits=Limits(deadline=1.0, staleness=4, fewest=2),
        algorithm={"steps": 400},
    )  # fmt: skip
    places = c.out(1), c.sites[1].home, Path(os.environ["PRIVSGP_STATE"])
    c.start()
    c.until_step(1, 3)
    assert c.ask_to_stop(1) == 130
    kept = [(place, c.folder / f"copy-{at}") for at, place in enumerate(places) if place.exists()]
    for place, copy in kept:
        copied(place, copy)
    c.start(1)
    c.until_step(1, 9)
    time.sleep(3.0)  # the next site has said hello to the others
    for i in range(3):
        c.kill(i)
    for place, copy in kept:
        shutil.rmtree(place)
        shutil.copytree(copy, place)
    messages = c.sent(1)
    c.start(0, 1)
    c.processes[1].join(PATIENCE)
    assert c.processes[1].exitcode == 2, c.log(1)
    assert "older copy" in c.log(1)
    assert c.sent(1) == messages


def test_a_site_that_knows_of_no_step_waits_for_who_may_know_of_one(three, tmp_path):
    """All it has was put back to before the run. Basel, which says hello first, was restarted; cork knows."""
    members = Gossip(three.agreement, 0, 1, three.agreement.sign(three.sites[0]))
    transport = SitesTransport(three.sites[0], members, Outbox(2))
    others = {i: Gossip(three.agreement, i, 1, three.agreement.sign(three.sites[i])) for i in (1, 2)}
    others[2].store.seen[0] = frame(three, 5, 0.5, source=0, target=2)
    members.learn(1, canonical(others[1].hello(0)))
    later = threading.Timer(0.3, lambda: members.learn(2, canonical(others[2].hello(0))))
    later.start()
    guard = SimpleNamespace(check_resumed=lambda *_: None)
    begun = SimpleNamespace(_pending=None, budget_guard=guard, transport=transport, state=SimpleNamespace(x=None))
    with pytest.raises(Refused, match="older copy"):
        SiteTrainer._recover(begun)
    later.join()


def test_a_commit_that_is_taken_up_is_durable_before_its_messages_leave_again(three, tmp_path, monkeypatch):
    """A process that was killed after it named its commit did not make the name durable: a power cut could undo it."""
    folder = Folder(tmp_path / "run", "-0-0")
    folder.path.mkdir()
    folder.prepare()
    members = Gossip(three.agreement, 0, 1, three.agreement.sign(three.sites[0]))
    transport = SitesTransport(three.sites[0], members, Outbox(2))
    x, w = torch.ones(1, three.agreement.weights), torch.ones(1, dtype=torch.float64)
    memory = {f"links.{name}": [value] for name, value in transport.arrays().items()}
    checkpoint.save(folder.checkpoint, Progress(0, 0, 0.0, 0, ""), State(x, w, x), memory, three.agreement.run)
    synced = noted(monkeypatch)
    _take_up_links(folder, transport)
    assert folder.checkpoint.parent.resolve() in synced


def noted(monkeypatch):
    """Return what is made durable, as it comes."""
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(Path(f"/proc/self/fd/{fd}").readlink()), fsync(fd)))
    return synced


def test_what_was_heard_of_is_known_after_a_restart_and_on_a_full_disk(three, tmp_path):
    header = frame(three, 5, 0.5, source=1, target=2)
    told = Store(three.agreement, 0, tmp_path / "state")
    told.hear(header)
    told.hear(frame(three, 4, 0.4, source=1, target=0))
    told.sign([])  # it is written with what must be durable
    assert Store(three.agreement, 0, tmp_path / "state").heard[1].header == header.header
    told._put = mock.Mock(side_effect=sqlite3.OperationalError("database or disk is full"))
    told.hear(frame(three, 6, 0.6, source=1, target=2))
    assert told.heard[1].header.step == 6
    with pytest.raises(OSError, match="No space left"):
        told.see(frame(three, 6, 0.6, source=1, target=0))
    assert 1 not in told.seen
    told._db.execute("UPDATE newest SET signature = ?", (bytes(64),))
    told._db.commit()
    assert not Store(three.agreement, 0, tmp_path / "state").heard


def test_a_suspended_machine_stops_when_its_copy_has_gone_on(consortium):
    """The machine is suspended, its copy takes its place, and then it is resumed."""
    c = consortium(closed=(1,), limits=Limits(deadline=1.0, staleness=40), algorithm={"steps": 400})
    c.start()
    c.until_step(1, 3)
    os.kill(c.processes[1].pid, signal.SIGSTOP)
    copy = c.copy_machine(1)
    try:
        copy.start(1)
        copy.until_step(1, max(c.taken(1)) + 5)
        os.kill(c.processes[1].pid, signal.SIGCONT)
        c.processes[1].join(PATIENCE)
        assert c.processes[1].exitcode == 2, c.log(1)
        assert "another copy of this site" in c.log(1)
    finally:
        copy.stop()


def test_of_two_copies_that_start_together_one_stops_at_least(consortium):
    c = consortium(closed=(1,), limits=Limits(deadline=1.0, staleness=40), algorithm={"steps": 400})
    c.start()
    c.until_step(1, 3)
    assert c.ask_to_stop(1) == 130
    copy = c.copy_machine(1)
    try:
        for one in (c, copy):
            one.start(1)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and not (ended := [o for o in (c, copy) if o.processes[1].exitcode is not None]):
            time.sleep(0.05)
        assert {one.processes[1].exitcode for one in ended} == {2}
        assert all("another copy of this site" in one.log(1) for one in ended)
    finally:
        copy.stop()


def test_a_copy_that_was_started_stops_the_original_which_continues_when_it_is_started_again(consortium):
    """The copy has sent nothing. Without this, peers would refuse the original, which would spend on its own."""
    c = consortium(closed=(1,), limits=Limits(deadline=1.0, staleness=400), algorithm={"steps": 400})
    c.start()
    c.until_step(1, 3)
    copy = c.copy_machine(1)
    c.until_step(1, max(c.taken(1)) + 3)
    try:
        copy.start(1)
        copy.processes[1].join(PATIENCE)
        assert copy.processes[1].exitcode == 2, copy.log(1)
    finally:
        copy.stop()
    spent = c.sent(1)
    c.processes[1].join(PATIENCE)
    assert c.processes[1].exitcode == 2, f"{c.sent(1) - spent} releases since then, {c.log(1)}"
    assert "was started while this process runs" in c.log(1)
    assert c.sent(1) <= spent + 10
    c.start(1)
    c.until_step(1, max(c.taken(1)) + 5)
    assert {line["kind"] for line in c.audited(1)} == {"copy"}


def signing(c, node, process=1, inbox=None):
    """Return a site that signs the number of its process."""
    sign = lambda text: c.sites[node].sign(b"progress", text).hex()  # noqa: E731
    return Gossip(c.agreement, node, process, c.agreement.sign(c.sites[node]), inbox, sign=sign)


def process_of(c, node, number, run=None):
    """Return the number of a process as its site signs it."""
    signature = c.sites[node].sign(b"progress", process_text(run or c.agreement.run, number)).hex()
    return {"incarnation": number, "signature": signature}


@pytest.mark.parametrize("by", ["hello", "answer to a message", "relay"])
def test_a_site_stops_before_its_next_message_if_another_process_of_it_was_started(three, tmp_path, by):
    transport, committed = transport_of(three, tmp_path)
    made(three, transport, committed, 0)
    peer, copied_site = signing(three, 1), signing(three, 0, 2)
    peer.learn(0, canonical(copied_site.hello(1)))
    said = peer.hello(0)
    if by == "hello":
        transport.members.learn(1, canonical(said))
    elif by == "relay":
        transport.members.learn_from_relay(canonical(said))
    else:
        transport.members.look(Yours(**peer.has_of(0)))
    with pytest.raises(Refused, match="was started while this process runs") as refused:
        made(three, transport, committed, 1)
    assert not isinstance(refused.value, Ended)  # it can continue: keys of shared noise are kept
    assert committed == [0]
    assert transport.members.store.begin() == 3  # the next process comes after the copy's


@pytest.mark.parametrize("lie", ["another's", "of another run", "of another number", "this one", "one before"])
def test_no_peer_can_make_up_another_process_of_a_site(three, tmp_path, lie):
    transport, committed = transport_of(three, tmp_path, process=4)
    told = {
        "another's": process_of(three, 1, 9),
        "of another run": process_of(three, 0, 9, "0" * 64),
        "of another number": process_of(three, 0, 3) | {"incarnation": 9},
        "this one": process_of(three, 0, 4),
        "one before": process_of(three, 0, 3),
    }[lie]
    said = signing(three, 1).hello(0)
    with contextlib.suppress(Rejected):
        transport.members.learn(1, canonical(said | {"yours": said["yours"] | {"process": told}}))
    made(three, transport, committed, 0, 1)
    assert committed == [0, 1]


@pytest.mark.parametrize("word", [None, "0" * 128])
def test_a_process_that_its_site_did_not_sign_replaces_none(three, word):
    """With a stolen TLS key alone, nobody can have peers refuse the site."""
    peer = signing(three, 1)
    with pytest.raises(Rejected, match="did not sign"):
        peer.learn(0, canonical(signing(three, 0, 9).hello(1) | {"process": word}))
    peer.learn(0, canonical(signing(three, 0, 2).hello(1)))


def transport_of(c, tmp_path, store=None, process=1):
    """Return a site that has met both others, and what it commits."""
    inbox, committed = Inbox(c.agreement, 0, 2, store), []
    members = signing(c, 0, process, inbox)
    for peer in (1, 2):
        other = Gossip(c.agreement, peer, 1, c.agreement.sign(c.sites[peer]))
        members.learn(peer, canonical(other.hello(0)))
    transport = SitesTransport(c.sites[0], members, Outbox(2))
    transport._wait = lambda _k: None
    return transport, committed


def made(c, transport, committed, *steps):
    for k in steps:
        x, w = torch.full((1, c.agreement.weights), 0.1 * k), torch.ones(1, dtype=torch.float64)
        mixed(transport, k, x, w, lambda k, *_: committed.append(k))


@pytest.mark.parametrize(("step", "first"), [(0, True), (0, False), (1, True), (1, False), (2, False)])
def test_another_copys_message_of_any_step_stops_a_site_before_its_next(three, tmp_path, step, first):
    """Steps 0 and 1 were sent here too, with other noise; basel gets the copy's message first, or after them."""
    transport, committed = transport_of(three, tmp_path)
    made(three, transport, committed, 0, 1)
    inbox = Inbox(three.agreement, 1, 2)
    peer = Gossip(three.agreement, 1, 1, three.agreement.sign(three.sites[1]), inbox)
    own = [transport.outbox.next(1, after) for after in (-1, 0)]
    foreign = frame(three, step, 0.3 * (step + 1), source=0, target=1)
    for one in [foreign, *own] if first else [*own, foreign]:
        with contextlib.suppress(Rejected):
            head, *pieces = one.pieces()
            inbox.receive(0, head, iter(pieces))
        if one is not foreign:
            transport.members.prove(Yours(**inbox.proof(0)).proof)  # the answer to its sender
    transport.members.learn(1, canonical(peer.hello(0)))
    with pytest.raises(Refused, match="another copy of this site"):
        made(three, transport, committed, 2)
    assert committed == [0, 1]
    assert transport.outbox.next(1, 1) is None


def test_a_copy_that_shows_during_a_commit_stops_the_message_that_was_committed(three, tmp_path):
    transport, _ = transport_of(three, tmp_path)

    def commit(*_):
        transport.members.prove(_Evidence(**frame(three, 0, 0.5, source=0, target=1).evidence()))

    x, w = torch.zeros(1, three.agreement.weights), torch.ones(1, dtype=torch.float64)
    with pytest.raises(Refused, match="another copy of this site"):
        mixed(transport, 0, x, w, commit)
    assert transport.members.foreign is not None
    assert transport.outbox.next(1, -1) is None
    assert transport.outbox.next(2, -1) is None


def test_what_a_site_sent_itself_does_not_stop_it(three, tmp_path):
    """Not after a restart either, in which it signs the same message as another process."""
    transport, committed = transport_of(three, tmp_path, Store(three.agreement, 0, tmp_path / "own"))
    made(three, transport, committed, 0, 1)
    kept = Inbox(three.agreement, 0, 2, Store(three.agreement, 0, tmp_path / "own"))
    again = Gossip(three.agreement, 0, 2, three.agreement.sign(three.sites[0]), kept)
    for after in (-1, 0):
        again.prove(_Evidence(**transport.outbox.next(1, after).evidence()))
    assert again.foreign is None


def test_a_site_judges_no_message_before_peers_had_the_time_to_show_it_its_own(three, tmp_path):
    """To one that an old backup has replaced, honest messages bring more weight than all sites have."""
    folder = Folder(tmp_path / "run", "-0-0")
    folder.path.mkdir()
    folder.prepare()
    network = wire(three.sites[0], three.agreement, folder)
    transport, honest = network.transport, frame(three, 5, 12.7)
    head, *pieces = honest.pieces()
    network.inbox.receive(1, head, iter(pieces))
    assert network.inbox.newest(1) == -1
    for peer in (1, 2):
        other = Gossip(three.agreement, peer, 1, three.agreement.sign(three.sites[peer]))
        network.members.learn(peer, canonical(other.hello(0)))
    transport.greet(0)
    with pytest.raises(Rejected, match=r"the weight 12\.7"):
        network.inbox.receive(1, head, iter(pieces))


def test_a_hello_from_before_a_suspension_does_not_end_it(three, monkeypatch):
    """It waited in a buffer of this machine: a copy of the site may have continued since the peer sent it."""
    site, peer, now = signing(three, 0), signing(three, 1), 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    peer.learn(0, canonical(site.hello(1)))
    early = [canonical(peer.hello(0)) for _ in range(2)]
    site.learn(1, early[0])
    assert site.is_fresh()
    now += 3600.0
    site.learn(1, early[1])
    assert not site.is_fresh()
    peer.learn(0, canonical(site.hello(1)))
    site.learn(1, canonical(peer.hello(0)))
    assert site.is_fresh()


def test_a_finished_site_that_knows_of_a_copy_does_not_stay_to_serve(three, tmp_path):
    folder = Folder(tmp_path / "run", "-0-0")
    folder.path.mkdir()
    folder.prepare()
    network = wire(three.sites[0], three.agreement, folder)
    network.transport.last.fill_(3)
    network.members.newer = 2
    with pytest.raises(Refused, match="another copy of this site was started"):
        _see_off(network, print)


@pytest.mark.parametrize("suspended", [False, True])
def test_a_site_that_was_suspended_pushes_nothing_before_it_hears_a_hello(three, tmp_path, monkeypatch, suspended):
    folder = Folder(tmp_path / "run", "-0-0")
    folder.path.mkdir()
    folder.prepare()
    network, pushed = wire(three.sites[0], three.agreement, folder), []
    other = Gossip(three.agreement, 1, 1, three.agreement.sign(three.sites[1]))
    network.outbox.post(frame(three, 0, source=0, target=1))
    waited = network.outbox.wait

    def wait(*asked):
        if suspended:
            network.members._spoke = time.monotonic() - 3600
        return waited(*asked)

    def push(pieces, timeout):
        pushed.append(b"".join(pieces))
        network.client.ended.set()
        return canonical(other.has_of(0))

    channel = SimpleNamespace(
        unary_unary=lambda _: lambda _text, timeout: canonical(other.hello(0)), stream_unary=lambda _: push
    )
    monkeypatch.setattr(network.outbox, "wait", wait)
    network.client._talk(1, channel)
    assert bool(pushed) is not suspended


def test_a_message_is_in_the_log_and_on_the_disk_before_it_leaves(three, tmp_path, monkeypatch):
    path, seen = tmp_path / "own", []
    transport, committed = transport_of(three, tmp_path, Store(three.agreement, 0, path))
    read = lambda: Store(three.agreement, 0, path)  # noqa: E731 - as another process does
    monkeypatch.setattr(transport.outbox, "post", lambda one, _: seen.append(read().signed(one.header)))
    made(three, transport, committed, 0, 1)
    assert seen == [True] * 4
    assert read().count() == 4
    assert {file.stat().st_mode & 0o777 for file in tmp_path.glob("own*")} == {0o600}
    (safe,) = transport.members.store._db.execute("PRAGMA synchronous").fetchone()
    assert safe == 2  # every commit waits for the disk


def test_without_the_log_of_its_messages_a_site_does_not_go_on(three, tmp_path):
    transport, committed = transport_of(three, tmp_path)
    made(three, transport, committed, 0, 1)
    again, _ = transport_of(three, tmp_path, Store(three.agreement, 0, tmp_path / "lost"))
    again.counts.copy_(transport.counts)
    with pytest.raises(Refused, match="lists 0 messages, and this site has sent 4"):
        again.restored(1)
