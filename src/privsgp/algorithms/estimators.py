"""Gradient estimates that more than one algorithm takes, before noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.algorithms.block import Block, Drawn


def clipped_mean(block: Block, z: Tensor, batch: list[Drawn]) -> Tensor:
    """(1/b) Σ_{j∈B} clip_G(∇f_i(z_i; j)); the divisor is the constant b, never the drawn size."""
    total = block.gradients(z, batch[0]).sum()
    for drawn in batch[1:]:
        total += block.gradients(z, drawn).sum()
    return total.div_(block.b)
