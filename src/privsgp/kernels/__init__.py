"""What runs in one pass over a GPU's memory, as Triton kernels; the same in torch stands where it is used.

Modules here that import Triton are imported only where `have_triton`.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


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
