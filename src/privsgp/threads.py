"""Two cores for work that lets go of Python's lock: hashing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
R = TypeVar("R")


def shared_out(work: Callable[[Sequence[T]], list[R]], items: Sequence[T]) -> list[R]:
    """Return work(items), half of it done by a second thread where torch may use more than one.

    The thread ends with the call: there is no pool that a fork could break.
    """
    half = len(items) // 2
    if half == 0 or torch.get_num_threads() == 1:
        return work(items)
    with ThreadPoolExecutor(1) as other:
        later = other.submit(work, items[half:])
        return work(items[:half]) + later.result()
