"""The flat order of a model's parameters: where each one lies in a row x_i of the matrix X [m, d]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the trainable parameters, in the order of `model.named_parameters()`."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """Read the layout off a model; frozen parameters are constants, not part of it."""
        trained = {name: p.shape for name, p in model.named_parameters() if p.requires_grad}
        return cls(tuple(trained), tuple(trained.values()))

    @property
    def dim(self) -> int:
        """The paper's d."""
        return sum(shape.numel() for shape in self.shapes)

    def views(self, x: Tensor) -> dict[str, Tensor]:
        """View X [..., d] as one tensor per parameter, [..., *shape]; nothing is copied."""
        parts = torch.split(x, [shape.numel() for shape in self.shapes], -1)
        named = zip(self.names, self.shapes, parts, strict=True)
        return {name: columns.reshape(*x.shape[:-1], *shape) for name, shape, columns in named}

    def flatten(self, model: nn.Module) -> Tensor:
        """Return the model's parameters as one vector [d]."""
        values = dict(model.named_parameters())
        return torch.cat([values[name].detach().reshape(-1) for name in self.names])
