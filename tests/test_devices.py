"""What a device can do; memory that is freed and asked for again."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from privsgp import devices
from privsgp.devices import device_of

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


CPU, GPU = device_of(torch.device("cpu")), device_of(torch.device("cuda:1"))


def test_a_tensor_and_its_device_say_the_same():
    assert device_of(torch.zeros(1)) is CPU
    assert (CPU.in_host_memory, CPU.has_cudnn, GPU.in_host_memory, GPU.has_cudnn) == (True, False, False, True)


@pytest.mark.parametrize(("columns", "rows"), [(10, 10), (60, 1), (1000, 1)])
def test_rows_that_stay_in_a_cache(columns, rows):
    x = torch.empty(7, columns)
    assert CPU.rows_at_once(x, 100) == rows
    assert GPU.rows_at_once(x, 100) == 7


def test_only_a_gpu_rounds_to_tf32_and_makes_up_float64(monkeypatch):
    monkeypatch.setenv("CUBLAS_EMULATION_STRATEGY", "eager")
    with torch.backends.cudnn.flags(allow_tf32=True):
        assert (CPU.uses_tf32, GPU.uses_tf32) == (False, True)
    with torch.backends.cudnn.flags(allow_tf32=False):
        assert GPU.uses_tf32 == torch.backends.cuda.matmul.allow_tf32
    assert (CPU.emulates_float64, GPU.emulates_float64) == (None, "CUBLAS_EMULATION_STRATEGY")


def test_this_machine_has_memory():
    assert devices.free_on(torch.device("cpu")) > 2**26
