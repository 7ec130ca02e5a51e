"""Philox4x32-10 (Salmon and others, 2011) in plain torch: the reference of the noise that a GPU's simulation draws."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_ROUNDS = 10
_WORD = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85


def quarter(columns: int) -> int:
    """Return Q, the number of draws that a row of so many columns takes."""
    return 32 * -(-columns // 128)


def words(key: int, counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the four 32-bit words of each counter, everything in int64."""
    c0, c1, c2, c3 = counter
    k0, k1 = key & _WORD, key >> 32
    for _ in range(_ROUNDS):
        # A product of two words wraps around in int64; its bits 32 to 63 are right all the same.
        low, high = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (high >> 32 & _WORD) ^ c1 ^ k0, high & _WORD
        c2, c3 = (low >> 32 & _WORD) ^ c3 ^ k1, low & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


def fill_normal(out: Tensor, key: int, nodes: Sequence[int], step: int) -> None:
    """Fill row r of `out` [m, d] with the standard normals of node `nodes[r]`."""
    d = out.shape[1]
    place = torch.arange(quarter(d), device=out.device).expand(len(nodes), -1)
    node = torch.tensor(list(nodes), device=out.device)[:, None].expand_as(place)
    drawn = words(key, (place, node, torch.full_like(place, step), torch.zeros_like(place)))
    out.copy_(torch.cat([*_box_muller(*drawn[:2]), *_box_muller(*drawn[2:])], 1)[:, :d])


def _box_muller(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """√(−2 ln u) (cos θ, sin θ) in float32; (word + ½) / 2³² keeps all bits where u is small."""
    radius = u.float().mul_(2.0**-32).add_(2.0**-33).log_().mul_(-2).sqrt_()
    angle = v.float().mul_(2 * math.pi * 2.0**-32)
    return radius * angle.cos(), radius * angle.sin()
