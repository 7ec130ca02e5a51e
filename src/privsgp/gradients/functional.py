"""Per-sample gradients of any module through `torch.func`: slower, plain, and the same numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from privsgp.gradients.per_sample import PerSample, Plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from privsgp.gradients.layout import Layout


class Functional:
    """The gradient of one sample alone, mapped over samples and over models."""

    def __init__(self, model: nn.Module, layout: Layout, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.layout = layout

        def one(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return loss(functional_call(model, parameters, (x[None],)), y[None]).sum()

        self._gradient = grad(one)
        per_sample = vmap(self._gradient, in_dims=(None, 0, 0))
        self._gradients = vmap(per_sample, in_dims=(0, 0, 0))

    def __call__(self, z: Tensor, inputs: Tensor, targets: Tensor) -> PerSample:
        """Return the gradients of model z[i] on inputs[i, j], for all i and j."""
        views = {name: v.contiguous() for name, v in self.layout.views(z).items()}
        gradients = self._gradients(views, inputs, targets)
        return PerSample([Plain(torch.cat([gradients[name].flatten(2) for name in self.layout.names], -1))])

    def one_by_one(self, z: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the same as [m, b, d], one model and one sample after the other: for models too big to map over."""
        samples = zip(z.repeat_interleave(inputs.shape[1], 0), inputs.flatten(0, 1), targets.flatten(0, 1), strict=True)
        gradients = [self._gradient(self.layout.views(row), x, y) for row, x, y in samples]
        rows = [torch.cat([g[name].flatten() for name in self.layout.names]) for g in gradients]
        return torch.stack(rows).view(*inputs.shape[:2], -1)
