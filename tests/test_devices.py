"""Memory that is freed and asked for again."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from privsgp.devices import keep_memory
print(keep_memory() if {keep} else None)
for _ in range(20):
    held = torch.ones(1 << 24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    held = torch.ones(1 << 24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(*, keep):
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(keep=keep)], capture_output=True, text=True, check=True)
    can, faults = done.stdout.split()
    return can, int(faults)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone")
def test_what_is_kept_need_not_be_paged_in_again():
    can, kept = _faults(keep=True)
    if can != "True":
        pytest.skip("another C library")
    assert kept < _faults(keep=False)[1] / 10
