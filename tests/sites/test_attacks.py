"""What an outsider, a member or a careless administrator might try against a site's ε, and what becomes of it."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import sqlite3
import threading
import time
from types import SimpleNamespace
from unittest import mock

import grpc
import numpy as np
import pytest
import torch
from consortium import PATIENCE, Consortium, mixed
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from test_door import channel
from test_mailbox import check, frame

import malformed
from privsgp.accounting.book import Book
from privsgp.engine.folder import Folder
from privsgp.errors import Interrupted, Refused
from privsgp.report import page
from privsgp.sites.agreement import Agreement
from privsgp.sites.audit import Audit
from privsgp.sites.canonical import canonical
from privsgp.sites.identity import Card, Site, _certificate, _p256, _pem, _to_sign, load_key, private_pem
from privsgp.sites.net.relay import Seal
from privsgp.sites.protocol.frames import Frame, Rejected
from privsgp.sites.protocol.gossip import Goodbye, Gossip, Hello, read_message
from privsgp.sites.protocol.mailbox import Inbox, Outbox
from privsgp.sites.protocol.outliers import Outliers
from privsgp.sites.run import _enter, _prepare, _spec, check_policy, join, leave, wire
from privsgp.sites.store import Store
from privsgp.sites.study import Limits, Study
from privsgp.sites.transport import SitesTransport
from privsgp.transport.link import Increment
from runs import command


@pytest.fixture(scope="module")
def budgeted(tmp_path_factory):
    return Consortium.make(
        tmp_path_factory.mktemp("budget") / "c",
        privacy={"epsilon": [2.0, 3.0, 4.0], "sigma": None},
        algorithm={"steps": 5},
    )


@pytest.mark.parametrize(("key", "value"), [("epsilon", [0.1, 0.1, 0.1]), ("delta", [1e-9, 1e-9, 1e-9])])
def test_a_budget_that_is_shown_is_the_one_that_is_kept_to(budgeted, key, value):
    """Else a policy would be asked about 0.1, and the noise would be that of 2."""
    with pytest.raises(Refused, match=key):
        Agreement.of(budgeted.agreement.values | {key: value}, "it")


@pytest.mark.parametrize("key", ["created", "expires"])
def test_a_time_that_is_none_is_refused(three, tmp_path, key):
    path = tmp_path / "b.study"
    path.write_bytes(canonical(three.agreement.values | {key: "2026-99-45T99:00:00Z"}))
    with pytest.raises(Refused, match=key):
        Study.read(path)


@pytest.mark.parametrize("key", ["deadline", "transfer"])
def test_limits_that_no_clock_can_wait_for_are_refused(three, tmp_path, key):
    path = tmp_path / "b.study"
    path.write_bytes(canonical(three.agreement.values | {"limits": three.agreement.values["limits"] | {key: 1e300}}))
    with pytest.raises(Refused, match=key):
        Agreement.read(path)


def endorsed(site, **changes):
    values = {key: value for key, value in (site.card.model_dump() | changes).items() if key != "endorsement"}
    return values | {"endorsement": site._identity.sign(_to_sign(b"card", canonical(values))).hex()}


@pytest.mark.parametrize(
    "address", ["nowhere", "unix:/run/docker.sock", "a:1\r\nX: y", "\x1b[2Ja:1", "a:99999", "dns:///a:1"]
)
def test_a_card_with_an_address_that_is_none_is_refused(tmp_path, address):
    site = Site.create(tmp_path / "h", "aachen", address="a:1")
    with pytest.raises(Refused, match="address"):
        Card.model_validate(endorsed(site, address=address)).refuse_forged("it")


def test_a_card_brings_one_authority_and_no_more(tmp_path):
    site, other = (Site.create(tmp_path / name, name, address=None) for name in ("aachen", "evil"))
    for more in (other.card.authority, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(Refused, match="endorsed"):
            Card.model_validate(endorsed(site, authority=site.card.authority + more)).refuse_forged("it")


def seeded(c):
    return Agreement.of(c.agreement.values | {"config": c.agreement.values["config"] | {"seed": 1}}, "it")


def test_with_a_seed_there_is_no_epsilon_that_a_policy_could_allow(budgeted):
    site, agreement = budgeted.sites[0], seeded(budgeted)
    policy = site.home / "policy.toml"
    for text in ("epsilon_run = 9.0", "epsilon_total = 9.0", "delta_run = 0.1", "simulation = false"):
        policy.write_text(text)
        with pytest.raises(Refused, match="seed"):
            check_policy(site, agreement)
    policy.write_text("epsilon_run = 9.0\nsimulation = true")
    assert check_policy(site, agreement)
    policy.unlink()


def promised(site, agreement, file):
    """Enter in the budget book what a site promises, as `join` does before it signs."""
    node = agreement.node(site)
    folder = Folder(file.parent / agreement.run[:8], f"-{node}-{node}")
    folder.path.mkdir(exist_ok=True)
    folder.identify({}, agreement.run)
    spec, records, also = _spec(agreement, (file, None, file), node, "cpu", lambda _line: None)
    entered = (str(file), records, also)
    _enter(site, agreement, folder, spec, entered, resumed=False, moved=False, say=lambda _line: None)


def test_two_studies_that_are_joined_at_once_do_not_both_fit(budgeted):
    """Each asks the policy before the other has promised anything; it is asked again under the book's lock."""
    site, one = budgeted.sites[0], budgeted.agreement
    two = Agreement.of(one.values | {"name": "two"}, "it")
    (site.home / "policy.toml").write_text("epsilon_total = 3.0")
    assert check_policy(site, one)
    assert check_policy(site, two)
    promised(site, one, budgeted.files[0])
    with pytest.raises(Refused, match="epsilon_total = 3, and the run asks for 2; other runs on the same records"):
        promised(site, two, budgeted.files[0])
    assert [entry.name for entry in Book().entries()] == [one.name]
    (site.home / "policy.toml").unlink()


