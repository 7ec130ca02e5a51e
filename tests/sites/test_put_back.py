"""A run folder that is put back by a few steps is noticed by the site itself, whoever else is there."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from consortium import copied, mixed
from test_mailbox import frame

from privsgp.algorithms import State
from privsgp.engine import checkpoint
from privsgp.engine.checkpoint import Progress
from privsgp.engine.folder import Folder
from privsgp.errors import Refused
from privsgp.sites.agreement import Limits
from privsgp.sites.canonical import canonical
from privsgp.sites.frames import PLACE, Rejected
from privsgp.sites.join import Network, _incarnation, _take_up_links, _transport
from privsgp.sites.mailbox import Inbox, Outbox
from privsgp.sites.members import Members
from privsgp.sites.own_messages import OwnMessages
from privsgp.sites.seen import Heard
from privsgp.sites.server import receive
from privsgp.sites.trainer import SiteTrainer
from privsgp.sites.transport import SitesTransport


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
    c.processes[1].join(15)
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
    c.processes[1].join(30)
    assert c.processes[1].exitcode == 2, c.log(1)
    assert "older copy" in c.log(1)
    assert c.sent(1) == messages


def test_a_site_that_knows_of_no_step_waits_for_who_may_know_of_one(three, tmp_path):
    """All it has was put back to before the run. Basel, which says hello first, was restarted; cork knows."""
    members = Members(three.agreement, 0, 1, three.agreement.sign(three.sites[0]))
    inbox, log = Inbox(three.agreement, 0, 2), tmp_path / "taken.jsonl"
    transport = SitesTransport(three.sites[0], three.agreement, 0, inbox, Outbox(2), members, log)
    others = {i: Members(three.agreement, i, 1, three.agreement.sign(three.sites[i])) for i in (1, 2)}
    others[2].seen = {0: frame(three, 5, 0.5, source=0, target=2)}.get
    members.learn(1, json.loads(canonical(others[1].hello(0))))
    later = threading.Timer(0.3, lambda: members.learn(2, json.loads(canonical(others[2].hello(0)))))
    later.start()
    guard = SimpleNamespace(settle=lambda *_: None)
    begun = SimpleNamespace(_pending=None, budget_guard=guard, transport=transport, state=SimpleNamespace(x=None))
    with pytest.raises(Refused, match="older copy"):
        SiteTrainer._recover(begun)
    later.join()


def test_a_commit_that_is_taken_up_is_durable_before_its_messages_leave_again(three, tmp_path, monkeypatch):
    """A process that was killed after it named its commit did not make the name durable: a power cut could undo it."""
    folder = Folder(tmp_path / "run", "-0-0")
    folder.path.mkdir()
    folder.prepare()
    members = Members(three.agreement, 0, 1, three.agreement.sign(three.sites[0]))
    inbox, log = Inbox(three.agreement, 0, 2), folder.path / "private" / "taken.jsonl"
    transport = SitesTransport(three.sites[0], three.agreement, 0, inbox, Outbox(2), members, log)
    x, w = torch.ones(1, three.agreement.weights), torch.ones(1, dtype=torch.float64)
    memory = {f"links.{name}": value for name, value in transport.arrays().items()}
    checkpoint.save(folder.checkpoint, Progress(0, 0, 0.0, 0, ""), State(x, w, x), memory, three.agreement.run)
    synced = noted(monkeypatch)
    _take_up_links(folder, transport)
    assert folder.checkpoint.parent.resolve() in synced


def test_the_number_of_a_process_is_durable_before_anybody_hears_it(tmp_path, monkeypatch):
    """Else the next process could have it too, and what the one before had answered would be taken for its own."""
    folder = Folder(tmp_path / "run", "-0-0")
    folder.path.mkdir()
    folder.prepare()
    synced = noted(monkeypatch)
    assert [_incarnation(folder), _incarnation(folder)] == [1, 2]
    assert synced.count((folder.path / "private").resolve()) == 2


def noted(monkeypatch):
    """Return what is made durable, as it comes."""
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(Path(f"/proc/self/fd/{fd}").readlink()), fsync(fd)))
    return synced


def test_what_was_heard_of_is_known_after_a_restart_and_on_a_full_disk(three, tmp_path, monkeypatch):
    header = frame(three, 5, 0.5, source=1, target=2)
    told = Heard(three.agreement, 0, tmp_path / "heard")
    told.note(header)
    told.note(frame(three, 4, 0.4, source=1, target=0))
    assert Heard(three.agreement, 0, tmp_path / "heard").newest(1).header == header.header
    full = OSError(errno.ENOSPC, "No space left")
    monkeypatch.setattr(os, "pwrite", mock.Mock(side_effect=full))
    told.note(frame(three, 6, 0.6, source=1, target=2))
    assert told.newest(1).header.step == 6
    (tmp_path / "heard").write_bytes(bytes(2 * 3 * PLACE)[:-10] + b"{changed}!")
    assert Heard(three.agreement, 0, tmp_path / "heard").newest(1) is None


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
        c.processes[1].join(30)
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
        until = time.monotonic() + 40
        while time.monotonic() < until and not (ended := [o for o in (c, copy) if o.processes[1].exitcode is not None]):
            time.sleep(0.05)
        assert [one.processes[1].exitcode for one in ended] == [2] * len(ended)
        assert all("another copy of this site" in one.log(1) for one in ended)
    finally:
        copy.stop()


def transport_of(c, tmp_path, own=None):
    """Return a site that has met both others, and what it commits."""
    members = Members(c.agreement, 0, 1, c.agreement.sign(c.sites[0]), own)
    for peer in (1, 2):
        other = Members(c.agreement, peer, 1, c.agreement.sign(c.sites[peer]))
        members.learn(peer, json.loads(canonical(other.hello(0))))
    inbox, log, committed = Inbox(c.agreement, 0, 2), tmp_path / "taken.jsonl", []
    transport = SitesTransport(c.sites[0], c.agreement, 0, inbox, Outbox(2), members, log)
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
    peer, inbox = Members(three.agreement, 1, 1, three.agreement.sign(three.sites[1])), Inbox(three.agreement, 1, 2)
    peer.proof, peer.seen = inbox.shown, inbox.seen.newest
    own = [transport.outbox.next(1, after) for after in (-1, 0)]
    foreign = frame(three, step, 0.3 * (step + 1), source=0, target=1)
    for one in [foreign, *own] if first else [*own, foreign]:
        with contextlib.suppress(Rejected):
            receive(three.agreement, 1, inbox, 0, one.header, one.signature, None, iter([bytes(one.body)]))
        if one is not foreign:
            transport.members.prove(inbox.proof(0)["proof"])  # the answer to its sender
    transport.members.learn(1, json.loads(canonical(peer.hello(0))))
    with pytest.raises(Refused, match="another copy of this site"):
        made(three, transport, committed, 2)
    assert committed == [0, 1]
    assert transport.outbox.next(1, 1) is None


def test_what_a_site_sent_itself_does_not_stop_it(three, tmp_path):
    """Not after a restart either, in which it signs the same message as another process."""
    transport, committed = transport_of(three, tmp_path, OwnMessages(tmp_path / "own"))
    made(three, transport, committed, 0, 1)
    again = Members(three.agreement, 0, 2, three.agreement.sign(three.sites[0]), OwnMessages(tmp_path / "own"))
    for after in (-1, 0):
        again.prove(transport.outbox.next(1, after).evidence())
    assert again.foreign is None


def test_a_site_judges_no_message_before_peers_had_the_time_to_show_it_its_own(three, tmp_path):
    """To one that an old backup has replaced, honest messages bring more weight than all sites have."""
    folder = Folder(tmp_path / "run", "-0-0")
    folder.path.mkdir()
    folder.prepare()
    network = Network.make(three.sites[0], three.agreement, folder)
    transport, honest = _transport(network, folder), frame(three, 5, 12.7)
    about = three.agreement, 0, network.inbox, 1, honest.header, honest.signature, None
    receive(*about, iter([bytes(honest.body)]))
    assert network.inbox.newest(1) == -1
    for peer in (1, 2):
        other = Members(three.agreement, peer, 1, three.agreement.sign(three.sites[peer]))
        network.members.learn(peer, json.loads(canonical(other.hello(0))))
    transport.greet(0)
    with pytest.raises(Rejected, match=r"the weight 12\.7"):
        receive(*about, iter([bytes(honest.body)]))


def test_a_message_is_in_the_log_and_on_the_disk_before_it_leaves(three, tmp_path, monkeypatch):
    path, seen, synced = tmp_path / "own", [], noted(monkeypatch)
    transport, committed = transport_of(three, tmp_path, OwnMessages(path))
    monkeypatch.setattr(
        transport.outbox, "post", lambda one: seen.append((one.header in OwnMessages(path), path in synced))
    )
    made(three, transport, committed, 0, 1)
    assert seen == [(True, True)] * 4
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(path.read_bytes()[:-10])  # a crash has cut the last entry: its message did not leave
    own = OwnMessages(path)
    assert len(own) == 3
    own.note([frame(three, 5, 0.5, source=0, target=1)])
    assert len(OwnMessages(path)) == 4


def test_without_the_log_of_its_messages_a_site_does_not_go_on(three, tmp_path):
    transport, committed = transport_of(three, tmp_path)
    made(three, transport, committed, 0, 1)
    again, _ = transport_of(three, tmp_path, OwnMessages(tmp_path / "lost"))
    again.counts.copy_(transport.counts)
    with pytest.raises(Refused, match="lists 0 messages, and this site has sent 4"):
        again.restored(1, torch.zeros(1, three.agreement.weights), torch.ones(1, dtype=torch.float64))
