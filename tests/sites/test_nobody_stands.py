"""Whatever dies, is lost or comes late: when nothing goes wrong any more, every site comes to its last round.

Seeds that are named stood once.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
import torch
from consortium import Consortium
from one_thread import World
from test_mailbox import frame

from privsgp.sites.canonical import canonical
from privsgp.sites.net.client import Client
from privsgp.sites.protocol.frames import Rejected
from privsgp.sites.protocol.gossip import Gossip
from privsgp.sites.protocol.mailbox import Outbox
from privsgp.sites.study import Limits
from privsgp.sites.transport import SitesTransport

KINDS = {"open": {}, "closed": {"closed": (2,)}, "relay": {"closed": (1, 2), "relay": 0}}
FEW = {"transport": {"bits": 4}, "algorithm": {"steps": 8, "final_mixing": 4, "local_steps": 2}}
KINDS |= {f"{kind}, few bits": how | FEW for kind, how in KINDS.items()}
STOOD = [("closed", 6), ("closed", 22), ("relay", 3)]
FAULTS = {"kill": 0.004, "lost": 0.05, "frozen": 0.01, "orphan": 0.5}


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    limits = Limits(deadline=1.0, staleness=2)
    small = {"sizes": (20, 20, 20), "algorithm": {"steps": 8, "final_mixing": 4}}
    folder = tmp_path_factory.mktemp("studies")
    return {kind: Consortium.make(folder / kind, limits=limits, **(small | KINDS[kind])) for kind in KINDS}


@pytest.mark.parametrize(("kind", "seed"), [*STOOD, ("open", 13), ("closed, few bits", 6), ("relay, few bits", 3)])
def test_nobody_stands_for_good(studies, tmp_path, kind, seed):
    lived_through(studies[kind], tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_stands_whatever_the_seed(studies, tmp_path, kind):
    kills = [lived_through(studies[kind], tmp_path, seed) for seed in range(100, 160)]
    print(f"{kind}: {len(kills)} runs, {sum(kills)} kills")


def lived_through(study, tmp_path, seed):
    world = World(study, tmp_path / "disks", seed, until=20.0, shares=FAULTS)
    world.run(seconds=200.0)
    assert not world.audited()
    *x, w = world.mass()  # nothing is lost, nor taken twice
    assert w == pytest.approx(len(study.sites), abs=1e-9)
    np.testing.assert_allclose(x, world.added(), rtol=1e-6)
    return world.kills


def member(c, node, incarnation=1, **known):
    """Return a site as others know it."""
    sign = lambda text: c.sites[node].sign(b"progress", text).hex()  # noqa: E731
    found = Gossip(c.agreement, node, incarnation, c.agreement.sign(c.sites[node]), sign=sign)
    vars(found).update(known)
    return found


def with_step_3(one):
    """Let a site have the message of step 3 of the first one."""
    one.inbox.restore(0, 3, None)
    return one


def says_hello(one, other, **more):
    other.learn(one.node, canonical(one.hello(other.node)), **more)


@pytest.mark.parametrize(
    ("step", "sent", "waits"),
    [
        (9, 3, None),  # it is past step 8, and what it kept of steps 4 to 8 will never come
        (9, 6, "nothing from basel for more than 2 steps"),  # that is on its way
        (6, 3, "nothing from basel for more than 2 steps"),  # it is behind
        (7, 3, ""),  # it may still make step 8 in time
    ],
)
def test_what_a_site_will_never_send_is_not_waited_for(studies, tmp_path, step, sent, waits):
    c = studies["open"]
    aachen = member(c, 0)
    transport = SitesTransport(c.sites[0], aachen, Outbox(4))
    aachen.inbox.restore(1, 3, frame(c, 3).sums())
    says_hello(member(c, 1, step=step, sent={0: sent}), aachen)
    assert transport._holds(8, [1], 0.0) == waits


def test_who_finished_is_past_every_step(studies):
    aachen = member(studies["open"], 0)
    basel = member(studies["open"], 1, sent={0: 3})
    basel.enter("finished")
    says_hello(basel, aachen)
    assert not aachen.may_still_send(1, 3, 11)


def test_a_site_that_is_not_there_gets_a_message_without_a_share_through_the_relay_only(studies):
    """Nobody tells it that none will come."""
    c = studies["relay"]
    transport = SitesTransport(c.sites[1], member(c, 1), Outbox(4))
    x, w = torch.ones(1, c.agreement.weights), torch.ones(1, dtype=torch.float64)
    (message,) = transport.prepare(0, x, w)
    assert message.header.target == 2
    assert not message.sums().any()
    assert transport._sent_at(0) == []
    assert float(transport._gathered(x, w, [], [])[1]) == 1


def test_what_a_process_took_that_has_died_since_is_sent_again(studies):
    """Its answer is looked at when the next process has said hello: that one does not have the message."""
    aachen, c = member(studies["open"], 0), studies["open"]
    says_hello(member(c, 1), aachen)
    asked = aachen.others[1].incarnation
    says_hello(with_step_3(member(c, 1, 2)), aachen)
    aachen.took(1, 7, 7, asked, continues=False)
    assert aachen.have_of(1) == 3


def test_the_late_answer_of_a_process_that_has_died_since_is_no_reason_for_suspicion(studies):
    aachen, c = member(studies["open"], 0), studies["open"]
    says_hello(with_step_3(member(c, 1, 2)), aachen)
    says_hello(member(c, 1), aachen, asked=1)  # when it was asked there was no other
    assert aachen.have_of(1) == 3
    with pytest.raises(Rejected, match="process 1 after 2"):
        says_hello(member(c, 1), aachen, asked=2)


@pytest.mark.parametrize("surprise", [RuntimeError("?"), ValueError("?"), grpc.RpcError(), KeyError(1), MemoryError()])
def test_whatever_fails_a_peer_is_talked_to_again(three, monkeypatch, surprise):
    """Nobody else does: a thread that ended would leave the peer without messages for good."""
    network = SimpleNamespace(audit=None, members=member(three, 0), outbox=Outbox(2), inbox=None)
    client = Client(three.sites[0], network.members, network.outbox, network.audit)
    monkeypatch.setattr(client, "_pause", lambda *_: None)
    times = []

    def work(*_):
        times.append(1)
        if len(times) < 3:
            raise surprise
        client.ended.set()

    thread = threading.Thread(target=client._persist, args=(1, work), daemon=True)
    thread.start()
    thread.join(20.0)
    assert len(times) == 3
