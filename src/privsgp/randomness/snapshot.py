"""Whether the machine's memory may be an old one, of a snapshot that was put back."""

from __future__ import annotations

import time

from privsgp.errors import Refused

_PARTED = 1.0  # seconds by which clocks may part while nothing but time passes: slewing needs half an hour for it


def clock_offset() -> float:
    """Return by how much the clock on the wall is ahead of the one that counts from when the machine was started.

    A machine put back to a snapshot has its old count and, once it is told, the new time.
    """
    counted = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
    return time.time() - counted


def refuse_old_memory(since: float, remedy: str) -> None:
    """Refuse to go on if the clocks have moved against each other since they had this offset."""
    if abs(clock_offset() - since) > _PARTED:
        raise Refused("the machine's clocks moved against each other: it may come from a snapshot", remedy)
