"""The meeting place: blocks, exchanges, refusals of one for all, and who is missed."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from privsgp.errors import Refused
from privsgp.transport import forms, rendezvous
from privsgp.transport.rendezvous import PeerLost, World, blocks, refuse_differences


@given(st.integers(1, 300), st.data())
def test_blocks_are_contiguous_and_even(nodes, draw):
    processes = draw.draw(st.integers(1, nodes))
    made = blocks(nodes, processes)
    assert [node for block in made for node in block] == list(range(nodes))
    sizes = [len(block) for block in made]
    assert max(sizes) - min(sizes) <= 1


def test_more_processes_than_nodes():
    with pytest.raises(Refused, match="5 processes with"):
        blocks(4, 5)


def _all(size, action, patience=5.0):
    """Do the same in every process of a world, here threads with a store in common; return results or errors."""
    store = HashStore()

    def one(rank):
        try:
            return action(World(rank, size, store, patience))
        except (Refused, PeerLost) as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def test_everybody_hears_everybody_round_after_round():
    def talk(world):
        return [world.all_gather([world.rank, k], forms.each(forms.whole(), 2)) for k in range(5)]

    assert _all(3, talk) == [[[[r, k] for r in range(3)] for k in range(5)]] * 3


def test_a_world_of_one_needs_no_store():
    world = World()
    assert world.alone
    assert world.all_gather("a", forms.text("a", "a letter")) == ["a"]
    assert world.all_or_none(lambda: 3) == 3
    with world.leaving():
        pass


def test_who_refuses_says_why_and_the_others_say_who():
    def start(world):
        def check():
            if world.rank == 1:
                raise Refused("data: y[3] = 17", "mend it")
            return world.rank

        return world.all_or_none(check)

    first, second, third = _all(3, start)
    assert second.what == "data: y[3] = 17"
    assert "process 1 was refused" in first.what
    assert "17" not in str(first) + str(third)


def test_differences_are_named_with_both_values():
    first, second = _all(2, lambda world: refuse_differences(world, {"a": 1, "b": world.rank}))
    assert "b: 0 here, 1 there" in first.what
    assert "b: 1 here, 0 there" in second.what
    assert "a:" not in first.what


def test_who_never_speaks_is_missed_after_the_set_time():
    def talk(world):
        return None if world.rank == 2 else world.all_gather(1, forms.whole())

    first, second, _ = _all(3, talk, patience=0.3)
    assert first.rank == second.rank == 2
    assert "silent for 0.3 s" in str(first)


def test_who_stops_living_is_missed_though_patience_is_long(monkeypatch):
    monkeypatch.setattr(rendezvous, "_QUIET", 0.3 / 60)
    monkeypatch.setattr(rendezvous, "_BEAT", 0.05)
    dead = threading.Event()

    def talk(world):
        world.all_gather(1, forms.whole())
        if world.rank == 1:
            dead.wait(0.2)
            world._die()
            return None
        return world.all_gather(2, forms.whole())

    first, _, third = _all(3, talk, patience=60.0)
    assert first.rank == third.rank == 1
    assert "no sign of life for 0.3 s" in str(first)


def test_all_name_the_first_who_was_missed():
    """Who leaves because another is gone is gone too: it is not to be blamed."""

    def talk(world):
        if world.rank == 0:
            return world.lost(2, "its connection closed")
        return world.all_gather(1, forms.whole())

    first, second, third = _all(3, talk, patience=2.0)
    assert {first.rank, second.rank, third.rank} == {2}
    assert "process 2 is gone (so it seems to others: its connection closed; it waited for process 0)" in str(third)


LATER = 0.2  # seconds: a process says whom it lost after it was missed for that itself, and not all at once


@pytest.mark.parametrize(
    ("lost", "gone"),
    [
        ({0: (1, 0), 1: (2, LATER), 2: (3, 2 * LATER)}, 3),  # one after the other, up to one that says nothing
        ({0: (1, 0), 1: (2, LATER), 2: (2, LATER), 3: (0, 0)}, 2),  # … or that it is itself what is wrong
        ({0: (1, 0), 1: (2, LATER), 2: (0, LATER)}, 3),  # in a circle: nobody names who says nothing
    ],
)
def test_all_name_the_one_who_says_nothing(lost, gone, monkeypatch):
    monkeypatch.setattr(rendezvous, "_BEAT", 2.0)  # a moment that a busy machine does not use up
    ended = [one for one in _all(4, partial(_leave, lost, threading.Barrier(len(lost), timeout=60))) if one is not None]
    assert [one.rank for one in ended] == [gone] * len(lost)


def test_where_all_miss_somebody_the_first_who_was_missed_is_named(monkeypatch):
    monkeypatch.setattr(rendezvous, "_BEAT", 2.0)
    lost = {0: (1, 0), 1: (2, LATER), 2: (0, 2 * LATER)}
    ended = _all(3, partial(_leave, lost, threading.Barrier(3, timeout=60)))
    assert [one.rank for one in ended] == [1, 1, 1]
    assert "(so it seems to others: as 0 says; it waited for process 2)" in str(ended[1])


def test_one_that_lives_and_misses_nobody_is_not_gone(monkeypatch):
    monkeypatch.setattr(rendezvous, "_BEAT", 0.4)
    store = HashStore()
    worlds = [World(rank, 3, store, 5.0) for rank in range(3)]
    worlds[2]._live()
    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(lambda i: worlds[i].lost(1 - i, "its connection broke"), range(2)))
    worlds[2]._die()
    assert {one.rank for one in told} <= {0, 1}


def test_who_is_gone_has_a_number():
    store = HashStore()
    store.set("alarm", '[true, "x"]')
    assert World(0, 3, store, 2.0).lost(2, "its connection broke").rank == 2


def _leave(lost, begun, world):
    if world.rank not in lost:
        return None
    other, later = lost[world.rank]
    begun.wait()
    time.sleep(later)
    return world.lost(other, f"as {world.rank} says")


def test_who_only_heard_of_a_loss_misses_nobody():
    store = HashStore()
    assert World(1, 5, store, 2.0).lost(2, "its connection broke").rank == 2
    assert World(2, 5, store, 2.0).lost(4, "its connection broke").rank == 4
    assert World(0, 5, store, 2.0).lost(3, "no sign of life", heard=True).rank == 4  # 3 is slow, and nobody lost it


@pytest.mark.parametrize("error", [OSError("disk full at a secret place"), IndexError("a secret record")])
def test_a_bad_end_is_told_but_not_which(error):
    """Which error is raised may be a function of records."""

    def work(world):
        if world.rank == 0:
            with pytest.raises(type(error), match="secret"), world.leaving():
                raise error
            return None
        return world.all_gather(1, forms.whole())

    _, heard = _all(2, work, patience=2.0)
    assert heard.rank == 0
    assert "it ended: see its own message" in str(heard)
    assert not any(word in str(heard) for word in ("secret", type(error).__name__))


def _beside_a_liar(*words):
    """Return the world of process 0, in which process 1 has said all it ever says."""
    store = HashStore()
    for number, word in enumerate(words, 1):
        store.set(f"{number}/1", word)
    return World(0, 2, store, 5.0)


@pytest.mark.parametrize(
    "word",
    ["{", "[" * 9999, '"a', "1" * 5000, "[NaN]", "[1, 1, 1]", '["1", 1]', "null", "\xff\x00", "[-1, 1]"],
)
def test_what_cannot_be_is_refused_in_the_name_of_who_says_it(word):
    with pytest.raises(Refused, match=r"^process 1 says ") as refused:
        _beside_a_liar(word).all_gather_nodes([1, 2], forms.whole(), 4)
    assert len(refused.value.what) < 500


def test_what_others_make_of_my_word_is_not_used():
    world = _beside_a_liar("[1.0, 1.0]")

    class Overwritten:
        def __getattr__(self, name):
            return getattr(world.real, name)

        def multi_get(self, keys):
            world.real.set("1/0", "[1e-9, 1e-9]")
            return world.real.multi_get(keys)

    world.real, world._store = world.store, Overwritten()
    with pytest.raises(Refused, match="changed in the meeting place"):
        world.all_gather_nodes([1.0, 2.0], forms.real(), 4)


def test_an_alarm_that_anybody_may_have_written():
    store = HashStore()
    store.set("alarm", '["\\u001b[2J", 7]')
    assert World(0, 2, store, 1.0).lost(1, "silent").rank == 1
    store.set("alarm", json.dumps([1, "\x1b[2J" + "a" * 9999]))
    store.set("lost/1", "[9999]")
    said = str(World(0, 2, store, 1.0).lost(1, "silent"))
    assert "\x1b" not in said
    assert len(said) < 500


def test_a_meeting_place_that_stands_still_is_missed_after_the_set_time():
    stopped = threading.Event()

    class Still(HashStore):
        def set(self, key, value):
            stopped.wait(20)

    begun = time.monotonic()
    try:
        with pytest.raises(PeerLost, match=r"the meeting place does not answer: within 0\.3 s"):
            World(1, 2, Still(), 0.3).all_gather(1, forms.whole())
        assert time.monotonic() - begun < 5
    finally:
        stopped.set()


def test_silence_follows_patience():
    """A cut of ten seconds does not end a run whose patience is two minutes."""
    assert World(patience=120.0).silence > 10
    assert World(patience=20.0).silence == 5
    assert World(patience=1.0).silence == 1


def test_differences_are_named_without_control_characters():
    with pytest.raises(Refused, match="does not fit") as refused:
        refuse_differences(_beside_a_liar(json.dumps({"a\x1b[2J": "\x1b]0;x"}), "null"), {"a": 1})
    assert "\x1b" not in refused.value.what


@pytest.mark.parametrize("value", ["soon", "-1", "0", "nan"])
def test_a_patience_that_cannot_be(monkeypatch, value):
    monkeypatch.setenv("PRIVSGP_PATIENCE", value)
    with pytest.raises(Refused, match="PRIVSGP_PATIENCE"):
        rendezvous._patience()
