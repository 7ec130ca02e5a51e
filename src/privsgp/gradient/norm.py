"""The rules for GroupNorm and LayerNorm: the statistics are each sample's own, and scale and shift are few numbers.

With x̂ the normalised input, y = γ x̂ + β, so a sample's gradients by γ and β are δ x̂ and δ, summed over positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm, layer_norm

from privsgp.gradient.layer import Call, StackedLayer
from privsgp.gradient.per_sample import Plain

if TYPE_CHECKING:
    from privsgp.gradient.per_sample import Piece


class _StackedNorm(StackedLayer):
    """γ x̂ + β of m models, with x̂ laid out as [m, b, before, features, after], or with samples first."""

    def affine(self, x: Tensor, normal: Tensor, features: int, after: int) -> Tensor:
        """Scale and shift each model's samples."""
        batch = x.shape[0] // self.models
        first = (batch, self.models) if self.samples_first else (self.models, batch)
        normal = normal.reshape(*first, -1, features, after)
        scale, shift = (self._column(name) for name in ("weight", "bias"))
        out = normal if scale is None else normal * scale if shift is None else torch.addcmul(shift, normal, scale)
        self.record(x, normal, out)
        return out.view(x.shape)

    def _column(self, name: str) -> Tensor | None:
        value = self.stacked.get(name)
        first = (1, self.models) if self.samples_first else (self.models, 1)
        return None if value is None else value.reshape(*first, 1, -1, 1)

    def piece(self, call: Call, delta: Tensor, batch: int, *, input_is_data: bool) -> Piece:
        """As many numbers as there are parameters: nothing is smaller than that."""
        del batch, input_is_data
        of = {"weight": lambda: (delta * call.kept).sum((2, 4)), "bias": lambda: delta.sum((2, 4))}
        value = torch.cat([of[name]() for name in self.trained], -1)
        return Plain(value.transpose(0, 1) if self.samples_first else value)


class StackedGroupNorm(_StackedNorm):
    """GroupNorm of m models."""

    def __init__(self, name: str, layer: nn.GroupNorm) -> None:
        super().__init__(name, layer)
        self.groups, self.eps = layer.num_groups, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise groups of channels."""
        normal = group_norm(x, self.groups, eps=self.eps)
        return self.affine(x, normal, x.shape[1], x[0, 0].numel())


class StackedLayerNorm(_StackedNorm):
    """LayerNorm of m models."""

    def __init__(self, name: str, layer: nn.LayerNorm) -> None:
        super().__init__(name, layer)
        self.shape, self.eps = tuple(layer.normalized_shape), layer.eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axes."""
        normal = layer_norm(x, self.shape, eps=self.eps)
        return self.affine(x, normal, torch.Size(self.shape).numel(), 1)
