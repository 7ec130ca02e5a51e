"""The meeting place: blocks, exchanges, refusals of one for all, and processes that are missed."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from privsgp.errors import Refused
from privsgp.options import NotNegative
from privsgp.outside import Whole, exactly
from privsgp.transport import rendezvous
from privsgp.transport.rendezvous import PeerLost, Processes, refuse_differences
from privsgp.transport.world import World, blocks


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
            return action(Processes(rank, size, store, patience))
        except (Refused, PeerLost) as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def test_everybody_hears_everybody_round_after_round():
    def talk(world):
        return [world.all_gather([world.rank, k], exactly(2, Whole)) for k in range(5)]

    assert _all(3, talk) == [[[[r, k] for r in range(3)] for k in range(5)]] * 3


def test_a_world_of_one_needs_no_store():
    world = World()
    assert world.alone
    assert world.all_gather("a", str) == ["a"]
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
        return None if world.rank == 2 else world.all_gather(1, Whole)

    for one in _all(3, talk, patience=0.3)[:2]:
        assert "process 2 is gone (silent for 0.3 s)" in str(one)


def test_all_who_are_missed_are_named():
    store = HashStore()
    with pytest.raises(PeerLost, match=r"processes 1, 2 are gone \(silent for 0\.1 s\)"):
        Processes(0, 3, store, 0.1).all_gather(1, Whole)


def _beside_a_liar(*words):
    """Return the world of process 0, in which process 1 has said all it ever says."""
    store = HashStore()
    for number, word in enumerate(words, 1):
        store.set(f"{number}/1", word)
    return Processes(0, 2, store, 5.0)


@pytest.mark.parametrize(
    "word",
    ["{", "[" * 9999, '"a', "1" * 5000, "[NaN]", "[1, 1, 1]", '["1", 1]', "null", "\xff\x00", "[-1, 1]"],
)
def test_what_cannot_be_is_refused_in_the_name_of_who_says_it(word):
    with pytest.raises(Refused, match=r"^process 1 says ") as refused:
        _beside_a_liar(word).all_gather_nodes([1, 2], Whole, 4)
    assert len(refused.value.what) < 500


def test_what_others_make_of_my_word_is_not_used():
    world = _beside_a_liar("[1.0, 1.0]")

    class Overwritten:
        def __getattr__(self, name):
            return getattr(world.real, name)

        def multi_get(self, keys):
            world.real.set("1/0", "[1e-9, 1e-9]")
            return world.real.multi_get(keys)

    world.real, world.store = world.store, Overwritten()
    with pytest.raises(Refused, match="changed at the meeting point"):
        world.all_gather_nodes([1.0, 2.0], NotNegative, 4)


def test_a_meeting_place_that_stands_still_is_missed_after_the_set_time():
    stopped = threading.Event()

    class Still(HashStore):
        def set(self, key, value):
            stopped.wait(20)

    begun = time.monotonic()
    try:
        with pytest.raises(PeerLost, match=r"the meeting point does not answer: within 0\.3 s"):
            Processes(1, 2, Still(), 0.3).all_gather(1, Whole)
        assert time.monotonic() - begun < 5
    finally:
        stopped.set()


def test_differences_are_named_without_control_characters():
    with pytest.raises(Refused, match="does not fit") as refused:
        refuse_differences(_beside_a_liar(json.dumps({"a\x1b[2J": "\x1b]0;x"}), "null"), {"a": 1})
    assert "\x1b" not in refused.value.what


@pytest.mark.parametrize("value", ["soon", "-1", "0", "nan"])
def test_a_patience_that_cannot_be(monkeypatch, value):
    monkeypatch.setenv("PRIVSGP_PATIENCE", value)
    with pytest.raises(Refused, match="PRIVSGP_PATIENCE"):
        rendezvous._patience()
