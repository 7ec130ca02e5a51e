"""A link of few bits by itself: whatever becomes of messages and processes, its ends hold the sums that were signed."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from privsgp import graph
from privsgp.sites.protocol.increments import Increment, ReceivingEnd, SendingEnd, increment_bytes, rounded
from privsgp.transport.rounding import Rounding

LINK, D, MOST = (0, 1), 130, 4
DOINGS = ["step"] * 4 + ["send"] * 4 + ["deliver"] * 4 + ["lost step", "kill sender", "kill receiver", "commit"]


class Both:
    """A sender and a receiver, each with its last commit, and every message that was ever on its way."""

    def __init__(self, bits, draw):
        self.bits, self.draw, self.sent, self.wire = bits, draw, {-1: np.zeros(D + 1)}, []
        self.k, self.x, self.w, self.had = 0, torch.zeros(1, D), torch.ones(1, dtype=torch.float64), (-1, False)
        self.committed = -1, self.sent[-1]
        self.kill_sender()
        self.kill_receiver()

    def rounding(self):
        return Rounding(self.bits, 1, graph.make("complete", 2), torch.full((1, D), 0.5), range(2))

    def kill_sender(self):
        self.out, self.sender = SendingEnd(MOST), self.rounding()

    def kill_receiver(self):
        (self.newest, self.sums), self.receiver = self.committed, self.rounding()
        self.into = ReceivingEnd(LINK, self.receiver)

    def step(self):
        last = max(self.sent)
        made = torch.Generator().manual_seed(self.k)
        self.x = self.x * 0.9 + torch.randn(1, D, generator=made)
        rows, anew = (self.x, self.w, 0.5), self.out.begins_anew()
        sums, one = rounded(self.sender, LINK, rows, self.sent[last], (last, self.k), anew=anew)
        self.k += 1
        return self.k - 1, sums, one

    def lost_step(self):
        """A step that no commit holds: the process that begins after it makes it again."""
        self.step()
        self.k -= 1
        self.kill_sender()

    def commit_step(self):
        k, self.sent[k], one = self.step()
        self.out.add(one)

    def send(self, had):
        k, (after, continues) = max(self.sent), had
        if k > after:
            found = self.out.since(after, k, continues=continues)
            assert len(found) <= MOST
            self.wire.append((k, b"".join(one.text() for one in found)))

    def deliver(self, k, text):
        """Return whether the message was let in; what is let in is what was signed."""
        if k <= self.newest:
            return False
        sums = self.into.sums(text, self.newest, self.sums) if text else self.sent[k].copy()
        if sums is None:
            return False
        np.testing.assert_array_equal(sums, self.sent[k])
        self.newest, self.sums = k, sums
        self.into.let_in(rounded=bool(text))
        return True

    def do(self, what):
        match what:
            case "step":
                self.commit_step()
            case "send":
                if self.draw(st.booleans()):  # else an older answer is all that has come back
                    self.had = self.newest, self.into.continues
                self.send(self.had)
            case "deliver" if self.wire:
                self.deliver(*self.draw(st.sampled_from(self.wire)))
            case "commit":
                self.committed = self.newest, self.sums
            case "lost step":
                self.lost_step()
            case "kill sender":
                self.kill_sender()
            case "kill receiver":
                if self.draw(st.booleans()):
                    self.do("commit")
                self.kill_receiver()


@given(
    bits=st.sampled_from([16, 8, 4]), doings=st.lists(st.sampled_from(DOINGS), min_size=30, max_size=60), data=st.data()
)
@settings(deadline=None, max_examples=80)
def test_whatever_happens_what_is_let_in_is_what_was_signed_and_the_link_recovers(bits, doings, data):
    both = Both(bits, data.draw)
    for what in doings:
        both.do(what)
    for last in ("send", "kill receiver", "kill sender"):
        both.do(last)
        arrived = []
        for _ in range(4):  # nothing goes wrong any more
            both.commit_step()
            for _ in range(2):  # increments that cannot be read are followed by exact sums
                both.send((both.newest, both.into.continues))
                if both.deliver(*both.wire[-1]):
                    arrived.append(bool(both.wire[-1][1]))
                    break
            assert both.newest == max(both.sent)
        assert arrived[2:] == [True, True]  # rounded again


def test_increments_are_no_longer_than_they_say_and_less_than_a_byte_a_number():
    both = Both(4, None)
    both.commit_step()
    both.send((-1, False))
    assert len(both.wire[0][1]) == increment_bytes(4, D)
    assert increment_bytes(4, 10**6) < 0.52 * 10**6
    assert increment_bytes(32, D) == 0


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_a_receiver_that_stays_away_gets_exact_sums(bits):
    both = Both(bits, None)
    for _ in range(MOST + 1):
        both.commit_step()
    both.send((-1, False))
    assert both.wire[-1][1] == b""
    assert both.out.begins_anew()


def test_after_increments_that_were_refused_none_is_read_before_one_begins_anew():
    both = Both(4, None)
    for _ in range(2):
        both.commit_step()
        both.send((both.newest, both.into.continues))
        assert both.deliver(*both.wire[-1])
    both.commit_step()
    both.send((both.newest, True))
    _, text = both.wire[-1]
    other = both.into.sums(text[:40] + bytes([text[40] ^ 1]) + text[41:], both.newest, both.sums)
    assert not np.array_equal(other, both.sent[2])  # its hash is another
    assert both.into.sums(text, both.newest, both.sums) is None
    assert not both.into.continues


@pytest.mark.parametrize("weight", [0.0, math.nan, math.inf, -1.0, 0.5])
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0xFF])
def test_after_whatever_a_peer_has_sent_the_link_begins_anew(weight, byte):
    """The hash is checked after it. No number of such an increment is in what is let in next."""
    both = Both(4, None)
    both.commit_step()
    both.send((-1, False))
    assert both.deliver(*both.wire[-1])
    size = len(both.wire[-1][1]) - 32
    wrong = Increment(0, 1, weight, anew=False, codes=bytes([byte]) * size)
    both.into.sums(wrong.text(), both.newest, both.sums)
    assert not both.into.continues
    both.commit_step()
    both.send((both.newest, both.into.continues))
    assert both.deliver(*both.wire[-1])
    both.commit_step()
    both.send((both.newest, both.into.continues))
    assert both.deliver(*both.wire[-1])
    assert both.wire[-1][1]  # few bits again


def test_increments_that_bring_both_infinities_warn_of_nothing():
    """They are refused by their hash, and a peer writes no warning into this site's log."""
    both, texts = Both(4, None), []
    for step, (weight, byte) in enumerate(((-1.0, 0xFF), (0.5, 0x00))):
        scales = bytes([0x80, 0x7F]) * 2  # infinite
        texts.append(Increment(step - 1, step, weight, anew=False, codes=scales + bytes([byte]) * 128).text())
    both.into.continues = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isnan(both.into.sums(b"".join(texts), -1, both.sums)).any()
