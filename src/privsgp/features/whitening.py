"""Few features instead of many: the leading principal directions of made-up images' features, brought to one scale.

A clipped gradient of a linear model is as long as its features are, whichever way they point, and noise is the same in
every direction. What all images have in common (their mean, their few leading directions) takes most of that length
and tells no classes apart; with it taken down, the same noise hides less. All statistics are of made-up images, so this
is a fixed map of each sample alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

RIDGE = 0.1  # of the largest deviation, added to all: directions that hardly vary in made-up images are not blown up


class Whitening(nn.Module):
    """x ↦ (x − mean) · directions / (deviation + ridge)^power, at length √components; what has no length stays 0."""

    def __init__(self, mean: Tensor, directions: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("directions", directions)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, components] for [B, F]."""
        y = (unit(x) - self.get_buffer("mean")) @ self.get_buffer("directions")
        return unit(y) * math.sqrt(y.shape[1])


def unit(x: Tensor) -> Tensor:
    """Return rows of length 1, or 0 where there is no length."""
    length: Tensor = x.norm(dim=1, keepdim=True)
    return x / length.clamp(min=1e-12)


def fit(made_up: Tensor, components: int, power: float) -> Whitening:
    """Measure mean and principal directions on features of made-up images, [N, F]."""
    x = unit(made_up)
    mean = x.mean(0)
    x = x - mean
    # of N × N and F × F the smaller one, in float64: signs and order must be the same wherever this is computed
    values, vectors = torch.linalg.eigh((x @ x.T).double())
    values, vectors = values.flip(0)[:components].clamp(min=1e-12), vectors.flip(1)[:, :components]
    directions = (x.T @ vectors.float()) / values.sqrt().float()
    signs = directions.gather(0, directions.abs().argmax(0, keepdim=True)).sign()
    deviation = (values / len(x)).sqrt().float()
    return Whitening(mean, directions * signs / (deviation + RIDGE * deviation[0]) ** power)
