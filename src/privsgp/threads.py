"""Two cores for work that lets go of Python's lock: hashing and drawing, beside what has to be done at the same time.

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
def leaving_one() -> Iterator[None]:
    """Let torch use one thread fewer than it may, if it may use several: a core is left to a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, threads - 1))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def shared_out(work: Callable[[T], R], items: Sequence[T], first: Callable[[], None] = lambda: None) -> list[R]:
    """Return [work(item), …]; a second thread begins while this one does `first`, where torch may use more than one.

    The thread ends with the call: there is no pool that a fork could break.
    """
    results: list[R] = [None] * len(items)  # type: ignore[list-item]
    left = iter(range(len(items)))  # both take the next number; Python's lock lets one at a time

    def some() -> None:
        for i in left:
            results[i] = work(items[i])

    if len(items) < 2 or torch.get_num_threads() == 1:
        first()
        some()
        return results
    with ThreadPoolExecutor(1) as other:
        later = other.submit(some)
        first()
        some()
        later.result()
    return results