def stopped(consortium, algorithm="privsgp"):
    """Return a consortium whose second site was killed at some step."""
    c = consortium(
        limits=Limits(deadline=1.0, staleness=30), algorithm={"name": algorithm, "steps": 60, "final_mixing": 2}
    )
    c.start()
    c.until_step(1, 6)
    c.kill(1)
    return c


def refused(c, i=1):
    """Join again, and return why that was refused; no message of step 7 or later may have left meanwhile."""
    c.start(i)
    c.processes[i].join(PATIENCE)
    assert c.processes[i].exitcode == 2, c.log(i)
    return c.log(i)


def test_a_lost_commit_is_not_begun_anew(consortium):
    """Its steps would be made again with fresh noise, and go out in the sums of a later step."""
    c = stopped(consortium)
    noted = c.sent(1)
    (c.out(1) / "private" / "checkpoint-1-1.safetensors").unlink()
    assert "knows of step" in refused(c)
    assert c.sent(1) == noted
    assert c.ledger(1).charged == 60


@pytest.mark.parametrize(("lost", "why"), [(False, "another folder"), (True, "older copy")])
def test_a_run_is_not_begun_again_in_another_folder(consortium, tmp_path, monkeypatch, lost, why):
    """The budget book knows of it; if that is lost as well, peers know of its steps."""
    c = stopped(consortium)
    with monkeypatch.context() as patch:
        if lost:
            patch.setenv("PRIVSGP_STATE", str(tmp_path / "another state"))
        c.out(1).rename(tmp_path / "kept")
        assert why in refused(c)
    assert lost or not (c.out(1) / "ledger" / "node-1.jsonl").exists()
    (tmp_path / "kept").rename(tmp_path / "moved")  # where it is does not matter
    c.out(1).rename(tmp_path / "away")
    (tmp_path / "moved").rename(c.out(1))
    c.start(1)
    c.end()


@pytest.mark.parametrize("algorithm", ["privsgp", "privsgp-vr"])
def test_other_records_in_the_same_file_are_not_gone_on_with(consortium, algorithm):
    """A table knows records by their place: one that moved would count twice."""
    c = stopped(consortium, algorithm=algorithm)
    with np.load(c.files[1]) as kept:
        values = dict(kept)
    np.savez(c.files[1], **values | {"x": values["x"][::-1], "y": values["y"][::-1]})
    assert "other records" in refused(c)
    commit = c.out(1) / "private" / "checkpoint-1-1.safetensors"
    aside = commit.rename(c.folder / "aside")
    assert "other records" in refused(c)  # the ledger says that something was sent, and the note stays
    aside.rename(commit)
    assert "other records" in refused(c)


def test_a_finished_folder_of_another_run_signs_nothing(three, tmp_path):
    (tmp_path / "summary.json").write_text("{}")
    (tmp_path / "config.toml").write_text("")
    (tmp_path / "private").mkdir()
    other = Agreement.of(three.agreement.values | {"name": "other"}, "it")
    other.write(tmp_path / "other.study")
    with pytest.raises(Refused, match="another run"):
        join(tmp_path / "other.study", three.files[0], home=three.sites[0].home, out=tmp_path)
    with pytest.raises(Refused, match="another run"):
        leave(tmp_path / "other.study", home=three.sites[0].home, out=tmp_path)
    assert not (tmp_path / "signatures.json").exists()


