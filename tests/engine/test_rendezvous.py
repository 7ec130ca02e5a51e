"""The meeting place: blocks, exchanges, refusals of one for all, and who is missed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from privsgp.engine import rendezvous, told
from privsgp.engine.rendezvous import PeerLost, World, blocks, refuse_differences
from privsgp.errors import Refused


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
        return [world.exchange([world.rank, k], told.each(told.whole(), 2)) for k in range(5)]

    assert _all(3, talk) == [[[[r, k] for r in range(3)] for k in range(5)]] * 3


def test_a_world_of_one_needs_no_store():
    world = World()
    assert world.alone
    assert world.exchange("a", told.text("a", "a letter")) == ["a"]
    assert world.everywhere(lambda: 3) == 3
    with world.leaving():
        pass


def test_who_refuses_says_why_and_the_others_say_who():
    def start(world):
        def check():
            if world.rank == 1:
                raise Refused("data: y[3] = 17", "mend it")
            return world.rank

        return world.everywhere(check)

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
        return None if world.rank == 2 else world.exchange(1, told.whole())

    first, second, _ = _all(3, talk, patience=0.3)
    assert first.rank == second.rank == 2
    assert "silent for 0.3 s" in str(first)


def test_who_stops_living_is_missed_though_patience_is_long(monkeypatch):
    monkeypatch.setattr(rendezvous, "_QUIET", 0.3 / 60)
    monkeypatch.setattr(rendezvous, "_BEAT", 0.05)
    dead = threading.Event()

    def talk(world):
        world.exchange(1, told.whole())
        if world.rank == 1:
            dead.wait(0.2)
            world._die()
            return None
        return world.exchange(2, told.whole())

    first, _, third = _all(3, talk, patience=60.0)
    assert first.rank == third.rank == 1
    assert "no sign of life for 0.3 s" in str(first)


def test_all_name_the_first_who_was_missed():
    """Who leaves because another is gone is gone too: it is not to be blamed."""

    def talk(world):
        if world.rank == 0:
            return world.lost(2, "its connection closed")
        return world.exchange(1, told.whole())

    first, second, third = _all(3, talk, patience=2.0)
    assert {first.rank, second.rank, third.rank} == {2}
    assert "process 2 is gone (so it seems to others: its connection closed; it waited for process 0)" in str(third)


def test_a_bad_end_is_told():
    def work(world):
        if world.rank == 0:
            with pytest.raises(OSError, match="disk"), world.leaving():
                raise OSError("disk full at a secret place")
            return None
        return world.exchange(1, told.whole())

    _, heard = _all(2, work, patience=2.0)
    assert heard.rank == 0
    assert "it ended with OSError" in str(heard)
    assert "secret" not in str(heard)
