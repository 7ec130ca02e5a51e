"""Gradients of persons with several rows each: the mean of a person's row gradients, which is then clipped as one.

A person is a sample of `rows` rows, [m, b, rows, …]; persons with fewer are padded. A padding row has the target −1, or
NaN where targets are numbers, and counts for nothing. The model and its loss see rows and need not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from privsgp.devices import device_of
from privsgp.gradients.per_sample import Outer, PerSample, Piece, Plain, Product, broadcast, smaller
from privsgp.gradients.product import product
from privsgp.gradients.rounding import cancelled

if TYPE_CHECKING:
    from privsgp.gradients.layout import Layout
    from privsgp.gradients.stacked import Stacked


_COPIED = 1 << 18  # numbers of a copy that stays in a core's cache


def is_row(targets: Tensor) -> Tensor:
    """Tell which rows of persons, [m, b, rows], are theirs: the others are padding."""
    real = ~targets.isnan() if targets.is_floating_point() else targets >= 0
    return real.flatten(3).all(-1) if real.ndim > 3 else real


def of_samples(gradient: Stacked, rows: int) -> Stacked:
    """Return the gradients of samples: persons with up to `rows` rows, or, for 1, the rows themselves."""
    return gradient if rows == 1 else Persons(gradient)


class Persons:
    """Per-person gradients of m models, from the gradients of single rows.

    Guarantee: a person's gradient is a function of that person's rows alone, and no padding row changes it.
    """

    layout: Layout

    def __init__(self, by_row: Stacked) -> None:
        self.by_row, self.layout, self.how = by_row, by_row.layout, by_row.how

    def __call__(self, z: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor | None = None) -> PerSample:
        """Return the mean gradient of each person's rows: z [m, d], inputs and targets [m, b, rows, …].

        `weights` [m, b, rows] are the shares of rows in the mean, 0 for padding; None: all rows have the same.
        """
        real = is_row(targets)
        weights = (real / real.sum(-1, keepdim=True).clamp(min=1) if weights is None else weights).flatten(1)
        known = torch.where(broadcast(real.flatten(1), targets.flatten(1, 2)), targets.flatten(1, 2), 0)
        g = self.by_row(z, inputs.flatten(1, 2), known)
        for piece in g.pieces:
            piece.scale_(weights)
        return PerSample([_joined(piece, inputs.shape[2]) for piece in g.pieces])


def _gram(factor: Tensor) -> Tensor:
    """Return the inner products of each person's rows, [persons, rows, rows], in float64, which takes a small copy."""
    parts = torch.split(factor, device_of(factor).rows_at_once(factor.flatten(1), _COPIED))
    return torch.cat([product(some, some.mT) for some in map(Tensor.double, parts)])


def _joined(piece: Piece, rows: int) -> Piece:
    """Return the sums of each person's rows."""
    if isinstance(piece, Outer):
        delta, a = (t.reshape(len(t), -1, rows, t.shape[-1]) for t in (piece.delta, piece.input))
        return smaller(Rows(delta, a, piece.bias, input_is_data=piece.input_is_data))
    dense = piece.dense()
    return Plain(dense.reshape(len(dense), -1, rows, dense.shape[-1]).sum(2))


@dataclass
class Rows(Product):
    """Gradients Σ_p δ_p ⊗ (a_p, 1) over a person's rows: `delta` [m, b, rows, out], `input` [m, b, rows, in].

    Guarantee: rows may cancel, so rounding need not be small beside the sum. With L = Σ_p ‖δ_p‖ ‖(a_p, 1)‖ the squared
    norm counts what the products in float64 round by, (in + out + rows + 8) 2⁻⁵² L², and the norm what scaling δ by a
    factor rounds by, eps L. It counts as no less than L / `cancelled`, which bounds what sums in float64 round by
    (`rounding.sum_error` with as many positions as rows). A row with δ = 0 adds nothing to any of these.
    """

    bias: bool

    @property
    def size(self) -> int:
        """Out × in weights, and out biases."""
        return self.delta.shape[-1] * (self.input.shape[-1] + self.bias)

    def squared_norm(self, *, exact: bool = False) -> Tensor:  # noqa: ARG002 - always in float64
        """Σ_{p,p'} ⟨δ_p, δ_p'⟩ (⟨a_p, a_p'⟩ + 1), and what rounding may add."""
        rows, numbers = self.delta.shape[2], torch.finfo(self.delta.dtype)
        delta, a = (_gram(factor.flatten(0, 1)) for factor in (self.delta, self.input))
        products = delta * (a + self.bias)
        longest = products.diagonal(dim1=1, dim2=2).sqrt().sum(-1)
        within = torch.maximum(delta, a).diagonal(dim1=1, dim2=2).amax(-1) <= numbers.max ** (2 / 3)
        longest = longest.where(within, torch.inf)  # as `per_sample.squared_norm` counts
        off = (self.delta.shape[-1] + self.input.shape[-1] + rows + 8) * torch.finfo(torch.float64).eps
        length = (products.sum(-1).sum(-1).clamp(min=0) + off * longest.square()).sqrt() + numbers.eps * longest
        squares = torch.maximum(length, longest / cancelled(torch.float64, rows)).square()
        return squares.view(self.delta.shape[:2])

    def sum_into(self, out: Tensor, *, exact: bool = False) -> None:
        """Add up all rows of all persons: they are those of a linear layer."""
        rows = Outer(self.delta.flatten(1, 2), self.input.flatten(1, 2), self.bias)
        rows.sum_into(out, exact=exact)

    def dense(self) -> Tensor:
        """Multiply the outer products out and add up each person's."""
        weight = (self.delta.mT @ self.input).flatten(2)
        return torch.cat([weight, self.delta.sum(2)], -1) if self.bias else weight
