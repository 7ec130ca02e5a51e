"""Gradient estimates of published methods, before noise: differences to a public point, and full gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from privsgp.algorithms.block import Block, Drawn

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.gradients import PerSample


def full_mean(block: Block, z: Tensor) -> Tensor:
    """(1/J) Σ_j clip_G(∇f_i(z_i; j)) over all samples of each node; it never leaves as it is."""
    from privsgp.gradients.table import every

    total = torch.zeros_like(z, dtype=torch.float64)
    for rows in every(block.samples, block.rows):
        total += block.gradients(z, Drawn(rows, rows < block.rows)).sum()
    total.div_(block.J)
    return total if block.exact else total.to(z.dtype)


def difference_mean(
    block: Block, z: Tensor, point: Tensor, batch: list[Drawn], C: float | None, alpha: float = 0.0
) -> Tensor:
    """(θ/b) Σ_{j∈B} [α g_j(z) + (1 − α) clip_C(g_j(z) − g_j(point))] with g_j = clip_G(∇f_i(·; j)); θ is mostly 1."""
    total = block.zeros(z)
    for drawn in batch:
        g, h = block.gradients(z, drawn), block.gradients(point, drawn)
        total.add_(_difference(g, h, drawn.mask, C), alpha=1 - alpha)
        if alpha:
            total.add_(g.sum(), alpha=alpha)
    return total.div_(block.b_over_scale.to(total.dtype))


def _difference(g: PerSample, h: PerSample, mask: Tensor, C: float | None) -> Tensor:
    """Return Σ_j clip_C(g_j − h_j)."""
    if C is None:
        return g.sum().sub_(h.sum())
    c = minus(g, h)
    c.clip_(C, mask)
    return c.sum()


def minus(g: PerSample, h: PerSample) -> PerSample:
    """Return g_j − h_j for the same samples: by factors where those add up, plain elsewhere."""
    from privsgp.gradients.per_sample import PerSample, Plain, linear

    pairs = zip(g.wide(g.pieces), h.wide(h.pieces), strict=True)
    pieces = [replace(a, delta=a.delta - b.delta) if linear(a) else Plain(a.dense() - b.dense()) for a, b in pairs]
    return PerSample(pieces, exact=g.exact)