def test_an_older_copy_sends_nothing_once_a_peer_has_shown_a_later_message(three, tmp_path):
    members = Gossip(three.agreement, 0, 1, three.agreement.sign(three.sites[0]))
    outbox, committed = Outbox(2), []
    transport = SitesTransport(three.sites[0], members, outbox)
    members.heard(1)  # it brings a message before it has said hello: what it has of this site is not known yet
    assert not members.is_there(1)
    peer = Gossip(three.agreement, 1, 1, three.agreement.sign(three.sites[1]))
    peer.store.seen[0] = frame(three, 5, 0.5, source=0, target=1)
    members.learn(1, canonical(peer.hello(0)))
    assert members.is_there(1)
    with pytest.raises(Refused, match="older copy"):
        _mixed(three, transport, lambda *step: committed.append(step))
    assert not committed
    assert outbox.next(1, -1) is None


def test_what_could_not_be_committed_is_not_sent(three, tmp_path):
    """Messages are made while the commit is written, and wait for it."""
    members, outbox = Gossip(three.agreement, 0, 1, three.agreement.sign(three.sites[0])), Outbox(2)
    for peer in (1, 2):
        other = Gossip(three.agreement, peer, 1, three.agreement.sign(three.sites[peer]))
        members.learn(peer, canonical(other.hello(0)))
    transport = SitesTransport(three.sites[0], members, outbox)
    seen = []

    def full(*_):
        time.sleep(0.2)  # the messages are made by now
        seen.append(outbox.next(1, -1))
        raise OSError(errno.ENOSPC, "No space left")

    with pytest.raises(OSError, match="No space left"):
        _mixed(three, transport, full)
    assert [*seen, outbox.next(1, -1), outbox.next(2, -1)] == [None, None, None]


def _mixed(c, transport, commit):
    return mixed(transport, 0, torch.zeros(1, c.agreement.weights), torch.ones(1, dtype=torch.float64), commit)


def acquainted(c, node, *others, **seen):
    """Return what a site knows that has heard the hellos of others, which have seen headers of messages."""
    members = Gossip(c.agreement, node, 1, c.agreement.sign(c.sites[node]))
    for other in others:
        peer = Gossip(c.agreement, other, 1, c.agreement.sign(c.sites[other]))
        peer.store.seen.update(seen[f"by_{other}"])
        members.learn(other, canonical(peer.hello(node)))
    return members


def test_an_older_copy_is_noticed_by_who_only_heard_of_the_later_message(three):
    """Basel tells cork of aachen's message to it, and is away when cork tells aachen."""
    sent = frame(three, 5, 0.5, source=0, target=1)
    cork = acquainted(three, 2, 1, by_1={0: sent})
    aachen = Gossip(three.agreement, 0, 1, three.agreement.sign(three.sites[0]))
    aachen.learn(2, canonical(cork.hello(0)))
    assert aachen.foreign.header == sent.header
    cork.store.heard[0] = dataclasses.replace(sent, signature=bytes(64))
    aachen = Gossip(three.agreement, 0, 1, three.agreement.sign(three.sites[0]))
    with pytest.raises(Rejected, match="did not sign"):
        aachen.learn(2, canonical(cork.hello(0)))
    assert aachen.foreign is None


@pytest.mark.parametrize("same", [True, False])
def test_two_messages_of_one_step_to_a_third_site_are_evidence_here_too(three, same):
    first, accused = frame(three, 5, 0.5, source=1, target=2), []
    second = frame(three, 5, 0.5 if same else 0.6, source=1, target=2, incarnation=2)
    members = acquainted(three, 0, 2, by_2={1: first})
    members.accuse = lambda node, evidence: accused.append((node, evidence))
    other = Gossip(three.agreement, 2, 1, three.agreement.sign(three.sites[2]))
    other.store.seen[1] = second
    for _ in range(2):
        members.learn(2, canonical(other.hello(0)))
    assert [node for node, _ in accused] == ([] if same else [1])
    for _, evidence in accused:
        for told in evidence.evidence.values():  # anybody can see who said both
            assert three.sites[1].card.signed(b"message", told["header"].encode(), told["signature"])


def test_who_is_known_by_hearsay_is_waited_for_until_it_says_hello(three):
    members = Gossip(three.agreement, 0, 1, three.agreement.sign(three.sites[0]))
    peer = Gossip(three.agreement, 1, 1, three.agreement.sign(three.sites[1]))
    peer.others[2].heard = time.monotonic()
    members.learn(1, canonical(peer.hello(0)))
    assert members.is_there(2)
    assert members.ungreeted() == [2]


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """Return a consortium with aachen's door open, which relays for the two others."""
    c = Consortium.make(
        tmp_path_factory.mktemp("attacked") / "c", closed=(1, 2), relay=0, limits=Limits(deadline=5.0, transfer=1.5)
    )
    folder = Folder(c.out(0))
    folder.path.mkdir()
    folder.prepare()
    network = wire(c.sites[0], c.agreement, folder)
    network.inbox.open()
    network.server.start(c.sites[0].listen)
    yield c, network
    network.server.stop()


