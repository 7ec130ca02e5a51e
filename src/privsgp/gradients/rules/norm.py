"""The rules for GroupNorm and LayerNorm: the statistics are each sample's own, and scale and shift are few numbers.

With x̂ the normalised input, y = γ x̂ + β, so a sample's gradients by γ and β are δ x̂ and δ, summed over positions.
On a GPU, GroupNorm has kernels that go through memory once (`privsgp.kernels.group_norm`).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm, layer_norm

from privsgp.devices import runs_on
from privsgp.gradients.per_sample import Piece, Plain
from privsgp.gradients.product import Through
from privsgp.gradients.rules.layer import Call, StackedLayer


class _StackedNorm(StackedLayer):
    """γ x̂ + β of m models, with x̂ laid out as [m, b, before, features, after], or with samples first."""

    positional: ClassVar[bool] = False  # summed over positions before it is measured

    def affine(self, x: Tensor, normal: Tensor, features: int, after: int) -> Tensor:
        """Scale and shift each model's samples."""
        normal = self.split(normal)
        normal = normal.reshape(*normal.shape[:2], -1, features, after)
        scale, shift = (
            None if v is None else v.view(self.models, 1, 1, -1, 1) for v in map(self.stacked.get, ("weight", "bias"))
        )
        out = normal if scale is None else normal * scale if shift is None else torch.addcmul(shift, normal, scale)
        self.record(x, normal, out)
        return self.join(out).view(x.shape)

    def piece(self, call: Call, delta: Tensor, batch: int, *, input_is_data: bool) -> Piece:
        """As many numbers as there are parameters: nothing is smaller than that."""
        del batch, input_is_data
        of = {"weight": lambda: (delta * call.kept).sum((2, 4)), "bias": lambda: delta.sum((2, 4))}
        return Plain(torch.cat([of[name]() for name in self.trained], -1))


class StackedGroupNorm(_StackedNorm):
    """GroupNorm of m models."""

    def __init__(self, name: str, layer: nn.GroupNorm) -> None:
        super().__init__(name, layer)
        self.groups, self.eps = layer.num_groups, layer.eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise groups of channels."""
        if self._at_once(x):
            from privsgp.kernels import group_norm as kernel

            scale, shift = (self.stacked[name].contiguous() for name in ("weight", "bias"))
            after = 1 if self.samples_first else x.shape[0] // self.models  # so many rows the next model's begin
            rest = self.groups, self.eps, after

            def back(delta: Tensor, x: Tensor, scale: Tensor) -> Tensor:
                return kernel.backward(x, delta.contiguous(), scale, *rest)

            given = x, lambda x: kernel.forward(x, scale, shift, *rest), back, x, scale
            y: Tensor = Through.apply(*given)  # type: ignore[no-untyped-call]
            self.record(x, x, y)
            return y
        normal = group_norm(x, self.groups, eps=self.eps)
        return self.affine(x, normal, x.shape[1], x[0, 0].numel())

    def piece(self, call: Call, delta: Tensor, batch: int, *, input_is_data: bool) -> Piece:
        """Return the gradients by scale and shift."""
        if not self._at_once(call.kept):
            return super().piece(call, delta, batch, input_is_data=input_is_data)
        from privsgp.kernels.group_norm import affine

        both = self.split(affine(call.kept, delta.contiguous(), self.groups, self.eps))
        return Plain(torch.cat([both[:, :, ("weight", "bias").index(name)] for name in self.trained], -1))

    def _at_once(self, x: Tensor) -> bool:
        """Tell whether the kernels take this input."""
        if not (runs_on(x) and x.is_contiguous() and x.dtype in (torch.float32, torch.float64)):
            return False
        from privsgp.kernels.group_norm import MOST

        return x.ndim == 4 and x[0].numel() // self.groups <= MOST


class StackedLayerNorm(_StackedNorm):
    """LayerNorm of m models."""

    def __init__(self, name: str, layer: nn.LayerNorm) -> None:
        super().__init__(name, layer)
        self.shape, self.eps = tuple(layer.normalized_shape), layer.eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axes."""
        normal = layer_norm(x, self.shape, eps=self.eps)
        return self.affine(x, normal, torch.Size(self.shape).numel(), 1)
