"""Random convolutional features: fixed random filters over small patches, both signs kept, averaged over a grid.

The filters are public randomness and have mean zero, as Coates and Ng (2012) found to matter; nothing is learnt from
anybody's data, so they cost no privacy.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, conv2d, group_norm, relu

from privsgp.errors import Refused


class RandomConv(nn.Module):
    """[B, C, H, W] → [B, 2 · filters, grid, grid]."""

    def __init__(
        self, channels: int, height: int, width: int, *, filters: int, patch: int, grid: int, seed: int
    ) -> None:
        super().__init__()
        if patch + grid > min(height, width) + 1:
            raise Refused(
                f"features.patch = {patch} and features.grid = {grid} with images of {height} × {width} pixels",
                f"take patch + grid of at most {min(height, width) + 1}",
            )
        self.grid = grid
        generator = torch.Generator().manual_seed(seed % 2**64)
        bank = torch.randn(filters, channels, patch, patch, generator=generator)
        bank -= bank.mean((1, 2, 3), keepdim=True)
        self.register_buffer("bank", bank / math.sqrt(channels * patch**2))

    def forward(self, x: Tensor) -> Tensor:
        """Return the averages of relu(±x ∗ filter) over the cells of a grid."""
        seen = conv2d(x, self.get_buffer("bank"))
        return adaptive_avg_pool2d(torch.cat([relu(seen), relu(-seen)], 1), self.grid)

    def normalised(self, x: Tensor) -> Tensor:
        """Return the averages with mean 0 and variance 1 within the sample."""
        return group_norm(self(x), 1).flatten(1)