@pytest.mark.parametrize("call", ["Hello", "Pull", "Drop", "Push"])
def test_calls_that_never_say_anything_do_not_hold_the_door(house, call):
    c, _ = house
    silent = threading.Event()

    def nothing():
        silent.wait(20)
        yield b""

    with channel(c, c.sites[1]) as bad, channel(c, c.sites[2]) as good:
        calls = [bad.stream_unary(f"/privsgp.Sites/{call}").future(nothing(), timeout=20) for _ in range(40)]
        time.sleep(0.5)
        hello = Gossip(c.agreement, 2, 1, c.agreement.sign(c.sites[2])).hello(0)
        try:
            assert json.loads(good.unary_unary("/privsgp.Sites/Hello")(canonical(hello), timeout=15))["step"] == 0
        finally:
            silent.set()
            for one in calls:
                one.cancel()


def test_a_member_cannot_fill_the_audit_log_with_names(house):
    c, network = house
    authority = load_key(c.sites[1].home / "authority.key", EllipticCurvePrivateKey)
    before = len(network.audit.path.read_bytes().splitlines()) if network.audit.path.exists() else 0
    for number in range(30):
        key = _p256()
        made = _certificate(f"name-{number}", key, authority, "basel authority", 1.0)
        pair = SimpleNamespace(tls=lambda key=key, made=made: (private_pem(key), _pem(made)))
        with channel(c, pair) as opened, pytest.raises(grpc.RpcError):
            opened.unary_unary("/privsgp.Sites/Hello")(b"", timeout=30)
    assert network.audit.counts()["stranger"] == 30
    assert len(network.audit.path.read_bytes().splitlines()) - before <= 17


@pytest.mark.parametrize("incarnation", [2**32, 2**53])
def test_a_number_that_is_too_large_is_rejected_and_no_more(house, incarnation):
    c, _ = house
    basel, cork = (Seal(c.sites[i], c.agreement, i) for i in (1, 2))
    sent = frame(c, 3, 0.5, source=1, target=2, incarnation=incarnation)
    assert cork.open(1, basel.close(sent)).header.incarnation == incarnation


def test_two_messages_are_never_sealed_alike(house):
    """A site that was put back to an older copy comes to the same process number and step: a relay would see both."""
    c, _ = house
    basel = Seal(c.sites[1], c.agreement, 1)
    one, two = (basel.close(frame(c, 3, 0.5, source=1, target=2, x=x)) for x in (0.0, 1.0))
    assert one[:12] != two[:12]


@pytest.mark.parametrize("what", malformed.MESSAGES)
def test_a_message_that_no_honest_site_sends_is_refused_through_the_relay_too(house, what):
    c, _ = house
    changes, kind = malformed.MESSAGES[what]
    changed = {key: 0 if key in ("source", "target") else value for key, value in changes.items()}
    basel, cork = (Seal(c.sites[i], c.agreement, i) for i in (1, 2))
    head, *body = frame(c, **{"step": 3, "source": 1, "target": 2} | changed).pieces()
    nonce, text = bytes(12), head + b"".join(body)
    sealed = nonce + basel._cipher((1, 2)).encrypt(nonce, text, basel._about((1, 2)))
    with pytest.raises(Rejected) as rejected:
        Inbox(c.agreement, 2, 4).put(cork.open(1, sealed))
    assert rejected.value.kind == kind


def test_what_is_sealed_and_no_message_is_rejected(house):
    c, _ = house
    basel, cork = (Seal(c.sites[i], c.agreement, i) for i in (1, 2))
    for text in (b"", b"\x01", b"\xff\xff\xff\xff"):
        nonce = bytes(12)
        with pytest.raises(Rejected):
            cork.open(1, nonce + basel._cipher((1, 2)).encrypt(nonce, text, basel._about((1, 2))))


@pytest.mark.parametrize("x", [1e20, 1e100])
def test_numbers_that_would_end_the_receivers_run_are_rejected_at_the_border(three, x):
    """They are finite here and not in the float32 of a model."""
    inbox = Inbox(three.agreement, 0, 4)
    with pytest.raises(Rejected) as rejected:
        inbox.put(frame(three, 0, 0.5, x=x))
    assert rejected.value.kind == "not finite"


