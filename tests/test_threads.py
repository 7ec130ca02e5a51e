"""Work that is shared out to two threads gives what one would give."""

from __future__ import annotations

import threading

import pytest
import torch

from privsgp.threads import shared_out


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("allowed", [1, 2])
def test_results_come_in_order(threads, count, allowed):
    threads(allowed)
    assert shared_out(lambda some: [2 * i for i in some], range(count)) == [2 * i for i in range(count)]


def test_one_thread_is_used_where_torch_may_use_only_one(threads):
    threads(1)
    assert (
        shared_out(lambda some: [threading.current_thread() for _ in some], range(4))
        == [threading.current_thread()] * 4
    )


def test_an_error_in_the_other_thread_is_raised_here(threads):
    threads(2)

    def work(some):
        if 3 in some:
            raise ValueError("three")
        return list(some)

    with pytest.raises(ValueError, match="three"):
        shared_out(work, range(4))
