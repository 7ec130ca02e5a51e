"""The rule for embeddings: a sample's gradient is zero but for the rows it looked up.

It is kept as the indices and δ, one row of δ for each; a row that was looked up twice gets the sum of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from privsgp.gradients.per_sample import Piece, Product, scaled, smaller, squared_norm
from privsgp.gradients.product import no_tf32, product
from privsgp.gradients.rounding import cancelled
from privsgp.gradients.rules.layer import Call, StackedLayer


@dataclass
class _Lookups(Product):
    """Gradients Σ_t e_{i_t} ⊗ δ_t by an embedding of `rows` rows: `delta` [m, b, T, width].

    `input` holds the indices i_t, [m, b, T].
    """

    names: ClassVar[dict[str, str]] = {"delta": "delta", "input": "index"}
    rows: int

    @property
    def size(self) -> int:
        """The whole embedding."""
        return self.rows * self.delta.shape[-1]

    def squared_norm(self, *, exact: bool = False) -> Tensor:
        """Σ_{t,t'} [i_t = i_t'] ⟨δ_t, δ_t'⟩, of δ scaled to length 1; what rounding may have taken off is added.

        Rows of one token may cancel; as in `positions` they count as no shorter than a share of what they could be.
        With `exact`, a gradient that float32 cannot scale counts as too long, and is dropped.
        """
        delta, length = self.delta, squared_norm(self.delta.flatten(2))
        if exact:
            delta = delta.double()
            length = squared_norm(delta.flatten(2)).where(length.isfinite(), torch.inf)
        factor = length.rsqrt().where(length.isfinite() & (length > 0), 0.0)
        rows = scaled(delta, factor).flatten(0, 1)
        same = self.input[..., :, None] == self.input[..., None, :]
        with no_tf32(rows):
            products = product(rows, rows.mT).view(same.shape)
        often, dtype = same.sum(-1).amax(-1), delta.dtype  # how often a token is looked up
        total = products.where(same, 0).sum((-2, -1), dtype=torch.float64) + 4 * torch.finfo(dtype).eps * often
        return torch.maximum(total, often / cancelled(dtype, self.input.shape[-1]) ** 2) * length

    def sum_into(self, out: Tensor, *, exact: bool = False) -> None:  # noqa: ARG002 - always so
        """Add every row of δ to its own row, in float64: a common token has many, and they may all round alike."""
        total = out.new_zeros(len(out), self.rows, self.delta.shape[-1], dtype=torch.float64)
        add_rows(total, self.input.flatten(1), self.delta.flatten(1, 2).double())
        out.copy_(total.flatten(1))

    def dense(self) -> Tensor:
        """Write every sample's whole gradient out."""
        m, b, _, width = self.delta.shape
        out = self.delta.new_zeros(m * b, self.rows, width)
        add_rows(out, self.input.flatten(0, 1), self.delta.flatten(0, 1))
        return out.view(m, b, -1)


def add_rows(out: Tensor, index: Tensor, value: Tensor) -> None:
    """out[i, index[i, t]] += value[i, t]."""
    out.scatter_add_(1, index[..., None].expand(value.shape), value)


class StackedEmbedding(StackedLayer):
    """An embedding of m models: one of m times the rows."""

    def __init__(self, name: str, layer: nn.Embedding) -> None:
        super().__init__(name, layer)
        self.rows, self.padding = layer.num_embeddings, layer.padding_idx

    @staticmethod
    def suits(layer: nn.Module) -> bool:
        """Rows must not be changed, nor their gradients weighed, by what else is in the batch."""
        assert isinstance(layer, nn.Embedding)  # noqa: S101 - the registry asks for its own kind alone
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse

    @classmethod
    def positions(cls, output: Tensor) -> int:
        """As many as a sample has tokens."""
        return max(output[0, ..., 0].numel(), 2)

    def forward(self, x: Tensor) -> Tensor:
        """Look up each model's own rows."""
        weight = self.stacked["weight"]
        index = self.split(x).flatten(1)
        first = torch.arange(self.models, device=x.device)[:, None] * self.rows
        out = weight.reshape(-1, weight.shape[-1])[index + first]
        self.record(x, index, out)
        return self.join(out.view(self.models, -1, *x.shape[1:], out.shape[-1]))

    def piece(self, call: Call, delta: Tensor, batch: int, *, input_is_data: bool) -> Piece:
        """Indices and δ; the padding row is not trained."""
        index = call.kept.view(self.models, batch, -1)
        delta = delta.view(*index.shape, -1)
        if self.padding is not None:
            delta = delta.masked_fill((index == self.padding)[..., None], 0)
        return smaller(_Lookups(delta, index, self.rows, input_is_data=input_is_data))
