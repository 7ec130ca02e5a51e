"""The border and the slots: what is let in, what is refused and proved, and which message a step takes."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import sqlite3
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from consortium import Consortium
from hypothesis import given
from hypothesis import strategies as st

import malformed
from privsgp.accounting.chain import replay
from privsgp.errors import Refused
from privsgp.gradients import Layout
from privsgp.runs.problem import first_model
from privsgp.sites.agreement import Agreement
from privsgp.sites.audit import Audit
from privsgp.sites.protocol import frames
from privsgp.sites.protocol.frames import Frame, Header, Rejected
from privsgp.sites.protocol.increments import Increment, rounded
from privsgp.sites.protocol.mailbox import Inbox, Outbox
from privsgp.sites.store import Store
from privsgp.transport.link import grown
from privsgp.transport.rounding import Rounding


def frame(c, step=0, w=0.5, source=1, target=0, incarnation=1, x=0.0, **changes):
    sums = np.full(c.agreement.weights + 1, x)
    sums[-1] = w
    body, digest = frames.body_of(sums)
    header = Header(c.agreement.run, source, target, incarnation, step, len(body), digest)
    return Frame.make(c.sites[source], dataclasses.replace(header, **changes), body)


def check(path):
    """Return the lines of an audit log after checking the chain."""
    with path.open("rb") as file:
        _, end = replay(path, file, lambda _line: None)
    return path.read_bytes()[:end].splitlines()


def let_in(c, inbox, one, peer=1, pieces=None):
    """Bring a frame through the border as the server does."""
    head, *body = one.pieces()
    inbox.receive(peer, head, iter(body if pieces is None else pieces))


@pytest.mark.parametrize("what", malformed.MESSAGES)
def test_a_message_that_no_honest_site_sends_is_refused_with_its_kind(three, what):
    changes, kind = malformed.MESSAGES[what]
    inbox = Inbox(three.agreement, 0, 4)
    with pytest.raises(Rejected) as rejected:
        let_in(three, inbox, frame(three, **changes))
    assert rejected.value.kind == kind
    assert inbox.newest(1) == -1


def test_a_header_that_another_signed_is_refused(three):
    good = frame(three)
    forged = dataclasses.replace(good, signature=three.sites[2].sign(b"message", good.header.text()))
    with pytest.raises(Rejected, match="did not sign"):
        let_in(three, Inbox(three.agreement, 0, 4), forged)


@pytest.mark.parametrize("piece", [b"", b"\x00", b"\xff\xff", b"\x02\x00{}" + bytes(64), b"\x04\x00null" + bytes(64)])
def test_what_is_no_header_is_refused(piece):
    with pytest.raises(Rejected) as rejected:
        frames.opened(piece)
    assert rejected.value.kind == "form"


@pytest.mark.parametrize(
    ("pieces", "why"),
    [([bytes(6000)], "more than"), ([bytes(100)], "100 of 5208"), ([], "0 of 5208"), ([bytes(5208)], "not the one")],
)
def test_a_body_of_another_length_or_content_is_refused(three, pieces, why):
    with pytest.raises(Rejected, match=why):
        let_in(three, Inbox(three.agreement, 0, 4), frame(three), pieces=pieces)


def test_weight_is_counted_from_the_last_message(three):
    """A third of all weight is what a link of three sites can carry at a step, and five ninths at two."""
    inbox = Inbox(three.agreement, 0, 4)
    let_in(three, inbox, frame(three, 0, 1.0))
    let_in(three, inbox, frame(three, 2, 2.6))
    for w in (2.5, 3.61):
        with pytest.raises(Rejected, match="brings the weight") as rejected:
            let_in(three, inbox, frame(three, 3, w))
        evidence = rejected.value.evidence  # anybody can see who signed it
        assert three.sites[1].card.signed(b"message", evidence["header"].encode(), evidence["signature"])
    with pytest.raises(Rejected, match=r"at most 1\.66"):
        inbox.put(frame(three, 4, 4.3))  # as what comes from a relay
    let_in(three, inbox, frame(three, 4, 2.6))  # a site that was away sends its weight off: soon the rest rounds to 0


@given(st.integers(2, 5), st.integers(0, 2**32 - 1), st.floats(0.0, 0.9))
def test_no_honest_link_carries_more_than_the_bound_and_no_site_holds_more_than_all(n, seed, loss):
    """Whatever is lost and late; and at the bound stands who held all, and got nothing back."""
    rng, p = np.random.default_rng(seed), 1 / n
    study = SimpleNamespace(roster=range(n), share=lambda _k, _link: p)
    w, sent, arrived = rng.dirichlet(np.ones(n)) * n, np.zeros((n, n)), np.zeros((n, n))
    made, newest = -np.ones(n, int), -np.ones((n, n), int)
    for i in rng.integers(0, n, 100):  # sites make steps in any order
        made[i] += 1
        others = [j for j in range(n) if j != i]
        sent[others, i] += p * w[i]
        w[i] *= 1 - p * (n - 1)
        for j in others:
            if made[j] > newest[i, j] and rng.random() >= loss:
                most = Agreement.most_weight(study, (j, i), newest[i, j], made[j])
                assert 0 < sent[i, j] - arrived[i, j] <= most * (1 + 1e-9)
                w[i] += sent[i, j] - arrived[i, j]
                arrived[i, j], newest[i, j] = sent[i, j], made[j]
        assert w[i] <= n * (1 + 1e-9)
    held = n
    for k in range(4):
        held *= 1 - p
        assert Agreement.most_weight(study, (0, 1), -1, k) == pytest.approx(n - held)
    assert Agreement.most_weight(study, (0, 1), -1, 10**6) == n


def test_what_was_taken_before_a_restart_is_counted_from_too(three):
    inbox = Inbox(three.agreement, 0, 4)
    inbox.restore(1, 5, frame(three, 5, 2.0).sums())
    with pytest.raises(Rejected, match="brings the weight"):
        let_in(three, inbox, frame(three, 6, 1.0))
    let_in(three, inbox, frame(three, 5, 9.0))  # old: not read
    let_in(three, inbox, frame(three, 6, 2.5))
    assert inbox.newest(1) == 6


def test_two_messages_of_one_step_are_kept_as_evidence(three, tmp_path):
    inbox, audit = Inbox(three.agreement, 0, 4), Audit(tmp_path / "audit.jsonl")
    let_in(three, inbox, frame(three, 3, 0.5))
    let_in(three, inbox, frame(three, 3, 0.5))  # the same again: harmless
    with pytest.raises(Rejected) as rejected:
        let_in(three, inbox, frame(three, 3, 0.6))
    assert rejected.value.kind == "equivocation"
    audit.note(rejected.value.kind, "basel", str(rejected.value), **rejected.value.evidence)
    line = json.loads(check(tmp_path / "audit.jsonl")[0])
    heads = [json.loads(line[which]["header"]) for which in ("first", "second")]
    for which in ("first", "second"):  # anybody can see who said both
        assert three.sites[1].card.signed(b"message", line[which]["header"].encode(), line[which]["signature"])
    assert heads[0]["step"] == heads[1]["step"] == 3
    assert heads[0]["sha256"] != heads[1]["sha256"]


def test_an_older_process_is_not_heard_after_a_newer_one(three):
    inbox = Inbox(three.agreement, 0, 4)
    let_in(three, inbox, frame(three, 3, 0.5, incarnation=2))
    let_in(three, inbox, frame(three, 2, 0.4, incarnation=1))  # late: ignored
    with pytest.raises(Rejected) as rejected:
        let_in(three, inbox, frame(three, 4, 0.7, incarnation=1))
    assert rejected.value.kind == "incarnation"


def test_a_signalling_nan_is_refused_and_no_more(three):
    """Arithmetic on it warns: a peer does not write to this site's terminal, nor end a thread where warnings raise."""
    inbox, d = Inbox(three.agreement, 0, 4), three.agreement.weights
    let_in(three, inbox, frame(three))
    sums = np.full(d + 1, 0x7FF0000000000001, "<u8").view("<f8")
    sums[-1] = 0.5 + 0.5 * three.agreement.share(1, (1, 0))
    body, digest = frames.body_of(sums)
    header = Header(three.agreement.run, 1, 0, 1, 1, len(body), digest)
    with pytest.raises(Rejected) as rejected:
        let_in(three, inbox, Frame.make(three.sites[1], header, body))
    assert rejected.value.kind == "not finite"


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=30), st.sampled_from(["", "x", "w", "hash"]))
def test_however_a_message_is_cut_into_pieces_the_same_is_let_in_and_refused(three, cuts, wrong):
    if True:
        inbox, d = Inbox(three.agreement, 0, 4), three.agreement.weights
        x, w = np.linspace(-1, 1, d).astype(np.float32), -0.5 if wrong == "w" else 0.5
        x[17] = np.nan if wrong == "x" else 0.25
        sums = grown(np.zeros(d + 1), x, w, three.agreement.share(0, (1, 0)))
        body, digest = frames.body_of(sums)
        header = Header(three.agreement.run, 1, 0, 1, 0, len(body), "0" * 64 if wrong == "hash" else digest)
        head, *rest = Frame.make(three.sites[1], header, body).pieces()
        text, ends = b"".join(rest), np.cumsum(cuts).tolist()
        pieces = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
        kinds = {"x": "not finite", "w": "weight", "hash": "hash"}
        with contextlib.ExitStack() as refused:
            if wrong:
                refused.enter_context(pytest.raises(Rejected, check=lambda error: error.kind == kinds[wrong]))
            inbox.receive(1, head, iter(pieces))
        assert [bytes(taken.body) == bytes(body) for taken in inbox.take(0)] == ([] if wrong else [True])


