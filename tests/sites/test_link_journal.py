"""Both ends of links on the disk: whatever was sent and taken comes back to the bit, whatever a crash left."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsgp.errors import Refused
from privsgp.sites.protocol import frames, link_journal
from privsgp.sites.protocol.frames import Frame, Header, Step
from privsgp.sites.protocol.link_journal import LinkJournal
from privsgp.transport.link import grown

STEPS = st.lists(
    st.tuples(st.sets(st.integers(0, 1)), st.lists(st.sampled_from(["news", "whole", "skipped"]), max_size=2),
              st.booleans(), st.integers(0, 9000)), max_size=14,
)  # fmt: skip


class Peer:
    """What a source sends over its link to node 0."""

    def __init__(self, c, source, seed):
        self.c, self.source, self.rng, self.sums, self.last = c, source, np.random.default_rng(seed), None, -1

    def message(self, step, *, whole):
        x, w = self.rng.normal(size=self.c.agreement.weights).astype(np.float32), self.rng.uniform()
        share, base = self.c.agreement.share(step, (self.source, 0)), self.last
        self.sums, self.last = grown(self.sums, x, w, share), step
        body, digest = frames.body_of(self.sums)
        header = Header(self.c.agreement.run, self.source, 0, 1, step, len(body), digest)
        return Frame(header, bytes(64), body, None if whole else Step(base, frames.step_body(x, w)))


def same(one, other):
    ends = zip(one.sums + one.arrived, other.sums + other.arrived, strict=True)
    return one.newest == other.newest and all(
        (a is None and b is None) or (a is not None and b is not None and np.array_equal(a, b)) for a, b in ends
    )


def reopened(folder, c, place):
    found = LinkJournal(folder, c.agreement, 0)
    for name, value in found.place().items():
        value.copy_(place[name])
    found.replay()
    return found


def commit(links):
    links.sync()
    return {name: value.clone() for name, value in links.place().items()}


@settings(max_examples=25, deadline=None)
@given(STEPS, st.booleans())
def test_what_was_committed_comes_back_and_what_came_after_is_cut_off(three, tmp_path_factory, steps, short):
    """A step takes messages, writes what it sends, and commits; or it dies before the commit, or right after it."""
    with pytest.MonkeyPatch.context() as patched:
        if short:
            patched.setattr(link_journal, "_LEAST", 0)
            patched.setattr(link_journal, "GROWTH", 1)
        _play(three, tmp_path_factory.mktemp("links"), steps)


def _play(c, folder, steps):
    rng, links = np.random.default_rng(1), LinkJournal(folder, c.agreement, 0)
    peers, place = [Peer(c, source, source) for source in links.sources], commit(links)
    for k, (used, messages, dies, torn) in enumerate(steps):
        before = LinkJournal(folder, c.agreement, 0)
        before.sums, before.arrived, before.newest = list(links.sums), list(links.arrived), list(links.newest)
        ends = [(peer.sums, peer.last) for peer in peers]
        for link, kind in enumerate(messages):
            if kind == "skipped":  # a message that was never taken: the next one's news are not after the last taken
                peers[link].message(k, whole=False)
            else:
                links.take(link, peers[link].message(k, whole=kind == "whole"))
        links.send(k, frames.step_body(rng.normal(size=c.agreement.weights).astype(np.float32), 0.5), sorted(used))
        if dies and not torn % 2:  # before the commit: nothing of the step was sent
            links = reopened(folder, c, place)
            assert same(links, before)
            for peer, end in zip(peers, ends, strict=True):
                peer.sums, peer.last = end
            continue
        place = commit(links)
        if dies:
            after, links = links, reopened(folder, c, place)
            assert same(links, after)
        links.committed()
        assert len(list(folder.iterdir())) <= 1
    assert same(reopened(folder, c, commit(links)), links)


def test_a_journal_of_links_does_not_grow_for_ever(three, tmp_path, monkeypatch):
    monkeypatch.setattr(link_journal, "_LEAST", 0)
    links, sizes = LinkJournal(tmp_path, three.agreement, 0), []
    peers = [Peer(three, source, source) for source in links.sources]
    body = frames.step_body(np.ones(three.agreement.weights, np.float32), 0.5)
    for k in range(40):
        for link, peer in enumerate(peers):
            links.take(link, peer.message(k, whole=False))
        links.send(k, body, [0, 1])
        commit(links)
        links.committed()
        sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert links.number > 3
    assert max(sizes) < 6 * 4 * three.agreement.message_bytes  # both files of the moment of change


@pytest.mark.parametrize("damage", ["gone", "short", "changed"])
def test_a_journal_that_is_not_what_was_committed_is_refused(three, tmp_path, damage):
    links = LinkJournal(tmp_path, three.agreement, 0)
    links.take(0, Peer(three, links.sources[0], 1).message(0, whole=False))
    place = commit(links)
    (path,) = tmp_path.iterdir()
    raw = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(raw[:-1] if damage == "short" else raw[:-1] + b"\1")
    with pytest.raises(Refused, match="not what its commit says"):
        reopened(tmp_path, three, place)


def test_who_takes_up_an_older_commit_by_mistake_loses_nothing(three, tmp_path):
    """Its ledger refuses the step later; with the right commit put back the site goes on."""
    links, peer = LinkJournal(tmp_path, three.agreement, 0), Peer(three, 1, 1)
    links.take(0, peer.message(0, whole=False))
    older = commit(links)
    links.take(0, peer.message(1, whole=False))
    place = commit(links)
    assert reopened(tmp_path, three, older).newest[0] == 0
    assert same(reopened(tmp_path, three, place), links)
