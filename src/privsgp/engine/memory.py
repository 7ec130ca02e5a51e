"""Memory of one step kept for the next, on a CPU.

The C library gives large arrays back to the system as soon as they are freed, and the next step pays for every page
anew: with 256 nodes of 79,510 weights that was two fifths of a step.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # glibc's malloc.h


def keep_memory() -> bool:
    """Tell the C library to keep what is freed, for this process; return whether it can (glibc alone)."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))
