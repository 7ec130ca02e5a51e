"""What a device can do, asked here once: which one a configuration means, its tensor cores, its memory."""

from __future__ import annotations

import ctypes
import os
import sys

import torch

from privsgp.errors import Refused

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # glibc's malloc.h


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
        raise Refused(f"engine.device = {name!r}", f"take one of {', '.join(there)}{words}")
    return name


def current(device: torch.device) -> torch.device:
    """Make a GPU the one that kernels are launched on: on another one they would run beside what they wait for."""
    if device.index is not None and device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def use_tensor_cores(device: torch.device) -> None:
    """Let products on a GPU round to TF32, as its convolutions do: κ, which is asked after this, says so."""
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True


def keep_memory() -> bool:
    """Tell the C library to keep what is freed, for this process; return whether it can (glibc alone).

    It gives large arrays back to the system as soon as they are freed, and the next step pays for every page anew: with
    256 nodes of 79,510 weights that was two fifths of a step.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))