def test_a_message_that_arrived_while_another_was_let_in_is_checked_against_that(three):
    """Two streams of one peer: the second to end was checked against sums that are not the newest any more."""
    inbox = Inbox(three.agreement, 0, 4)
    slow = frame(three, 2, 0.9)

    def other_comes_first():
        yield bytes(slow.body)[:100]
        let_in(three, inbox, frame(three, 1, 1.0))
        yield bytes(slow.body)[100:]

    with pytest.raises(Rejected, match="brings the weight"):
        let_in(three, inbox, slow, pieces=other_comes_first())
    assert inbox.newest(1) == 1


def test_headers_outlive_the_process_and_only_those_that_their_source_signed(three, tmp_path):
    path = tmp_path / "state"
    first = Store(three.agreement, 0, path)
    frames_ = [frame(three, step, 0.5 + step) for step in range(3)]
    for one in (*frames_, frames_[0]):  # the last is old: nothing
        first.see(one)
    assert Store(three.agreement, 0, path).seen[1].header == frames_[2].header
    assert 2 not in Store(three.agreement, 0, path).seen
    assert [Store(three.agreement, 0, path).begin() for _ in range(2)] == [1, 2]
    for wrong in ("signature = zeroblob(64)", "header = x'7b7d'", "source = 2"):
        first._db.execute(f"UPDATE newest SET {wrong}")  # noqa: S608 - the test's own
        first._db.commit()
        assert not Store(three.agreement, 0, path).seen


