"""Work on rows by all threads: results in order, one torch thread in each, and nothing goes on behind an error."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from privsgp.devices import in_threads


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("allowed", [1, 2])
def test_results_come_in_order_and_torch_has_one_thread_in_each(threads, count, allowed):
    threads(allowed)
    assert in_threads(lambda i: (i * i, torch.get_num_threads()), range(count)) == [(i * i, 1) for i in range(count)]
    assert torch.get_num_threads() == allowed


def test_as_many_threads_are_used_as_torch_may_use(threads):
    threads(2)
    both = threading.Barrier(2, timeout=20)
    assert len(set(in_threads(lambda _: (both.wait(), threading.get_ident())[1], range(4)))) == 2


def test_work_that_shares_out_work_of_its_own_ends(threads):
    threads(2)
    assert in_threads(lambda i: sum(in_threads(lambda j: i * j, range(3))), range(8)) == [3 * i for i in range(8)]


@pytest.mark.parametrize("fails", [0, 1])
def test_an_error_ends_all_and_no_other_item_begins(threads, fails):
    threads(2)
    begun, both = [], threading.Barrier(2)

    def work(i):
        begun.append(i)
        if i < 2:
            both.wait()
        if i == fails:
            raise MemoryError(f"of item {i}")
        time.sleep(0.05)

    with pytest.raises(MemoryError, match=f"of item {fails}"):
        in_threads(work, range(20))
    now = len(begun)
    time.sleep(0.1)
    assert len(begun) == now <= 4
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_threads_of_its_own():
    program = """
import os, torch
from privsgp.devices import in_threads
torch.set_num_threads(2)
in_threads(str, range(4))
if (child := os.fork()) == 0:
    torch.set_num_threads(2)
    os._exit(0 if in_threads(str, range(4)) == list("0123") else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
