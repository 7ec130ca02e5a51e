"""SAGA's memory: for every sample of every node the last gradient taken of it, and the mean of them all.

The *dense* table stores gradients as they are: the obvious version. The *factored* one stores for each linear layer
the two factors δ and a (only δ where a is the data itself): the same gradients, stored better. Entries are clipped
gradients, and stay in the ball of radius G for ever. Row J of every table belongs to no sample: padding slots of a
Poisson batch point there, and it stays 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor

from privsgp.errors import Refused
from privsgp.gradient.per_sample import Outer, PerSample, Piece, Plain, clip_pieces_, sum_pieces

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Kind = Literal["dense", "factored"]


class Part(Protocol):
    """The table of one layer (or, when dense, of the whole gradient)."""

    arrays: dict[str, Tensor]  # what a checkpoint keeps, each [m, rows, …]

    def entries(self, rows: Tensor, like: Piece) -> Piece:
        """Return the stored gradients of the samples `rows` [m, b]; `like` brings the input where that is the data."""

    def store(self, rows: Tensor, piece: Piece) -> None:
        """Replace the stored gradients of the samples `rows`."""


class PlainPart:
    """Gradients as they are, [m, rows, size]."""

    def __init__(self, piece: Piece, rows: int) -> None:
        example = piece.dense()
        self.arrays = {"value": example.new_zeros(example.shape[0], rows, piece.size)}

    def entries(self, rows: Tensor, like: Piece) -> Plain:  # noqa: ARG002 - the protocol's signature
        """Return the rows."""
        return Plain(_gather(self.arrays["value"], rows))

    def store(self, rows: Tensor, piece: Piece) -> None:
        """Write the rows, multiplied out."""
        _scatter(self.arrays["value"], rows, piece.dense())


class FactorPart:
    """δ and a of a linear layer; only δ where a is the data, which the node holds anyway."""

    def __init__(self, piece: Outer, rows: int) -> None:
        m = piece.delta.shape[0]
        self.arrays = {"delta": piece.delta.new_zeros(m, rows, piece.delta.shape[-1])}
        if not piece.input_is_data:
            self.arrays["input"] = piece.input.new_zeros(m, rows, piece.input.shape[-1])

    def entries(self, rows: Tensor, like: Piece) -> Outer:
        """Return the stored factors; the data as input comes with `like`."""
        assert isinstance(like, Outer)  # noqa: S101 - the table was made from such a piece
        stored = self.arrays.get("input")
        a = like.input if stored is None else _gather(stored, rows)
        return Outer(_gather(self.arrays["delta"], rows), a, like.bias, like.input_is_data)

    def store(self, rows: Tensor, piece: Piece) -> None:
        """Write the factors."""
        assert isinstance(piece, Outer)  # noqa: S101
        _scatter(self.arrays["delta"], rows, piece.delta)
        if "input" in self.arrays:
            _scatter(self.arrays["input"], rows, piece.input)


class Table:
    """The tables of m nodes and their means, `mean` [m, d] = (1/J_i) Σ_j t_j."""

    def __init__(self, parts: Sequence[Part], mean: Tensor, clip: float, difference_clip: float | None) -> None:
        self.parts = list(parts)
        self.mean = mean
        self.clip = clip
        self.difference_clip = difference_clip

    @property
    def entry_size(self) -> int:
        """Numbers stored per sample."""
        return sum(a.shape[-1] for part in self.parts for a in part.arrays.values())

    def set(self, rows: Tensor, g: PerSample) -> Tensor:
        """Make the clipped gradients g the entries of the samples `rows` [m, b]; return Σ_j g_j, [m, d]."""
        new = self._like_parts(g)
        for part, piece in zip(self.parts, new, strict=True):
            part.store(rows, piece)
        return sum_pieces(new)

    def _like_parts(self, g: PerSample) -> Sequence[Piece]:
        return g.pieces if len(self.parts) == len(g.pieces) else [Plain(g.dense())]

    def replace(self, rows: Tensor, g: PerSample) -> Tensor:
        """Move the entries of the samples `rows` [m, b] towards their clipped gradients g; return Σ_j c_j, [m, d].

        c_j = clip(g_j − t_j, C) and t_j ← t_j + c_j; without a difference clip that is t_j ← g_j. The mean is left
        to the caller, because the estimators differ in when it moves.
        """
        new = self._like_parts(g)
        old = [part.entries(rows, piece) for part, piece in zip(self.parts, new, strict=True)]
        if self.difference_clip is not None:
            new = self._towards(old, new, self.difference_clip)
        for part, piece in zip(self.parts, new, strict=True):
            part.store(rows, piece)
        if any(isinstance(p, Outer) and not p.input_is_data for p in new):
            return sum_pieces(new) - sum_pieces(old)
        return sum_pieces([_minus(n, o) for n, o in zip(new, old, strict=True)])

    def _towards(self, old: Sequence[Piece], new: Sequence[Piece], C: float) -> list[Piece]:
        """Return t_j + clip(g_j − t_j, C), put back into the ball of radius G should rounding have left it."""
        c = [_minus(n, o) for n, o in zip(new, old, strict=True)]
        clip_pieces_(c, C)
        moved = [_plus(o, d) for o, d in zip(old, c, strict=True)]
        clip_pieces_(moved, self.clip)
        return moved

    def arrays(self) -> dict[str, Tensor]:
        """Return everything a checkpoint must keep, by name."""
        kept = {f"{i}.{name}": a for i, part in enumerate(self.parts) for name, a in part.arrays.items()}
        return kept | {"mean": self.mean}


def make_table(
    kind: Kind, example: PerSample, samples: int, *, clip: float, difference_clip: float | None = None
) -> Table:
    """Return a table of zeros for `samples` samples a node, for gradients shaped like `example`.

    With clipped differences an entry is a mixture of several gradients of a sample, which has two factors only where
    the layer's input never changes; other layers then keep plain gradients (architecture.md, "Fast by construction").
    """
    if kind not in ("dense", "factored"):
        raise Refused(f"algorithm.table = {kind!r}", "take 'factored' or 'dense'")
    first = example.pieces[0]
    like = first.delta if isinstance(first, Outer) else first.dense()
    pieces: Sequence[Piece] = [Plain(example.dense())] if kind == "dense" else example.pieces
    parts: list[Part] = [
        FactorPart(piece, samples + 1)
        if isinstance(piece, Outer) and (piece.input_is_data or difference_clip is None)
        else PlainPart(piece, samples + 1)
        for piece in pieces
    ]
    mean = like.new_zeros(like.shape[0], example.dim)
    return Table(parts, mean, clip, difference_clip)


def fill(
    table: Table, gradients: Callable[[Tensor], PerSample], samples: Tensor, *, rows: int, chunk: int = 64
) -> None:
    """Set every entry to its sample's clipped gradient at x⁰ (the paper's lines 1-3), and the mean with it.

    `gradients(index)` returns the clipped gradients of the samples `index` [m, chunk]; `samples` [m] holds J_i.
    """
    m = samples.shape[0]
    total = torch.zeros_like(table.mean)
    for start in range(0, rows, chunk):
        index = torch.arange(start, start + chunk, device=samples.device).clamp(max=rows).expand(m, chunk)
        index = index.where(index < samples[:, None], rows)
        total += table.set(index, gradients(index))
    table.mean.copy_(total / samples[:, None])


def _minus(new: Piece, old: Piece) -> Piece:
    """Return the difference of two pieces that can be subtracted: plain ones, or outer products of the same input."""
    if isinstance(new, Outer) and isinstance(old, Outer):
        return Outer(new.delta - old.delta, new.input, new.bias, new.input_is_data)
    return Plain(new.dense() - old.dense())


def _plus(old: Piece, c: Piece) -> Piece:
    if isinstance(old, Outer) and isinstance(c, Outer):
        return Outer(old.delta + c.delta, old.input, old.bias, old.input_is_data)
    return Plain(old.dense() + c.dense())


def _gather(table: Tensor, rows: Tensor) -> Tensor:
    return table[torch.arange(table.shape[0], device=table.device)[:, None], rows]


def _scatter(table: Tensor, rows: Tensor, value: Tensor) -> None:
    table[torch.arange(table.shape[0], device=table.device)[:, None], rows] = value
