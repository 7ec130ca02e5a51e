"""The one way in which this package uses a CPU's cores itself: work on rows, one thread each.

torch shares out each of its own operations. NumPy, ciphers and hashes let go of Python's lock and use one core: their
rows go through `in_threads`.
"""

from __future__ import annotations

import os
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
R = TypeVar("R")


def in_threads(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return [work(item), …], done by as many threads as torch may use; within each of them torch uses one.

    Guarantee: when it returns or raises, no thread is still at work.
    """
    threads = torch.get_num_threads()

    def alone(item: T) -> R:
        torch.set_num_threads(1)  # each thread has a number of its own
        return work(item)

    begun: list[Future[R]] = []
    torch.set_num_threads(1)
    try:
        if threads == 1 or len(items) < 2:
            return [work(item) for item in items]
        begun += [_pool(threads).submit(alone, item) for item in items]
        wait(begun, return_when=FIRST_EXCEPTION)
    finally:
        wait([one for one in begun if not one.cancel()])
        torch.set_num_threads(threads)
    failed = [one.exception() for one in begun if not one.cancelled()]
    for error in filter(None, failed):
        raise error
    return [one.result() for one in begun]


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return this process's threads, which wait from one use to the next."""
    return ThreadPoolExecutor(threads, "privsgp")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a fork has none of its parent's threads
