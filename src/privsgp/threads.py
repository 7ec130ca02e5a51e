"""The one way in which this package uses a CPU's cores itself: work on rows, one thread each.

torch shares out each of its own operations. NumPy, ciphers and hashes let go of Python's lock and use one core: their
rows go through `in_threads`.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

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
    share = min(threads, len(items))  # each thread takes every share-th item: one call each, however many items

    failed = threading.Event()

    def some(first: int) -> list[R]:
        torch.set_num_threads(1)  # each thread has a number of its own
        try:
            return [work(item) for item in items[first::share] if not failed.is_set()]
        except BaseException:
            failed.set()  # no other item is begun
            raise

    begun: list[Future[list[R]]] = []
    torch.set_num_threads(1)
    try:
        if share < 2:
            return [work(item) for item in items]
        begun += [_pool(threads).submit(some, first) for first in range(share)]
    finally:
        wait(begun)
        torch.set_num_threads(threads)
    for error in filter(None, [one.exception() for one in begun]):
        raise error
    done: list[Any] = [None] * len(items)
    for first, one in enumerate(begun):
        done[first::share] = one.result()
    return done


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return this process's threads, which wait from one use to the next."""
    return ThreadPoolExecutor(threads, "privsgp")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a fork has none of its parent's threads
