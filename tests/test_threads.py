"""Work that is shared out to two threads gives what one would give."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from privsgp.threads import Helped, beside, leave_one_core, one_thread_each, shared_out


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("allowed", "within"), [(1, 1), (2, 1), (3, 2)])
def test_torch_leaves_one_thread_for_a_while_whatever_happens(threads, allowed, within):
    threads(allowed)
    with contextlib.suppress(ValueError), leave_one_core():
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

    with beside(work, range(5)) as results:
        assert begun.wait(60), "nobody began"
    assert results == list(range(5))


@pytest.mark.parametrize("allowed", [1, 2])
def test_a_single_item_waits_for_the_block(threads, allowed):
    threads(allowed)
    done = []
    with beside(done.append, ["after"]):
        done.append("first")
    assert done == ["first", "after"]


def test_what_ends_the_block_is_raised_when_the_other_thread_has_ended(threads):
    threads(2)
    begun, ended = threading.Event(), []

    def work(i):
        begun.set()
        time.sleep(0.05)
        ended.append(i)

    def fails():
        assert begun.wait(60)
        raise ValueError("in the block")

    with pytest.raises(ValueError, match="in the block"), beside(work, range(1000)):
        fails()
    seen = list(ended)
    time.sleep(0.15)
    assert ended == seen
    assert 1 <= len(ended) < 1000  # nobody begins another one


def test_other_threads_stay_from_one_use_to_the_next(threads):
    threads(2)
    both, seen = threading.Barrier(2, timeout=60), []
    uses = 3 + 2 * (os.cpu_count() or 1)

    def work(_):
        both.wait()
        seen.append(threading.current_thread())

    for _ in range(uses):
        one_thread_each(work, range(2))
    # one that is asked again before it waits has a second one begin: there are no more of them than cores
    assert len(set(seen)) <= 1 + (os.cpu_count() or 1) < uses


def test_work_that_shares_out_work_of_its_own_ends(threads):
    threads(2)
    nested = shared_out(lambda i: shared_out(lambda j: shared_out(lambda k: i + j + k, range(3)), range(3)), range(3))
    assert nested == [[[i + j + k for k in range(3)] for j in range(3)] for i in range(3)]


def test_torch_has_one_thread_in_each_and_what_it_had_afterwards(threads):
    threads(2)
    both = threading.Barrier(2, timeout=60)
    assert one_thread_each(lambda _: both.wait() * 0 + torch.get_num_threads(), range(2)) == [1, 1]
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_threads_of_its_own():
    code = """
import os, signal, threading, torch
from privsgp.threads import shared_out
torch.set_num_threads(2)
shared_out(lambda i: i, range(4))
both = threading.Barrier(2, timeout=60)
if child := os.fork():
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.alarm(60)
os._exit(0 if shared_out(lambda i: both.wait() * 0 + i, range(2)) == [0, 1] else 3)  # as multiprocessing ends
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


def test_an_error_in_either_thread_is_raised_here(threads):
    threads(2)

    def work(i):
        if i == 3:
            raise ValueError("three")

    with pytest.raises(ValueError, match="three"):
        shared_out(work, range(4))


def test_who_needs_the_same_work_helps_with_it_and_waits_for_the_rest():
    both, took = threading.Barrier(2, timeout=60), []

    def work(i):
        if i < 2:
            both.wait()  # two threads are at it
        took.append(i)

    helped, seen = Helped(work, range(40)), []
    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(lambda: helped.done() or seen.append(sorted(took))) for _ in range(2)]:
            one.result()
    assert seen == [list(range(40))] * 2


def test_what_fails_fails_for_all_who_need_it():
    def work(i):
        if i == 3:
            raise MemoryError("of 3")

    helped = Helped(work, range(5))
    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(helped.done) for _ in range(3)]:
            with pytest.raises(MemoryError, match="of 3"):
                one.result()