def test_a_full_disk_does_not_end_the_talk_with_a_peer(tmp_path, monkeypatch):
    audit = Audit(tmp_path / "audit.jsonl")
    audit.note("form", "basel", "one")

    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        audit.note("form", "basel", "two")
    audit.note("form", "basel", "three")
    assert [json.loads(line)["what"] for line in check(tmp_path / "audit.jsonl")] == ["one", "three"]
    assert audit.counts() == {"form": 3}


def test_a_hello_never_speaks_of_the_future(three):
    """Another thread may hear of a peer in the middle of it: an age below 0 would be refused, and held against us."""
    members = Gossip(three.agreement, 0, 1, three.agreement.sign(three.sites[0]))
    lock = members.changed

    class Meanwhile:
        def __enter__(self):
            time.sleep(0.01)
            lock.acquire()
            members.others[1].heard = time.monotonic()

        def __exit__(self, *_):
            lock.release()

    members.changed = Meanwhile()
    assert members.hello(2)["heard"][1] >= 0


def test_half_a_sealed_message_is_not_kept(house):
    c, network = house
    asked = canonical({"run": c.agreement.run, "node": 2, "step": 7})
    for parts in ([asked], [asked, bytes(c.agreement.message_bytes - 1)]):
        with channel(c, c.sites[1]) as opened, pytest.raises(grpc.RpcError):
            opened.stream_unary("/privsgp.Sites/Drop")(iter(parts), timeout=30)
    assert network.server.relay.newest((1, 2)) == -1


@pytest.mark.parametrize("kind", ["length", "incarnation"])
def test_what_comes_of_a_process_that_was_killed_is_nobodys_fault(house, kind):
    """Half a message: gRPC tells that there are no more pieces, and only then that the connection is gone.

    Or what it sent before it died, and comes after the hello of the next one.
    """
    _, network = house

    class Late:
        def add_callback(self, callback):
            threading.Timer(0.1, callback).start()
            return True

        def abort(self, *said):
            raise AssertionError(said)

    before = network.audit.counts()
    with pytest.raises(grpc.RpcError), network.server._border(SimpleNamespace(peer=1, context=Late())):
        raise Rejected(kind, "0 of 5208 bytes, or process 1 after 2")
    assert network.audit.counts() == before


def told(c, node, to, heads, incarnation=1):
    """Return the hello of a site that tells of these headers."""
    members = Gossip(c.agreement, node, incarnation, c.agreement.sign(c.sites[node]))
    return canonical(members.hello(to) | {"heads": heads})


def test_a_header_that_goes_round_does_not_turn_honest_sites_against_each_other(three):
    """Basel signs it in another spelling: who passes it on in its own would show a signature that is not of it."""
    header = frame(three, 5, 0.5, source=1, target=2).header
    spelt = json.dumps(json.loads(header.text()), indent=1).replace("\n", " ")
    signature = three.sites[1].sign(b"message", spelt.encode()).hex()
    aachen = Gossip(three.agreement, 0, 1, three.agreement.sign(three.sites[0]))
    with pytest.raises(Rejected, match="did not sign"):
        aachen.learn(1, told(three, 1, 0, {"1": {"header": spelt, "signature": signature}}))
    cork = Gossip(three.agreement, 2, 1, three.agreement.sign(three.sites[2]))
    cork.learn(0, canonical(aachen.hello(2)))


@pytest.mark.parametrize("wrong", [{"target": 99}, {"target": 1}, {"step": 2**50}, {"length": 8}])
def test_a_header_of_no_message_of_the_run_does_not_go_round(three, wrong):
    """Two to a target that nobody is, each told to another site, would end the thread in which these talk."""
    members = Gossip(three.agreement, 0, 1, three.agreement.sign(three.sites[0]))
    for w in (0.5, 0.6):
        head = frame(three, w=w, **{"step": 5, "source": 1, "target": 2} | wrong).evidence()
        with pytest.raises(Rejected):
            members.learn(2, told(three, 2, 0, {"1": head}))
    assert 1 not in members.hello(2)["heads"]


def test_a_hello_of_the_largest_roster_is_read(three):
    """Of each of 1024 sites it has a header, a signature and a key, and what it has signed for this one."""
    said = Gossip(three.agreement, 0, 1, "0" * 128).hello(1)
    head = frame(three, 2**31, 0.5, source=1, target=2, incarnation=2**31).evidence()
    each = {"signatures": "0" * 128, "pair_keys": "0" * 192, "heads": head, "heard": 1 / 3}
    hello = said | {key: dict.fromkeys(map(str, range(1024)), value) for key, value in each.items()}
    assert len(read_message(Hello, canonical(hello), 1024).heads) == 1024


