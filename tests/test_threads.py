"""Work that is shared out to two threads gives what one would give."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch

from privsgp.threads import leaving_one, shared_out


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("allowed", "within"), [(1, 1), (2, 1), (3, 2)])
def test_torch_leaves_one_thread_for_a_while_whatever_happens(threads, allowed, within):
    threads(allowed)
    with contextlib.suppress(ValueError), leaving_one():
        seen = torch.get_num_threads()
        raise ValueError("in between")
    assert (seen, torch.get_num_threads()) == (within, allowed)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("allowed", [1, 2])
def test_results_come_in_order(threads, count, allowed):
    threads(allowed)
    assert shared_out(lambda i: 2 * i, range(count)) == [2 * i for i in range(count)]


def test_one_thread_is_used_where_torch_may_use_only_one(threads):
    threads(1)
    assert shared_out(lambda _: threading.current_thread(), range(4)) == [threading.current_thread()] * 4


def test_the_other_thread_begins_while_something_else_is_done(threads):
    threads(2)
    begun = threading.Event()

    def work(i):
        begun.set()
        return i

    assert shared_out(work, range(5), lambda: None if begun.wait(60) else pytest.fail("nobody began")) == list(range(5))


@pytest.mark.parametrize("allowed", [1, 2])
def test_what_is_done_first_is_done_once(threads, allowed):
    threads(allowed)
    done = []
    shared_out(done.append, ["after"], lambda: done.append("first"))
    assert done == ["first", "after"]


def test_an_error_in_either_thread_is_raised_here(threads):
    threads(2)

    def work(i):
        if i == 3:
            raise ValueError("three")

    with pytest.raises(ValueError, match="three"):
        shared_out(work, range(4))
