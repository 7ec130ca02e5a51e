"""Per-sample gradients of m models on b samples each, as values that can be measured, clipped and summed.

A gradient is a row of *pieces*, one per layer, in the order of the flat parameter vector. A linear layer's piece is
the outer product δ ⊗ (a, 1) and is kept as its two factors, as are those of `positions` and `embedding`; anything else
is kept plain. The clip is over the *whole* gradient: all pieces share one norm and one factor.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

import torch
from torch import Tensor

from privsgp.devices import at_once, device_of
from privsgp.gradients.product import product

if TYPE_CHECKING:
    from collections.abc import Sequence

Factors = dict[str, Tensor]
AnyPiece = TypeVar("AnyPiece", bound="Piece")
_COPIED = 1 << 18  # numbers of a copy that stays in a core's cache


@dataclass
class Piece(ABC):
    """One layer's share of the per-sample gradients, which are linear in `delta` [m, b, …].

    `exact` measures and adds them where a sum must not tell who is in it.

    Guarantee: with `exact`, `sum_into` adds in float64. The vector that it adds for a sample is a function of that
    sample's factors. It exceeds the length from `squared_norm` by at most κ/2, also if a factor of at most 1 scales it.
    """

    names: ClassVar[dict[str, str]] = {"delta": "delta", "input": "input"}  # of factors, in checkpoints
    delta: Tensor

    @property
    @abstractmethod
    def size(self) -> int:
        """How many parameters the layer has."""

    @abstractmethod
    def squared_norm(self, *, exact: bool = False) -> Tensor:
        """Return ‖g_j‖² of this layer for every sample, [m, b], in float64."""

    @abstractmethod
    def sum_into(self, out: Tensor, *, exact: bool = False) -> None:
        """Write Σ_j g_j into out [m, size]."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Return the plain gradients, [m, b, size]: the obvious version."""

    def scale_(self, factor: Tensor) -> None:
        """Multiply every sample's gradient by its factor [m, b]; a factor 0 gives 0 whatever the gradient was."""
        self.delta = scaled(self.delta, factor)

    def factors(self) -> Factors:
        """Return what a table has to keep of the gradients, each [m, b, …]."""
        return {"delta": self.delta}


@dataclass
class Product(Piece):
    """Gradients that are products of δ and of the layer's `input` [m, b, …], which may be the data themselves."""

    input: Tensor
    input_is_data: bool = field(default=False, kw_only=True)

    def scale_(self, factor: Tensor) -> None:
        """Scale δ; where the factor is 0 both factors become 0, so that 0 · inf cannot come back as NaN."""
        self.delta = scaled(self.delta, factor)
        if not self.input_is_data:
            self.input = self.input.masked_fill(broadcast(factor, self.input) == 0, 0)

    def factors(self) -> Factors:
        """Return δ, and the input unless it is the data, which the node holds anyway."""
        return super().factors() if self.input_is_data else {"delta": self.delta, "input": self.input}


@dataclass
class Outer(Product):
    """A linear layer's gradients δ ⊗ (a, 1): `delta` [m, b, out], `input` [m, b, in], never multiplied out."""

    bias: bool

    @property
    def size(self) -> int:
        """Out × in weights, and out biases."""
        return self.delta.shape[-1] * (self.input.shape[-1] + self.bias)

    def squared_norm(self, *, exact: bool = False) -> Tensor:  # noqa: ARG002 - always in float64
        """‖δ ⊗ (a, 1)‖² = ‖δ‖² (‖a‖² + 1)."""
        return squared_norm(self.delta) * (squared_norm(self.input) + self.bias)

    def sum_into(self, out: Tensor, *, exact: bool = False) -> None:  # noqa: ARG002 - in the precision of `out`
        """Σ_j δ_j ⊗ a_j is one matrix product per model; a copy in float64 is made of a few models at a time."""
        weights, some = self.delta.shape[-1] * self.input.shape[-1], len(out)
        if out.dtype != self.input.dtype:
            some = device_of(out).rows_at_once(self.input.flatten(1), _COPIED)
        parts = zip(*(torch.split(t, some) for t in (out[:, :weights], self.delta, self.input)), strict=True)
        for total, delta, a in parts:
            total.copy_(product(delta.to(out.dtype).mT, a.to(out.dtype)).reshape(len(total), -1))
        if self.bias:
            out[:, weights:] = self.delta.sum(1, dtype=out.dtype)

    def dense(self) -> Tensor:
        """Multiply the outer products out."""
        weight = (self.delta[..., :, None] * self.input[..., None, :]).flatten(2)
        return torch.cat([weight, self.delta], -1) if self.bias else weight