def arriving(c, tmp_path, frames, agreement=None, stop=None, **limits):
    """Return the transport of the first site at its first step, with messages for it; it stops where it would pause."""
    values = (agreement or c.agreement).values
    limits = {"deadline": 0.2} | limits  # before a link is stopped, peers have so long to show what a copy has sent
    agreement = Agreement.of(values | {"limits": values["limits"] | limits}, "it")
    inbox, accused = Inbox(agreement, 0, 4), []
    members = Gossip(agreement, 0, 1, agreement.sign(c.sites[0]), inbox)
    for peer in (1, 2):
        other = Gossip(agreement, peer, 1, agreement.sign(c.sites[peer]))
        members.learn(peer, canonical(other.hello(0)))
    members.accuse = lambda node, evidence: accused.append((node, evidence))
    for one in frames:
        header = dataclasses.replace(one.header, run=agreement.run)
        inbox.put(Frame.make(c.sites[header.source], header, one.body))
    transport = SitesTransport(
        c.sites[0],
        members,
        Outbox(2),
        stop or (lambda: bool(inbox.stopped())),
    )
    return transport, accused


def step(transport, w=1.0):
    x = torch.zeros(1, transport.agreement.weights)
    return mixed(transport, 0, x, torch.tensor([w], dtype=torch.float64))


@pytest.mark.parametrize("weight", [1 / 3, 0.0])
@pytest.mark.parametrize("far", [1e18, 1e3])
def test_a_message_far_outside_others_is_taken_and_its_sender_named(three, tmp_path, far, weight):
    honest, poisoned = frame(three, 0, 1 / 3, source=1, x=0.01), frame(three, 0, weight, source=2, x=far)
    transport, accused = arriving(three, tmp_path, [honest, poisoned])
    x, w = step(transport)
    assert x.max() == pytest.approx(far, rel=1e-3)
    assert float(w) == pytest.approx(2 / 3 + weight)
    ((node, said),) = accused
    assert (node, said.kind) == (2, "outlier")
    assert "cork" not in str(said)  # whoever reads it is told the name beside it
    assert "norm" in str(said)
    assert three.sites[2].card.signed(b"message", said.evidence["header"].encode(), said.evidence["signature"])


def test_beyond_the_agreed_update_the_whole_message_is_refused_and_the_site_waits(three, tmp_path):
    unit = three.agreement.step_norm
    assert unit == pytest.approx(0.5 * (1 + 0.05 * three.agreement.weights**0.5))
    at = 19 * unit / three.agreement.weights**0.5 / 3  # of each weight, in the sums
    near, far = frame(three, 0, 1 / 3, source=1, x=at), frame(three, 0, 1 / 3, source=2, x=at * 21 / 19)
    transport, accused = arriving(three, tmp_path, [near, far], max_update=20.0)
    with pytest.raises(Interrupted):  # it would wait: nothing is spent
        step(transport)
    assert [(node, said.kind) for node, said in accused] == [(2, "update")]
    assert transport.taken() == {1: 0}  # and nothing of the other, so that all sums are as if it were on its way
    assert transport.inbox.stopped() == {2}
    later = frame(three, 1, 2 / 3, source=2)
    with pytest.raises(Rejected, match="stopped"):
        transport.inbox.put(dataclasses.replace(later, header=dataclasses.replace(later.header, run="")))


def test_a_paused_site_goes_on_when_the_member_has_left(three, tmp_path):
    far = frame(three, 0, 1 / 3, source=2, x=1e6)
    transport, _ = arriving(
        three, tmp_path, [frame(three, 0, 1 / 3, source=1), far], max_update=20.0, stop=lambda: False
    )
    threading.Timer(0.3, lambda: transport.members.goodbyes.update({2: Goodbye(taken={}, signature="0" * 128)})).start()
    x, w = step(transport)
    assert float(x.abs().max()) == 0
    assert float(w) == pytest.approx(2 / 3)
    assert transport.members.phase == "signing"  # as before


def test_a_site_never_holds_more_weight_than_there_is(three, tmp_path):
    """Each message is within the bound of its own link: five ninths of all, after two steps."""
    frames = [frame(three, 1, 1.66, source=1), frame(three, 1, 1.65, source=2)]
    transport, accused = arriving(three, tmp_path, frames)
    with pytest.raises(Interrupted):
        step(transport)
    ((node, said),) = accused
    assert (node, said.kind) == (1, "weight")
    assert "would hold 3.64333, and all sites together hold 3" in str(said)
    assert transport.taken() == {2: 1}
    transport, accused = arriving(three, tmp_path, [frame(three, 1, 1.3, source=1), frames[1]])
    assert float(step(transport, w=0.15)[1]) == pytest.approx(3.0)
    assert not accused