def test_a_full_disk_and_a_damaged_file_are_named_when_a_site_opens_its_state(three, tmp_path, monkeypatch):
    path = tmp_path / "state"
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(Refused, match="is damaged: file is not a database"):
        Store(three.agreement, 0, path)

    def full(*_args, **_options):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(sqlite3, "connect", full)
    with pytest.raises(OSError, match="No space left") as error:
        Store(three.agreement, 0, tmp_path / "new")
    assert error.value.errno == errno.ENOSPC


def test_two_messages_of_one_step_are_noticed_after_a_restart_too(three, tmp_path):
    let_in(three, Inbox(three.agreement, 0, 4, Store(three.agreement, 0, tmp_path / "seen")), frame(three, 3, 0.5))
    inbox = Inbox(three.agreement, 0, 4, Store(three.agreement, 0, tmp_path / "seen"))
    with pytest.raises(Rejected, match="two messages of step 3"):
        let_in(three, inbox, frame(three, 3, 0.6))
    let_in(three, inbox, frame(three, 3, 0.5))
    assert inbox.newest(1) == 3


def test_a_step_takes_its_own_message_and_a_later_one_where_that_is_lost(three):
    inbox = Inbox(three.agreement, 0, 3)
    for step in (0, 1, 2):
        let_in(three, inbox, frame(three, step, 0.3 + 0.1 * step))
    assert [one.header.step for one in inbox.take(0)] == [0]
    assert [one.header.step for one in inbox.take(1)] == [1]
    let_in(three, inbox, frame(three, 9, 2.0))
    assert [one.header.step for one in inbox.take(4)] == [2]
    assert [one.header.step for one in inbox.take(4)] == [9]  # this site is behind: what is newest counts
    assert inbox.take(5) == []


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 4))
def test_whatever_the_order_messages_are_taken_in_the_order_of_their_steps(three_frames, arrivals, kept):
    c, made = three_frames
    inbox, taken = Inbox(c.agreement, 0, kept), []
    for k, step in enumerate(arrivals):
        let_in(c, inbox, made[step])
        taken += [one.header.step for one in inbox.take(k)]
    taken += [one.header.step for k in range(10) for one in inbox.take(k)]
    assert taken == sorted(set(taken))
    assert taken[-1:] == ([max(arrivals)] if arrivals else [])