class Plain(Piece):
    """Gradients kept as they are: `delta` [m, b, size]."""

    names: ClassVar[dict[str, str]] = {"delta": "value"}

    @property
    def size(self) -> int:
        """Numbers per sample."""
        return self.delta.shape[-1]

    def squared_norm(self, *, exact: bool = False) -> Tensor:  # noqa: ARG002 - always in float64
        """Return the sum of squares."""
        return squared_norm(self.delta)

    def sum_into(self, out: Tensor, *, exact: bool = False) -> None:  # noqa: ARG002 - in the precision of `out`
        """Sum over the samples."""
        if out.is_contiguous():
            torch.sum(self.delta, 1, dtype=out.dtype, out=out)
        else:
            out.copy_(self.delta.sum(1, dtype=out.dtype))

    def dense(self) -> Tensor:
        """It already is."""
        return self.delta


class PerSample:
    """The gradients of every sample of a batch, [m models, b samples], layer by layer.

    With `exact`, norms and sums are computed in float64. A float32 sum of b gradients rounds otherwise with one of them
    than without it, in the worst case by b² eps G, and a table's mean would remember that of every step: no share of G
    covers it for all b and K. Norms of layers at many positions could lose as much. With seeded noise there is nothing
    to protect, and float32 is faster.

    `unclipped` are the factors as a table of fewer bits keeps them, whatever the clip does.
    """

    def __init__(
        self, pieces: Sequence[Piece], *, exact: bool = False, unclipped: Sequence[Factors] | None = None
    ) -> None:
        self.pieces = list(pieces)
        self.exact = exact
        self.unclipped = unclipped
        self.factor: Tensor | None = None  # [m, b], what the clip multiplied by

    def norm(self) -> Tensor:
        """Return ‖g_j‖ over all layers, [m, b], in float64 (float32 squares overflow at 1.8e19)."""
        total = self.pieces[0].squared_norm(exact=self.exact)
        for piece in self.pieces[1:]:
            total = total + piece.squared_norm(exact=self.exact)
        return total.sqrt()

    def clip_(self, radius: float, mask: Tensor | None = None, *, exact: bool | None = None) -> None:
        """Scale every gradient into the ball of `radius`; samples outside `mask` count as 0.

        From now on they are `exact`, if that is given.

        Guarantee: afterwards ‖g_j‖ ≤ radius (1 + κ) for every sample, with κ = 1e-6 in float32 and less in float64; for
        layers used at many positions as `positions.Positions` says, and only where this is `exact`. The map is total:
        a gradient that is not finite, or too long to be scaled that exactly (`squared_norm`), becomes 0, so that no
        overflow can mark a sample.

        Assumes: the data are finite. (An input that is the data is not zeroed along with δ: 0 · inf would be NaN.)
        """
        self.exact = self.exact if exact is None else exact
        length = self.norm()
        kept = length.isfinite() if mask is None else length.isfinite() & mask
        factor = (radius / length).clamp(max=1)
        least = torch.finfo(self.pieces[0].delta.dtype).tiny  # smaller ones have few bits
        self.factor = factor.where(kept & (factor >= least), 0.0)
        for piece in self.pieces:
            piece.scale_(self.factor)

    def sum(self) -> Tensor:
        """Return Σ_j g_j for each model, all layers side by side, [m, d]; see `Piece`."""
        first, sizes = self.pieces[0].delta, [piece.size for piece in self.pieces]
        out = first.new_empty(len(first), sum(sizes), dtype=torch.float64 if self.exact else None)
        for piece, columns in zip(self.pieces, torch.split(out, sizes, 1), strict=True):
            piece.sum_into(columns, exact=self.exact)
        return out

    def wide(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Return pieces of these samples in the precision in which they are subtracted."""
        return [in_float64(piece) for piece in pieces] if self.exact else pieces

    def dense(self) -> Tensor:
        """Return the plain gradients, [m, b, d]: for references and small models."""
        return torch.cat([p.dense() for p in self.pieces], -1)


def linear(piece: Piece) -> bool:
    """Tell whether gradients can be added by adding what is kept of them."""
    return len(piece.factors()) == 1


def in_float64(piece: AnyPiece) -> AnyPiece:
    """Return the same gradients with what is kept of them in float64."""
    return replace(piece, **{name: f.double() if f.is_floating_point() else f for name, f in piece.factors().items()})


def kept_numbers(piece: Piece) -> int:
    """Return how many numbers are kept of each sample's gradient."""
    return sum(factor[0, 0].numel() for factor in piece.factors().values())


def smaller(piece: Piece) -> Piece:
    """Return the gradients in their smaller form: as factors, or multiplied out."""
    return piece if kept_numbers(piece) < piece.size else Plain(piece.dense())


def squared_norm(v: Tensor) -> Tensor:
    """Return Σ v² over the last axis in float64, whatever v is stored in.

    A vector longer than ∛max of its precision (7e12 in float32) counts as infinite. Clipping a product
    with it could give numbers below the smallest normal one, and their rounding is not small compared with κ.
    """
    longest = torch.finfo(v.dtype).max ** (1 / 3)
    if at_once(v):
        from privsgp.kernels.rows import squared_sums

        squares = squared_sums(v if v.ndim == 3 else v[None])
        return squares.where(squares <= longest**2, torch.inf).view(v.shape[:-1])
    norm: Tensor = torch.linalg.vector_norm(_shortened(v), dim=-1, dtype=torch.float64)
    return norm.square().where(norm <= longest, torch.inf)


def _shortened(v: Tensor) -> Tensor:
    """Return norms of short pieces of v instead, where float64 would be a copy of everything.

    Sums of 16 squares round by less than κ in any order. A square that overflows stands for a vector that counts as
    infinite; for squares too small to be seen the most that they can be is added.
    """
    size = 16
    pieces = v.shape[-1] // size
    if v.dtype != torch.float32 or v.shape[-1] % size or pieces < 2:
        return v
    short: Tensor = torch.linalg.vector_norm(v.reshape(*v.shape[:-1], pieces, size), dim=-1)
    return short.add_(math.sqrt(size * torch.finfo(v.dtype).tiny))


def scaled(v: Tensor, factor: Tensor) -> Tensor:
    """Return factor [m, b] · v [m, b, …], with 0 · anything = 0."""
    if at_once(flat := v.flatten(2)):
        from privsgp.kernels import rows

        return rows.scaled(flat, factor).view(v.shape)
    f = broadcast(factor, v)
    return torch.where(f == 0, 0, v * f.to(v.dtype))  # laid out as f is, and sums round by how numbers lie


def broadcast(factor: Tensor, v: Tensor) -> Tensor:
    """View a number for each sample, [m, b], so that it can multiply v [m, b, …]."""
    return factor.view(*factor.shape, *[1] * (v.ndim - 2))


def gather(table: Tensor, rows: Tensor, like: Tensor | None = None, factor: Tensor | None = None) -> Tensor:
    """Return table[i, rows[i, j]], times `factor` [m, b], on the device of `rows`, wherever the table lies.

    The numbers have the precision of `like` and are laid out as it is.
    """
    samples_first = like is not None and like.stride(0) < like.stride(1)
    if like is not None and like.is_floating_point() and table.device == rows.device and at_once(table.flatten(2)):
        from privsgp.kernels.rows import take

        m, b, numbers = *rows.shape, table[0, 0].numel()
        out = like.new_empty(b, m, numbers).transpose(0, 1) if samples_first else like.new_empty(m, b, numbers)
        take(table.flatten(2), rows.contiguous(), out, factor)
        return out.view(m, b, *table.shape[2:])
    order = numbered(table, rows).t() if samples_first else numbered(table, rows)
    taken = table.flatten(0, 1).index_select(0, order.flatten()).view(*order.shape, *table.shape[2:])
    found = taken.to(rows.device, table.dtype if like is None else like.dtype)
    found = found.transpose(0, 1) if samples_first else found
    return found if factor is None else found * broadcast(factor, found).to(found.dtype)


def numbered(table: Tensor, rows: Tensor) -> Tensor:
    """Number the rows of all nodes' tables through, [m, b]."""
    starts = torch.arange(len(rows), device=table.device)[:, None] * table.shape[1]
    return rows.to(table.device) + starts