def test_a_process_that_was_suspended_judges_nothing_before_the_next_hello(house):
    """A copy of the site may have continued: to this process honest messages bring far too much weight."""
    c, network = house
    before, spoke = network.audit.counts(), network.members._spoke
    network.members._spoke = time.monotonic() - 3600
    with channel(c, c.sites[1]) as opened:
        push = opened.stream_unary("/privsgp.Sites/Push")
        assert json.loads(push(iter(frame(c, 5, 62.0).pieces()), timeout=30))["newest"] == -1
        assert network.audit.counts() == before
        network.members._spoke = spoke
        with pytest.raises(grpc.RpcError, match="weight"):
            push(iter(frame(c, 5, 62.0).pieces()), timeout=30)


def test_a_process_that_was_suspended_hands_out_nothing_before_the_next_hello(house, monkeypatch):
    """A copy of the site may have sent another message of the same step."""
    c, network = house
    network.outbox.post(frame(c, 0, source=0, target=1))
    request = json.dumps({"after": {}, "run": c.agreement.run}, separators=(",", ":")).encode()
    with channel(c, c.sites[1]) as opened:
        pull = opened.unary_stream("/privsgp.Sites/Pull")
        with monkeypatch.context() as suspended:
            suspended.setattr(network.members, "_spoke", time.monotonic() - 3600)
            assert list(pull(request, timeout=30)) == []
        assert list(pull(request, timeout=30))


def test_a_process_that_knows_of_a_copy_accuses_nobody(house, monkeypatch):
    """It was suspended, and a hello has shown it the copy: what peers sent meanwhile looks wrong to it alone."""
    c, network = house
    before = network.audit.counts()
    monkeypatch.setattr(network.members, "newer", 2)
    with channel(c, c.sites[1]) as opened:
        push = opened.stream_unary("/privsgp.Sites/Push")
        assert json.loads(push(iter(frame(c, 5, 62.0).pieces()), timeout=30))["newest"] == -1
    assert network.audit.counts() == before


@pytest.mark.parametrize("by_command", [False, True], ids=["Python", "command"])
def test_a_key_does_not_outlive_an_agreement_that_has_expired(tmp_path, by_command):
    c = Consortium.make(tmp_path / "c", privacy={"noise": "pairwise", "sigma": None, "epsilon": 3.0})
    late = Agreement.of(c.agreement.values | {"expires": "2020-01-01T00:00:00Z"}, "it")
    late.write(c.study)
    (c.out(0) / "private").mkdir(parents=True)
    key = c.out(0) / "private" / "pair.key"
    key.touch()
    if by_command:
        ran = command("join", c.study, "--data", c.files[0], "--home", c.sites[0].home, "--out", c.out(0))
        assert "expired" in ran.err
    else:
        with pytest.raises(Refused, match="expired"):
            join(c.study, c.files[0], home=c.sites[0].home, out=c.out(0))
    assert not key.exists()


def test_a_key_does_not_outlive_a_run_that_this_site_has_left(tmp_path):
    """A process that was killed between its goodbye and the deletion has left both."""
    c = Consortium.make(tmp_path / "c", privacy={"noise": "pairwise", "sigma": None, "epsilon": 3.0})
    key = c.out(0) / "private" / "pair.key"
    folder = Folder(c.out(0), "-0-0")
    folder.path.mkdir()
    _prepare(folder, c.agreement)
    network = wire(c.sites[0], c.agreement, folder)
    assert key.exists()
    network.members.leave(Goodbye.make(c.sites[0], c.agreement.run, {}))
    with pytest.raises(Refused, match="has left the run, and cannot join it again"):
        join(c.study, c.files[0], home=c.sites[0].home, out=c.out(0))
    assert not key.exists()


def test_a_key_does_not_outlive_a_run_that_is_finished_here(tmp_path, monkeypatch):
    c = Consortium.make(tmp_path / "c", privacy={"noise": "pairwise", "sigma": None, "epsilon": 3.0})
    folder = Folder(c.out(0), "-0-0")
    folder.path.mkdir()
    _prepare(folder, c.agreement)
    key = c.out(0) / "private" / "pair.key"
    key.touch(0o600)
    folder.summary.write_text("{}")
    monkeypatch.setattr("privsgp.sites.run.wire", mock.Mock(side_effect=Interrupted(0)))
    with pytest.raises(Interrupted):
        join(c.study, c.files[0], home=c.sites[0].home, out=c.out(0))
    assert not key.exists()


