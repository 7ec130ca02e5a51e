"""κ, the slack that clipping is counted with for what arithmetic rounds by, and every constant it rests on.

κ is for each gradient's norm and clip; half of it is left for sums (docs/proofs/rounding.md).
Loops that add up all of a node's gradients take `CHUNK` of them at a time: the bound holds for that length. Which
layers are used at many positions their rules declare (`rules.layer.StackedLayer.positional`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from privsgp.devices import device_of

if TYPE_CHECKING:
    from torch import Tensor

GRAM_CHANNELS = 128  # of a product of positions that are added up in float32, where that is to be exact
CHUNK = 64  # samples whose gradients are added at once where all of a node's are
_EPS = torch.finfo(torch.float64).eps / 2  # what an addition rounds by
# How many times longer than a gradient its terms may be, at most; in ResNet-18 images from CIFAR-10 have 2 to 20.
_CANCELLED = {torch.float32: 2.0**6, torch.float64: 2.0**8}
_ADDED = {torch.float32: 2.0**-8, torch.float64: 2.0**-30}  # what adding them may round by, as a share of G


def kappa(dtype: torch.dtype, device: torch.device, *, positions: int = 1) -> float:
    """Return the relative slack κ of the arithmetic in which gradients are measured and clipped.

    It is larger for layers at many `positions`, which may cancel (`gradients.positions`). Sums take less
    than half of it (`engine.precision`): where noise is secret they are formed in float64 (`per_sample.PerSample`).
    """
    if device_of(device).uses_tf32:
        return 2.0**-8
    if dtype == torch.float64:  # sums have no more bits here than what they are sums of
        return 2.0**-12 if positions > 1 else 2.0**-20
    return 2.0**-8 if positions > 1 or dtype != torch.float32 else 2.0**-12


def sum_error(samples: float, at_once: int, positions: int) -> float:
    """Return by how much of G a sum in float64 may differ with and without a record, beyond the record's share.

    Guarantee: added in any order, s terms whose lengths sum up to ℓ round by at most s ℓ 2⁻⁵³. The gradients of t
    samples in the ball of radius G have t p terms at p positions, t c G long together where they may cancel c-fold; s
    of them, t at a time, round by (c p t s + s²/t) 2⁻⁵³ G, twice that with and without a record, and as much again
    for old entries.
    """
    cancel = cancelled(torch.float64, positions) if positions > 1 else 1.0
    return 4 * _EPS * (cancel * positions * min(at_once, samples) * samples + samples**2 / at_once)


def table_error(samples: int, *, steps: int, positions: int) -> float:
    """Return the same of a table's mean: J entries are added in chunks, and K moves round by K 2⁻⁵² G."""
    return sum_error(samples, CHUNK, positions) + 2 * _EPS * steps * samples


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


def sum_rounding(v: Tensor, positions: int) -> float:
    """Return η: a sample's Σ_p δ_p ⊗ a_p, multiplied out in v's precision, is off by at most η L (`Positions`).

    Guarantee: P products, added in any order, round by at most P eps/2 of what their absolute values add up to; tensor
    cores, which may cut off where others round, by twice that; scaled factors by eps/2 more. L bounds that sum's
    length by Cauchy and Schwarz.
    """
    return (product_error(v) if device_of(v).uses_tf32 else 0.0) + (positions + 3) * torch.finfo(v.dtype).eps


def gram_rounding(delta: Tensor, a: Tensor, places: int) -> float:
    """Return by how much Σ_{p,p'} ⟨δ_p, δ_p'⟩ ⟨a_p, a_p'⟩, computed in float32 proper, may be off, as a share of L².

    Guarantee: inner products over some channels at a time and the sum over a window's places have as many terms, and
    eight roundings are for scaling and multiplying them; Σ_{p,p'} of all lengths is at most L², as above.
    """
    terms = min(delta.shape[1], GRAM_CHANNELS) + min(a.shape[1], GRAM_CHANNELS) + places + 8
    return terms * torch.finfo(a.dtype).eps / 2
