"""A site that leaves and lies about what it took: no message is sent anew, and nothing is given back twice."""

from __future__ import annotations

import logging

import torch
from consortium import Consortium, mixed

from privsgp.sites.canonical import canonical
from privsgp.sites.protocol.gossip import Goodbye, Gossip
from privsgp.sites.protocol.mailbox import Outbox
from privsgp.sites.transport import SitesTransport


def _goodbye(c, taken):
    return {2: Goodbye.make(c.sites[2], c.agreement.run, taken)}


def _leaves(members, goodbye):
    """Tell whether a goodbye is believed that was not known before."""
    before = dict(members.goodbyes)
    members.take_up({}, goodbye, {})
    return members.goodbyes != before


def test_a_lie_about_what_was_taken_changes_no_message_and_counts_once(three, caplog):
    caplog.set_level(logging.DEBUG, "privsgp.sites.transport")
    members, outbox = Gossip(three.agreement, 0, 1, three.agreement.sign(three.sites[0])), Outbox(9)
    transport = SitesTransport(three.sites[0], members, outbox)
    transport._wait = lambda _k: None
    for node in (1, 2):
        peer = Gossip(three.agreement, node, 1, three.agreement.sign(three.sites[node]))
        members.learn(node, canonical(peer.hello(0)))
    x, w = torch.ones(1, three.agreement.weights), torch.ones(1, dtype=torch.float64)
    for k in range(2):
        x, w = mixed(transport, k, x, w)
    sent = {i: list(outbox._frames[i]) for i in (1, 2)}
    assert _leaves(members, _goodbye(three, {}))  # it has taken both
    for k in (2, 3):
        x, w = mixed(transport, k, x, w)
        assert not _leaves(members, _goodbye(three, {0: 0}))  # the first word stays
    assert outbox._frames[1][:2] == sent[1]
    assert outbox._frames[2] == sent[2]
    assert [one.returned for one in caplog.records if getattr(one, "returned", None)] == [[(2, -1)]]


def test_a_goodbye_names_nobody_whose_messages_cannot_have_been_taken(tmp_path):
    """It stays in every hello: with 1024 names in each, two of them would make hellos too long to be read."""
    c = Consortium.make(tmp_path / "ring", graph={"name": "ring-directed"})
    members = Gossip(c.agreement, 0, 1, c.agreement.sign(c.sites[0]))
    assert not _leaves(members, _goodbye(c, {0: 3, 1: 3}))
    assert not _leaves(members, _goodbye(c, {2: 3}))
    assert not members.goodbyes
    assert _leaves(members, _goodbye(c, {1: 3}))
