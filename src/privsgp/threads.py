"""Runs work that lets go of Python's lock, hashing and drawing, on a second thread.

A thread of torch's that has to share its core with another one holds all of them up: each operation waits for the last.
And for some milliseconds after an operation torch's threads keep their cores busy, waiting for the next one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def leave_one_core() -> Iterator[None]:
    """Let torch use one thread fewer than it may, if it may use several: a core is left to a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads - 1))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def beside(work: Callable[[T], R], items: Sequence[T]) -> Iterator[list[R]]:
    """Begin [work(item), …] on a second thread, where torch may use more than one, while the body of the block runs.

    What is left after that is done by both; the list is complete when the block has ended. The thread ends with it:
    there is no pool that a fork could break.
    """
    results: list[R] = [None] * len(items)  # type: ignore[list-item]
    left = iter(range(len(items)))  # both take the next number; Python's lock lets one at a time

    def some() -> None:
        for i in left:
            results[i] = work(items[i])

    if len(items) < 2 or torch.get_num_threads() == 1:
        yield results
        some()
        return
    with ThreadPoolExecutor(1) as other:
        later = other.submit(some)
        yield results
        some()
        later.result()


def shared_out(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return [work(item), …], done by two threads where torch may use more than one."""
    with beside(work, items) as results:
        pass
    return results
