"""Devices: the device of a configuration, its abilities, and its memory.

Other modules never check for a GPU: they ask `device_of(x)` for an ability, and `runs_on` for kernels.

`in_threads` is the one way in which this package uses a CPU's cores itself: work on rows, one thread each. torch shares
out each of its own operations. NumPy, ciphers and hashes let go of Python's lock and use one core.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

T = TypeVar("T")
R = TypeVar("R")

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # glibc's malloc.h
_FEWER_BITS = ("DNNL_DEFAULT_FPMATH_MODE", "ONEDNN_DEFAULT_FPMATH_MODE")
_EMULATED = ("CUBLAS_EMULATE_DOUBLE_PRECISION", "CUBLAS_EMULATION_STRATEGY")


@dataclass(frozen=True)
class _Device:
    """The abilities of a kind of device."""

    in_host_memory: bool  # arrays lie in this process's memory: NumPy, hashes and a second thread reach them
    # Convolutions are cuDNN's, a step's launches can be recorded, and nobody waits for a copy from page-locked memory.
    has_cudnn: bool

    @property
    def uses_tf32(self) -> bool:
        """Whether products may be TF32: where one of two settings of torch allows it."""
        return self.has_cudnn and (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32)

    @property
    def emulates_float64(self) -> str | None:
        """The setting by which cuBLAS may make float64 up of something else; None where there is none."""
        found = (name for name in _EMULATED if os.environ.get(name, "0") != "0")
        return next(found, None) if self.has_cudnn else None

    @property
    def coarsens_float32(self) -> str | None:
        """The setting by which a CPU that can may multiply float32 in fewer bits; None where there is none."""
        if not self.in_host_memory:
            return None
        onednn = getattr(torch.backends.mkldnn, "matmul", None)  # from torch 2.9 on
        precision = torch.get_float32_matmul_precision() if onednn is None else onednn.fp32_precision
        if precision not in ("none", "ieee", "highest"):
            return f"torch's precision of float32 products = {precision!r}"
        found = (name for name in _FEWER_BITS if os.environ.get(name, "STRICT").upper() != "STRICT")
        return next((f"{name} = {os.environ[name]!r}" for name in found), None)

    def rows_at_once(self, x: Tensor, numbers: int) -> int:
        """Return how many rows of x to go through at a time: as many numbers as a core's cache holds; else all."""
        return max(1, numbers // x.shape[1]) if self.in_host_memory else len(x)


_KINDS = {"cpu": _Device(in_host_memory=True, has_cudnn=False), "cuda": _Device(in_host_memory=False, has_cudnn=True)}
_UNKNOWN = _Device(in_host_memory=False, has_cudnn=False)


def device_of(where: Tensor | torch.device) -> _Device:
    """Return what the device of a tensor can do."""
    device = where if isinstance(where, torch.device) else where.device
    return _KINDS.get(device.type, _UNKNOWN)


def free_on(device: torch.device) -> int:
    """Return the bytes of memory that are free on a device."""
    if device_of(device).in_host_memory:
        return free_memory()
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def free_memory() -> int:
    """Return the bytes of memory that can be had without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, ValueError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def refuse_vast(needed: int, what: str, remedy: str) -> None:
    """Refuse what would not fit, before it is made: the kernel would end the process without a word."""
    if needed > (free := free_memory()):
        raise Refused(f"{what} {needed / 1e6:,.1f} MB, and {free / 1e6:,.1f} MB of memory are free", remedy)


def chosen_device(name: str) -> torch.device:
    """Return the device a configuration names, and make it the current one; "auto" is a GPU where there is one."""
    device = device_name(name)
    try:
        torch.empty(0, device=device)
    except RuntimeError as error:  # a GPU that is there and cannot be used
        raise Refused(f"engine.device = {name!r}: {error}", "take 'cpu', or another GPU") from error
    return current(torch.device(device))


def device_name(name: str) -> str:
    """Return which device a configuration's means here, without touching it; one that is not there is refused."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:  # torchrun: each process of a machine takes a GPU of its own
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    there = ["auto", "cpu", *(["cuda", *gpus] if gpus else [])]
    if name not in there:
        words = "" if gpus else ": torch sees no GPU here"
        raise Refused(f"engine.device = {name!r} is not on this machine", f"take one of {', '.join(there)}{words}")
    return name


def current(device: torch.device) -> torch.device:
    """Make a GPU the one that kernels are launched on: on another one they would run beside what they wait for."""
    if device.index is not None and not device_of(device).in_host_memory:
        torch.cuda.set_device(device)
    return device


def use_tensor_cores(device: torch.device) -> None:
    """Let products on a GPU round to TF32, as its convolutions do: κ, which is asked after this, says so."""
    if device_of(device).has_cudnn:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


def keep_memory() -> bool:
    """Tell the C library to keep what is freed, for this process; return whether it can (glibc alone).

    By default it returns large arrays to the system at once, and the next step pays for every page again. With 256
    nodes of 79,510 weights that was two fifths of a step.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))


@functools.cache
def have_triton() -> bool:
    """Tell whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def runs_on(v: Tensor) -> bool:
    """Tell whether kernels can go through v where it lies."""
    return v.is_cuda and have_triton()


def at_once(v: Tensor) -> bool:
    """Tell whether `rows` can go through v, [samples, numbers] or [models, samples, numbers]."""
    real = v.dtype in (torch.float32, torch.float64, torch.bfloat16)
    return runs_on(v) and real and v.ndim in (2, 3) and v.stride(-1) == 1 and v.numel() > 0


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


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return this process's threads, which wait from one use to the next."""
    return ThreadPoolExecutor(threads, "privsgp")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a fork has none of its parent's threads