@pytest.fixture(scope="module")
def three_frames(three):
    return three, [frame(three, step, 0.1 + 0.2 * step) for step in range(10)]


def test_the_newest_message_waits_and_a_few_before_it(three):
    outbox = Outbox(2)
    assert outbox.next(0, -1) is None
    for step in range(4):
        outbox.post(frame(three, step, 1.0))
    assert [outbox.next(0, after).header.step for after in (-1, 1, 2)] == [2, 2, 3]
    assert outbox.next(0, 3) is None
    assert outbox.wait(0, 3, 0.05, lambda: False) is None


def test_an_audit_log_that_was_changed_is_refused(tmp_path):
    audit = Audit(tmp_path / "audit.jsonl")
    for count in range(3):
        audit.note("form", "basel", f"number {count}")
    again = Audit(tmp_path / "audit.jsonl")
    again.note("form", "basel", "after a restart")
    lines = (tmp_path / "audit.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == len(check(tmp_path / "audit.jsonl")) == 4
    for damaged in (lines[1:], [lines[0], *lines[2:]], [lines[0].replace(b"number 0", b"number 9"), *lines[1:]]):
        (tmp_path / "audit.jsonl").write_bytes(b"".join(damaged))
        with pytest.raises(Refused, match=r"does not follow|was changed"):
            check(tmp_path / "audit.jsonl")
    (tmp_path / "audit.jsonl").write_bytes(b"".join(lines) + b'{"half')
    assert len(check(tmp_path / "audit.jsonl")) == 4


def test_nobody_can_fill_the_disk(tmp_path):
    audit = Audit(tmp_path / "audit.jsonl")
    for _ in range(1000):
        audit.note("form", "basel", "again")
    assert len(check(tmp_path / "audit.jsonl")) == 16 + 5
    assert audit.counts() == {"form": 1000}


def test_increments_that_do_not_lead_to_the_sums_of_their_header_are_refused(tmp_path):
    c = Consortium.make(tmp_path / "c", transport={"bits": 4}, algorithm={"local_steps": 2})
    start = Layout.of(first_model(c.agreement.config, (64,), (1,), 10)[0])
    rounding = Rounding(4, 1, c.agreement.graph, torch.zeros(1, start.dim), range(2))
    inbox, sums = Inbox(c.agreement, 0, 4, rounding=rounding), np.zeros(start.dim + 1)
    rows = torch.ones(2, start.dim), torch.ones(2, dtype=torch.float64), 1 / 3
    sums, one = rounded(rounding, (1, 0), rows, sums, (-1, 1), anew=True)
    body, digest = frames.body_of(sums)
    header = Header(c.agreement.run, 1, 0, 1, 1, len(body), digest)
    whole = Frame.make(c.sites[1], header, body)
    other = one._replace(codes=one.codes[:20] + bytes([one.codes[20] ^ 1]) + one.codes[21:])
    for wrong, kind in (([other], "hash"), ([one] * (c.agreement.most_increments + 1), "length")):
        with pytest.raises(Rejected) as rejected:
            inbox.receive(1, *_stream(whole, wrong))
        assert rejected.value.kind == kind
        assert inbox.proof(1) == {"newest": -1, "proof": None, "continues": False}
    with pytest.raises(Rejected, match="nothing is sent over this link") as rejected:
        let_in(c, inbox, frame(c, 0))  # a local step
    assert rejected.value.kind == "step"
    inbox.receive(1, *_stream(whole, [one]))
    assert inbox.newest(1) == 1
    assert inbox.proof(1)["continues"]
    np.testing.assert_array_equal(inbox.last(1)[1], sums)


def test_where_messages_are_exact_no_increments_are_read(three):
    one = Increment(-1, 0, 0.5, anew=True, codes=b"")
    with pytest.raises(Rejected, match="1 increments, where 0"):
        Inbox(three.agreement, 0, 4).receive(1, *_stream(frame(three), [one]))


def _stream(whole, increments):
    first, *body = whole.pieces(increments)
    return first, iter(body)
