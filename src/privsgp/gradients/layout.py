"""The flat order of a model's parameters: where each one lies in a row x_i of the matrix X [m, d]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Names, shapes and places of the trainable parameters, in the order of `model.named_parameters()`."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    offsets: tuple[int, ...]
    dim: int

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """Read the layout off a model; frozen parameters are constants, not part of it."""
        trained = [(name, p.shape) for name, p in model.named_parameters() if p.requires_grad]
        offsets = [0]
        for _, shape in trained:
            offsets.append(offsets[-1] + shape.numel())
        names, shapes = tuple(name for name, _ in trained), tuple(shape for _, shape in trained)
        return cls(names, shapes, tuple(offsets[:-1]), offsets[-1])

    def place(self, name: str) -> slice:
        """Return the columns of X that hold the parameter `name`."""
        i = self.names.index(name)
        return slice(self.offsets[i], self.offsets[i] + self.shapes[i].numel())

    def views(self, x: Tensor) -> dict[str, Tensor]:
        """View X [..., d] as one tensor per parameter, [..., *shape]; nothing is copied."""
        return {
            name: x[..., offset : offset + shape.numel()].reshape(*x.shape[:-1], *shape)
            for name, shape, offset in zip(self.names, self.shapes, self.offsets, strict=True)
        }

    def flatten(self, model: nn.Module) -> Tensor:
        """Return the model's parameters as one vector [d]."""
        values = dict(model.named_parameters())
        return torch.cat([values[name].detach().reshape(-1) for name in self.names])