def test_a_store_names_the_real_cause(three, tmp_path):
    one = Store(three.agreement, 0, tmp_path / "state")
    one._db.execute("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(tmp_path / "state")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OSError, match="database is locked") as error:
        one.begin()
    assert error.value.errno != errno.ENOSPC
    other.close()


def test_who_was_poisoned_does_not_accuse_who_was_not(three):
    """Its own model is the one that is far away."""
    outliers = Outliers(three.agreement, 0)
    clean = outliers.arrival(frame(three, 0, source=1), -1, Increment(1 / 3, 3.0, 1e18), 1.0)
    assert not outliers.warned([clean])


def test_a_message_without_weight_is_measured_by_its_step(three, tmp_path):
    """A site that was away sends all its weight off; its noise goes on."""
    at = three.agreement.step_norm / three.agreement.weights**0.5 / 3  # of each weight: a step's length, in the sums
    both = [frame(three, 0, 1 / 3, source=1, x=0.01), frame(three, 0, 0.0, source=2, x=at)]
    transport, accused = arriving(three, tmp_path, both, max_update=1.01)
    step(transport)
    assert not accused
    transport, accused = arriving(three, tmp_path, both, max_update=0.99)
    with pytest.raises(Interrupted):
        step(transport)
    assert [(node, said.kind) for node, said in accused] == [(2, "update")]


@pytest.mark.parametrize(("w", "own"), [(0.002, 1.0), (1.0, 0.002)])
def test_a_site_with_little_weight_is_far_away_and_not_accused(three, w, own):
    """Much of it is on its way to a site that was killed; x/w then moves by many lengths of a step."""
    outliers, far = Outliers(three.agreement, 0), 300 * three.agreement.step_norm
    one = outliers.arrival(frame(three, 0, source=1), -1, Increment(w / 3, far, far), own)
    assert not outliers.warned([one])
    assert outliers.warned([one._replace(w=1.0, own=1.0)])


def test_without_noise_others_are_the_only_measure(three):
    agreement = Agreement.model_validate(three.agreement.values)
    agreement.__dict__["config"] = three.agreement.config.with_section("algorithm", name="sgp")
    assert agreement.step_norm is None
    outliers = Outliers(agreement, 0)
    both = [
        outliers.arrival(frame(three, 0, source=j), -1, Increment(1 / 3, far, far), 1.0)
        for j, far in ((1, 0.1), (2, 1e3))
    ]
    assert [one.source for one, _ in outliers.warned(both[1:])] == []  # one alone: far from what?
    assert [one.source for one, _ in outliers.warned(both)] == [2]


def test_a_limit_on_updates_needs_steps_of_some_length(consortium):
    with pytest.raises(Refused, match="max_update"):
        consortium(algorithm={"name": "sgp", "steps": 5}, limits=Limits(max_update=20.0))


def named(c, i):
    """Return whom a site names in its summary, log, audit log and report, for what."""
    page.write(c.out(i), c.folder / "report.html")
    said = {(one["peer"], one["kind"], one["refused"]) for one in c.summary(i)["site"]["warnings"]}
    assert {peer for peer, *_ in said} == {line["peer"] for line in c.audited(i)}
    for peer, *_ in said:
        assert f"{peer}: the model in its message of step" in c.log(i)
        assert f"WARNING: {peer}" in (c.folder / "report.html").read_text()
    return said


def status(c, i):
    return json.loads((c.out(i) / "status.json").read_text())


def test_one_member_that_sends_1e18_is_named_by_all_others(consortium):
    c = consortium(algorithm={"steps": 8, "final_mixing": 2})
    c.start(0, 2)
    c.start(1, lie=1e18)
    c.end()
    for i in (0, 2):
        assert named(c, i) == {("basel", "outlier", False)}


def test_with_an_agreed_update_the_others_pause_and_end_without_the_liar(consortium):
    c = consortium(limits=Limits(deadline=2.0, max_update=20.0), algorithm={"steps": 8, "final_mixing": 4})
    c.start(0, 2)
    c.start(1, lie=1e18)
    for i in (0, 2):
        c.until_step(i, 4)
        assert [source for source, _ in c.taken(i)[4]] == [2 - i]
    until = time.monotonic() + PATIENCE
    while any(status(c, i)["own"]["phase"] != "paused" for i in (0, 2)):
        assert time.monotonic() < until, c.told()
        time.sleep(0.2)
    for i in (0, 2):
        assert max(c.taken(i)) == 4
        assert [one["peer"] for one in status(c, i)["warnings"]] == ["basel"]
    leave(c.study, home=c.sites[1].home, out=c.out(1))
    for i, summary in zip((0, 2), c.end(0, 2), strict=True):
        assert named(c, i) == {("basel", "update", True)}
        assert summary["releases"][i] == 8 == c.sent(i)
    assert sum(c.summary(j)["site"]["w"] for j in (0, 2)) < 2.5  # what basel held is gone with it
