"""Per-sample gradients of m models on b samples each, as values that can be measured, clipped and summed.

A gradient is a row of *pieces*, one per layer, in the order of the flat parameter vector. A linear layer's piece is
the outer product δ ⊗ (a, 1) and is kept as its two factors, as are those of `positions` and `embedding`; anything else
is kept plain. The clip is over the *whole* gradient: all pieces share one norm and one factor (privacy.md, "Clipping").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import torch
from torch import Tensor

from privsgp.devices import device_of
from privsgp.gradients.product import product
from privsgp.kernels import at_once

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_AT_ONCE = 1 << 23  # numbers of products that lie in memory beside their sum
_LARGE = 1 << 14  # weights of a product that is worth a call
Factors = dict[str, Tensor]
AnyPiece = TypeVar("AnyPiece", bound="Piece")


class Piece(Protocol):
    """One layer's share of the per-sample gradients."""

    @property
    def size(self) -> int:
        """How many parameters the layer has."""

    def squared_norm(self) -> Tensor:
        """Return ‖g_j‖² of this layer for every sample, [m, b], in float64."""

    def scale_(self, factor: Tensor) -> None:
        """Multiply every sample's gradient by its factor [m, b]; a factor 0 gives 0 whatever the gradient was."""

    def sum_into(self, out: Tensor) -> None:
        """Write Σ_j g_j into out [m, size]."""

    def exact(self) -> Piece:
        """Return the same gradients, to be measured and added where a sum must not tell who is in it.

        Guarantee: what `sum_into` adds, in float64, is for each sample a function of its own factors alone, and no
        longer than `squared_norm` says by more than κ/2, now and scaled by a factor of at most 1.
        """

    def dense(self) -> Tensor:
        """Return the plain gradients, [m, b, size]: the obvious version."""

    def factors(self, *, data: bool = False) -> Factors:
        """Return what a table has to keep of the gradients, each [m, b, …]; g is linear in a factor that is alone.

        A factor that is the data, which the node holds anyway, comes only with `data`.
        """

    def with_factors(self, factors: Mapping[str, Tensor]) -> Self:
        """Return the piece of the same layer with these factors; an input that is the data stays."""


