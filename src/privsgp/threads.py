"""Runs work that lets go of Python's lock, hashing and drawing, on a second thread.

A thread of torch's that has to share its core with another one holds all of them up: each operation waits for the last.
And for some milliseconds after an operation torch's threads keep their cores busy, waiting for the next one.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeVar

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
def beside(work: Callable[[T], R], items: Sequence[T], threads: int | None = None) -> Iterator[list[R]]:
    """Begin [work(item), …] on a second thread, where torch may use more than one, while the body of the block runs.

    `threads` are as many as there shall be in all, this one too; left out: no more than two.

    What is left after that is done by both; the list is complete when the block has ended.
    """
    if threads is None:
        threads = min(2, torch.get_num_threads())
    results: list[R] = [None] * len(items)  # type: ignore[list-item]
    left = iter(range(len(items)))  # all take the next number; Python's lock lets one at a time

    def some() -> None:
        try:
            for i in left:
                results[i] = work(items[i])
        except BaseException:
            deque(left, 0)  # nobody begins another one
            raise

    if len(items) < 2 or threads == 1:
        yield results
        some()
        return
    later: list[Future[None]] = []
    try:
        later.extend(_others().submit(some) for _ in range(min(threads, len(items)) - 1))
        yield results
        some()
    except BaseException:
        deque(left, 0)
        raise
    finally:
        ended = [one for one in later if not one.cancel()]  # who has not begun would find nothing left
        try:
            wait(ended)
        except BaseException:  # a signal: nothing goes on behind whoever hears of it
            wait(ended)
            raise
    for one in ended:
        one.result()


@cache
def _others() -> ThreadPoolExecutor:
    """Return this process's other threads, which wait from one use to the next: new ones have everything to fetch."""
    return ThreadPoolExecutor(os.cpu_count(), "privsgp")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_others.cache_clear)  # a fork has none of its parent's threads


def shared_out(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return [work(item), …], done by two threads where torch may use more than one."""
    with beside(work, items) as results:
        pass
    return results


def one_thread_each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return [work(item), …], done by as many threads as torch may use, within each of which torch uses one.

    Threads that wait for each other once, and not at every operation, lose little where others use the cores too.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def alone(item: T) -> R:
        torch.set_num_threads(1)  # each thread has a number of its own
        return work(item)

    try:
        with beside(alone, items, threads) as results:
            pass
    finally:
        torch.set_num_threads(threads)
    return results


class Helped(Generic[T]):
    """Work that several threads need, item by item: each does what nobody has begun, and waits for the rest."""

    def __init__(self, work: Callable[[T], None], items: Sequence[T]) -> None:
        self._work = work
        self._items: list[tuple[T, Future[None]]] = [(item, Future()) for item in items]
        self._left = iter(self._items)  # all take the next one; Python's lock lets one at a time

    def done(self) -> None:
        """Return when all is done; what an item raises, all who need it raise."""
        for item, ended in self._left:
            try:
                ended.set_result(self._work(item))
            except BaseException as error:  # noqa: BLE001 - raised below, by all
                ended.set_exception(error)
        for _, ended in self._items:
            ended.result()
