"""κ, the slack that clipping is counted with for what arithmetic rounds by, and every constant it rests on.

κ is for each gradient's norm and clip; half of it is left for sums (privacy.md, "Clipping"; docs/privacy.md, "Sums").
Loops that add up all of a node's gradients take `chunk` of them at a time: the bound holds for that length. Which
layers are used at many positions their rules declare (`rules.layer.StackedLayer.positional`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from privsgp.devices import device_of

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 64  # samples whose gradients are added at once where all of a node's are
_EPS = torch.finfo(torch.float64).eps / 2  # what an addition rounds by
# How many times longer than a gradient its terms may be, at most; in ResNet-18 images from CIFAR-10 have 2 to 20.
_CANCELLED = {torch.float32: 2.0**6, torch.float64: 2.0**8}
_ADDED = {torch.float32: 2.0**-8, torch.float64: 2.0**-30}  # what adding them may round by, as a share of G


def kappa(dtype: torch.dtype, device: torch.device, *, positions: int = 1) -> float:
    """Return the relative slack κ of the arithmetic in which gradients are measured and clipped (privacy.md).

    Where layers are used at many `positions`, which may cancel, it is larger (`gradients.positions`). Sums take less
    than half of it (`engine.precision`): where noise is secret they are formed in float64 (`per_sample.PerSample`).
    """
    if device_of(device).uses_tf32:
        return 2.0**-8
    if dtype == torch.float64:  # sums have no more bits here than what they are sums of
        return 2.0**-12 if positions > 1 else 2.0**-20
    return 2.0**-8 if positions > 1 or dtype != torch.float32 else 2.0**-12


def chunk(block: int = 1) -> int:
    """Return how many samples of a node are added at once where all of them are: `CHUNK`, in whole blocks."""
    return -(-CHUNK // block) * block


def sum_error(samples: float, at_once: int, positions: int) -> float:
    """Return by how much of G a sum in float64 may differ with and without a record, beyond the record's share.

    Guarantee: added in any order, s terms whose lengths sum up to ℓ round by at most s ℓ 2⁻⁵³. The gradients of t
    samples in the ball of radius G have t p terms at p positions, t c G long together where they may cancel c-fold; s
    of them, t at a time, round by (c p t s + s²/t) 2⁻⁵³ G, twice that with and without a record, and as much again
    for old entries.
    """
    cancel = cancelled(torch.float64, positions) if positions > 1 else 1.0
    return 4 * _EPS * (cancel * positions * min(at_once, samples) * samples + samples**2 / at_once)


def table_error(samples: int, block: int, *, steps: int, positions: int) -> float:
    """Return the same of a table's mean: J entries are added in chunks, and K moves round by K 2⁻⁵² G."""
    return sum_error(samples, chunk(block), positions) + 2 * _EPS * steps * samples


def least_difference_clip(clip: float, dtype: torch.dtype, positions: int) -> float:
    """Return the smallest difference clip C that the rounding of a table's entry does not outdo.

    In float32 it moves an entry by 2⁻²⁴ of its length, or of what its positions could add up to, 2¹² times as much.
    """
    return clip * 2.0 ** (-4 if positions > 1 else -11) if dtype == torch.float32 else 0.0


def cancelled(dtype: torch.dtype, terms: int) -> float:
    """Return how many times longer than a gradient its terms may be: to add P of them rounds by P · eps / 2 of that."""
    return min(_CANCELLED[dtype], 2 * _ADDED[dtype] / (torch.finfo(dtype).eps * terms))


def product_error(v: Tensor) -> float:
    """Return by how much a product of two numbers such as v's may be off, as a share of it.

    With TF32 both lose all but 10 bits behind the point.
    """
    return 2.0**-9 if v.dtype == torch.float32 and device_of(v).uses_tf32 else 2 * torch.finfo(v.dtype).eps