@dataclass
class Outer:
    """A linear layer's gradients δ ⊗ (a, 1): `delta` [m, b, out], `input` [m, b, in], never multiplied out."""

    delta: Tensor
    input: Tensor
    bias: bool
    input_is_data: bool = False

    @property
    def size(self) -> int:
        """Out × in weights, and out biases."""
        return self.delta.shape[-1] * (self.input.shape[-1] + self.bias)

    def squared_norm(self) -> Tensor:
        """‖δ ⊗ (a, 1)‖² = ‖δ‖² (‖a‖² + 1)."""
        return squared_norm(self.delta) * (squared_norm(self.input) + self.bias)

    def scale_(self, factor: Tensor) -> None:
        """Scale δ; where the factor is 0 both factors become 0, so that 0 · inf cannot come back as NaN."""
        self.delta = scaled(self.delta, factor)
        if not self.input_is_data:
            self.input = self.input.masked_fill((factor == 0)[..., None], 0)

    def sum_into(self, out: Tensor) -> None:
        """Σ_j δ_j ⊗ a_j is one matrix product per model; in float64 on a CPU large ones are taken one by one."""
        m, _, outputs = self.delta.shape
        weights = outputs * self.input.shape[-1]
        if out.dtype != self.input.dtype and weights >= _LARGE and device_of(out).in_host_memory:
            for row, delta, a in zip(out, self.delta, self.input, strict=True):  # neither factor is copied as a whole
                torch.mm(delta.double().t(), a.double(), out=row[:weights].view(outputs, -1))
        else:
            some = max(2, _AT_ONCE // weights) if device_of(out).in_host_memory else m  # bits do not depend on it
            for rows in (slice(top, top + some) for top in range(0, m, some)):
                products = product(self.delta[rows].to(out.dtype).mT, self.input[rows].to(out.dtype))
                out[rows, :weights] = products.reshape(-1, weights)
        if self.bias:
            out[:, weights:] = self.delta.sum(1, dtype=out.dtype)

    def exact(self) -> Outer:
        """Return them as they are: `sum_into` multiplies in the precision of what it is given."""
        return self

    def dense(self) -> Tensor:
        """Multiply the outer products out."""
        weight = (self.delta[..., :, None] * self.input[..., None, :]).flatten(2)
        return torch.cat([weight, self.delta], -1) if self.bias else weight

    def factors(self, *, data: bool = False) -> Factors:
        """Return δ and a."""
        return {"delta": self.delta} if self.input_is_data and not data else {"delta": self.delta, "input": self.input}

    def with_factors(self, factors: Mapping[str, Tensor]) -> Self:
        """Return other outer products."""
        return replace(self, **factors)  # type: ignore[arg-type]


@dataclass
class Plain:
    """Gradients kept as they are, `value` [m, b, size]."""

    value: Tensor

    @property
    def size(self) -> int:
        """Numbers per sample."""
        return self.value.shape[-1]

    def squared_norm(self) -> Tensor:
        """Return the sum of squares."""
        return squared_norm(self.value)

    def scale_(self, factor: Tensor) -> None:
        """Scale each sample's row."""
        self.value = scaled(self.value, factor)

    def sum_into(self, out: Tensor) -> None:
        """Sum over the samples, in the precision of `out`."""
        if out.is_contiguous():
            torch.sum(self.value, 1, dtype=out.dtype, out=out)
        else:
            out.copy_(self.value.sum(1, dtype=out.dtype))

    def exact(self) -> Plain:
        """Return them as they are: to add them in float64 takes no copy."""
        return self

    def dense(self) -> Tensor:
        """It already is."""
        return self.value

    def factors(self, *, data: bool = False) -> Factors:
        """Return the gradient itself."""
        del data
        return {"value": self.value}

    def with_factors(self, factors: Mapping[str, Tensor]) -> Self:
        """Return other gradients."""
        return replace(self, value=factors["value"])


class PerSample:
    """The gradients of every sample of a batch, [m models, b samples], layer by layer.

    Where they are `exact`, norms and sums are formed in float64. A float32 sum of b gradients rounds otherwise with one
    of them than without it, in the worst case by b² eps G, and a table's mean would remember that of every step: no
    share of G covers it for all b and K. Norms of layers at many positions could lose as much. Where noise is drawn
    from a seed there is nothing to protect, and float32 is faster.
    """

    def __init__(self, pieces: Sequence[Piece], *, exact: bool = False) -> None:
        self.pieces = list(pieces)
        self.exact = exact
        self.factor: Tensor | None = None  # [m, b], what the clip multiplied by

    @property
    def models(self) -> int:
        """The number m of models in the block."""
        return next(iter(self.pieces[0].factors().values())).shape[0]

    @property
    def dim(self) -> int:
        """The paper's d."""
        return sum(p.size for p in self.pieces)

    def norm(self) -> Tensor:
        """Return ‖g_j‖ over all layers, [m, b], in float64 (float32 squares overflow at 1.8e19)."""
        return norm([piece.exact() for piece in self.pieces] if self.exact else self.pieces)

    def clip_(self, radius: float, mask: Tensor, *, exact: bool | None = None) -> None:
        """Scale every gradient into the ball of `radius`; samples outside `mask` count as 0.

        From now on they are `exact`, if that is given.

        Guarantee: afterwards ‖g_j‖ ≤ radius (1 + κ) for every sample, with κ = 1e-6 in float32 and less in float64; for
        layers used at many positions as `positions.Positions` says, and only where this is `exact`. The map is total:
        a gradient that is not finite, or too long to be scaled that exactly (`squared_norm`), becomes 0, so that no
        overflow can mark a sample.

        Assumes: the data are finite. (An input that is the data is not zeroed along with δ: 0 · inf would be NaN.)
        """
        self.exact = self.exact if exact is None else exact
        self.factor = clip_pieces_(self.pieces, radius, mask, exact=self.exact)

    def sum(self) -> Tensor:
        """Return Σ_j g_j for each model, [m, d]."""
        return sum_pieces(self.pieces, exact=self.exact)

    def wide(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Return pieces of these samples in the precision in which they are subtracted."""
        return [in_float64(piece) for piece in pieces] if self.exact else pieces

    def dense(self) -> Tensor:
        """Return the plain gradients, [m, b, d]: for references and small models."""
        return torch.cat([p.dense() for p in self.pieces], -1)


def minus(g: PerSample, h: PerSample) -> PerSample:
    """Return g_j − h_j for the same samples: by factors where those add up, plain elsewhere."""
    pairs = zip(g.wide(g.pieces), h.wide(h.pieces), strict=True)
    pieces = [combined(a, b, -1) if linear(a) else Plain(a.dense() - b.dense()) for a, b in pairs]
    return PerSample(pieces, exact=g.exact)


def linear(piece: Piece) -> bool:
    """Tell whether gradients can be added by adding what is kept of them."""
    return len(piece.factors()) == 1


def combined(a: Piece, b: Piece, sign: int) -> Piece:
    """Return a ± b for pieces that are linear in what is kept of them."""
    (name, value), (other,) = next(iter(a.factors().items())), b.factors().values()
    return a.with_factors({name: value + other if sign > 0 else value - other})


def in_float64(piece: AnyPiece, *, data: bool = True) -> AnyPiece:
    """Return the same gradients in float64; a factor that is the data may wait."""
    factors = piece.factors(data=data).items()
    return piece.with_factors({name: f.double() if f.is_floating_point() else f for name, f in factors})


def smaller(piece: Piece) -> Piece:
    """Return the gradients in their smaller form: as factors, or multiplied out."""
    kept = sum(factor[0, 0].numel() for factor in piece.factors().values())
    return piece if kept < piece.size else Plain(piece.dense())


def norm(pieces: Sequence[Piece]) -> Tensor:
    """Return the norm over all pieces, [m, b], in float64."""
    total = pieces[0].squared_norm()
    for piece in pieces[1:]:
        total = total + piece.squared_norm()
    return total.sqrt()


def clip_pieces_(pieces: Sequence[Piece], radius: float, mask: Tensor | None = None, *, exact: bool = False) -> Tensor:
    """Scale every sample's pieces, by one factor, into the ball of `radius`; see `PerSample.clip_`.

    Return the factors, [m, b].
    """
    length = norm([piece.exact() for piece in pieces] if exact else pieces)
    kept = length.isfinite() if mask is None else length.isfinite() & mask
    factor = (radius / length).clamp(max=1)
    first = next(iter(pieces[0].factors().values()))
    factor = factor.where(kept & (factor >= torch.finfo(first.dtype).tiny), 0.0)  # smaller ones have few bits
    for piece in pieces:
        piece.scale_(factor)
    return factor


def sum_pieces(pieces: Sequence[Piece], *, exact: bool = False) -> Tensor:
    """Return the sum over the samples of a batch, all layers side by side, [m, d]; see `Piece.exact`."""
    first = next(iter(pieces[0].factors().values()))
    out = first.new_empty(first.shape[0], sum(p.size for p in pieces), dtype=torch.float64 if exact else None)
    start = 0
    for piece in pieces:
        (piece.exact() if exact else piece).sum_into(out[:, start : start + piece.size])
        start += piece.size
    return out


def squared_norm(v: Tensor) -> Tensor:
    """Return Σ v² over the last axis in float64, whatever v is stored in.

    A vector longer than ∛max of its precision (7e12 in float32) counts as infinite: to clip what it is a factor of
    could take numbers below the smallest normal one, whose rounding is no longer small beside κ.
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
    """Return factor · v per sample, with 0 · anything = 0."""
    if at_once(v) and v.ndim == 3:
        from privsgp.kernels import rows

        return rows.scaled(v, factor)
    f = factor[..., None]
    return torch.where(f == 0, 0, v * f.to(v.dtype))
