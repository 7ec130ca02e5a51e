"""SAGA's memory: for every sample of every node the last gradient taken of it, and the mean of them all.

The *dense* table stores gradients as they are: the obvious version. The *factored* one stores for each layer the
factors of its gradients (only δ where the other one is the data itself), or the gradients where those are smaller: the
same gradients, stored better. Entries are clipped gradients, and stay in the ball of radius G for ever. Row J of every
table belongs to no sample: padding slots of a Poisson batch point there, and it stays 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from privsgp.errors import Refused
from privsgp.gradients.per_sample import (
    Factors,
    PerSample,
    Piece,
    Plain,
    clip_pieces_,
    combined,
    in_float64,
    linear,
    sum_pieces,
)
from privsgp.gradients.tables.storage import clear, gather, gather_like, place, put, rounded, scatter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Gradients = Callable[[Tensor], PerSample]

Kind = Literal["dense", "factored"]


class Part:
    """The table of one layer (or, when dense, of the whole gradient): each factor of its gradients, [m, rows, …]."""

    def __init__(self, piece: Piece, rows: int, device: torch.device, dtype: torch.dtype | None) -> None:
        self.plain = isinstance(piece, Plain)
        self.arrays = {
            name: torch.zeros((f.shape[0], rows, *f.shape[2:]), dtype=_kept(f, dtype), device=device)
            for name, f in piece.factors().items()
        }

    def like(self, piece: Piece) -> Piece:
        """Return a piece in the form that is stored here."""
        return Plain(piece.dense()) if self.plain and not isinstance(piece, Plain) else piece

    def entries(self, rows: Tensor, like: Piece, scale: Tensor | None = None) -> Piece:
        """Return the stored gradients of the samples `rows` [m, b]; `like` brings the input where that is the data.

        With a scale [m, b] they are that times what is stored; the first factor carries it.
        """
        like = self.like(like)
        factors, found = like.factors(), Factors()
        for name, a in self.arrays.items():
            found[name] = gather_like(a, rows, factors[name], None if found else scale)
        return like.with_factors(found)

    def store(self, rows: Tensor, piece: Piece) -> None:
        """Replace the stored gradients of the samples `rows`."""
        for name, factor in piece.factors().items():
            scatter(self.arrays[name], rows, factor)


def _kept(factor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return (dtype or factor.dtype) if factor.is_floating_point() else torch.int32


class Table:
    """The tables of m nodes and their means, `mean` [m, d] = (1/J_i) Σ_j t_j.

    A mean is moved at every step and never taken anew: what it rounds by stays in it, and need not be the same with and
    without a record. In float64 that is nothing beside G/J; in float32 it could be made as large.
    """

    def __init__(self, parts: Sequence[Part], mean: Tensor, clip: float, difference_clip: float | None = None) -> None:
        self.parts = list(parts)
        self.mean = mean
        self.clip = clip
        self.difference_clip = difference_clip

    def prepared(self, g: PerSample) -> PerSample:
        """Multiply out what is kept plain: positions may cancel, and then that rounds by more than a clip allows."""
        return PerSample(self._like_parts(g))

    def set(self, rows: Tensor, g: PerSample) -> Tensor:
        """Make the clipped gradients g the entries of the samples `rows` [m, b]; return Σ_j g_j, [m, d]."""
        new = self._like_parts(g)
        self._store(rows, new, g)
        return self._sum(new, g)

    def replace(self, rows: Tensor, g: PerSample) -> Tensor:
        """Move the entries of the samples `rows` [m, b] towards their clipped gradients g; return Σ_j c_j, [m, d].

        c_j = clip(g_j − t_j, C) and t_j ← t_j + c_j; without a difference clip that is t_j ← g_j. The mean is left
        to the caller, because the estimators differ in when it moves.
        """
        new = self._like_parts(g)
        old: Sequence[Piece] = self._entries(rows, new)
        if self.difference_clip is not None:
            new = self._towards(g.wide(old), g.wide(new), self.difference_clip)
        self._store(rows, new, g)
        pairs, start = zip(new, old, strict=True), 0
        total = sum_pieces([self._minus(n, o, g) if self._subtracted(n, g) else n for n, o in pairs], exact=g.exact)
        for piece in old:
            if not self._subtracted(piece, g):
                total[:, start : start + piece.size] -= sum_pieces([piece], exact=g.exact)
            start += piece.size
        return total

    def _subtracted(self, piece: Piece, g: PerSample) -> bool:
        """Tell whether gradients are subtracted before they are summed, and not their sums, which takes no copy."""
        return linear(piece) and not (g.exact and isinstance(piece, Plain))

    def _sum(self, pieces: Sequence[Piece], g: PerSample) -> Tensor:
        """Return the sum of entries, to the bits that `replace` takes out again: where it subtracts, in float64."""
        wide = [in_float64(p, data=False) if g.exact and self._subtracted(p, g) else p for p in pieces]
        return sum_pieces(wide, exact=g.exact)

    @staticmethod
    def _minus(new: Piece, old: Piece, g: PerSample) -> Piece:
        if g.exact:
            new, old = in_float64(new, data=False), in_float64(old, data=False)
        return combined(new, old, -1)

    def _like_parts(self, g: PerSample) -> Sequence[Piece]:
        pieces = g.pieces if len(self.parts) == len(g.pieces) else [Plain(g.dense())]
        return [part.like(piece) for part, piece in zip(self.parts, pieces, strict=True)]

    def _entries(self, rows: Tensor, like: Sequence[Piece]) -> list[Piece]:
        return [part.entries(rows, piece) for part, piece in zip(self.parts, like, strict=True)]

    def _store(self, rows: Tensor, new: Sequence[Piece], g: PerSample) -> None:  # noqa: ARG002 - see RoundedTable
        for part, piece in zip(self.parts, new, strict=True):
            part.store(rows, piece)

    def _towards(self, old: Sequence[Piece], new: Sequence[Piece], C: float) -> list[Piece]:
        """Return t_j + clip(g_j − t_j, C) as it can be kept, back in the ball of radius G if rounding left it."""
        c = [combined(n, o, -1) for n, o in zip(new, old, strict=True)]
        clip_pieces_(c, C)
        moved = [combined(o, d, 1) for o, d in zip(old, c, strict=True)]
        clip_pieces_(moved, self.clip)
        return [_rounded(piece, part) for part, piece in zip(self.parts, moved, strict=True)]

    def keep_within(self, radius: float, rows: Tensor, gradients: Gradients) -> Tensor:
        """Let entries of the samples `rows` [m, b] outside the ball of `radius` count as 0; return Σ_j t_j, [m, d]."""
        g = gradients(rows)
        like = self._like_parts(g)
        inside = PerSample(self._entries(rows, like), exact=g.exact).norm() <= radius  # not finite: not inside
        for name, a in self.arrays().items():
            if name != "mean":
                clear(a, rows.where(~inside, a.shape[1] - 1))
        return self._sum(self._entries(rows, like), g)

    def arrays(self) -> dict[str, Tensor]:
        """Return everything a checkpoint must keep, by name."""
        kept = {f"{i}.{name}": a for i, part in enumerate(self.parts) for name, a in part.arrays.items()}
        return kept | {"mean": self.mean}


class RoundedTable(Table):
    """A table of factors in fewer bits, with one `scale` [m, rows] for each entry.

    Guarantee: an entry is scale · (its rounded factors), and that *is* the sample's gradient: it enters the estimator,
    and the mean moves by stored-new minus stored-old. The scale is the clip's factor for the rounded gradient, so it
    stays in the ball of radius G (privacy.md, "Clipping").

    Assumes: gradients are `prepared` before they are clipped; others are not taken.
    """

    def __init__(self, parts: Sequence[Part], mean: Tensor, clip: float, scale: Tensor) -> None:
        super().__init__(parts, mean, clip)
        self.scale = scale

    def prepared(self, g: PerSample) -> PerSample:
        """Round the gradients to what can be kept of them."""
        return _Rounded([_rounded(piece, part) for piece, part in zip(self._like_parts(g), self.parts, strict=True)])

    def _subtracted(self, piece: Piece, g: PerSample) -> bool:  # noqa: ARG002 - whichever they are
        """Such tables are large, and to subtract plain gradients is to go through all of them once more."""
        return linear(piece) and not isinstance(piece, Plain)

    def _entries(self, rows: Tensor, like: Sequence[Piece]) -> list[Piece]:
        scale = gather(self.scale, rows)
        return [part.entries(rows, piece, scale) for part, piece in zip(self.parts, like, strict=True)]

    def _store(self, rows: Tensor, new: Sequence[Piece], g: PerSample) -> None:  # noqa: ARG002 - those are clipped
        if not isinstance(g, _Rounded) or g.factor is None:
            raise TypeError("a rounded table takes gradients that were prepared, and clipped after that")
        scatter(self.scale, rows, g.factor)
        for part, factors in zip(self.parts, g.unclipped, strict=True):
            for name, factor in factors.items():
                put(part.arrays[name], rows, factor, g.factor)

    def arrays(self) -> dict[str, Tensor]:
        """Return the scales too."""
        return super().arrays() | {"scale": self.scale}


class _Rounded(PerSample):
    """Gradients whose factors were rounded as a table keeps them; `unclipped` are those, whatever the clip does."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        super().__init__(pieces)
        self.unclipped = [piece.factors() for piece in pieces]


def _rounded(piece: Piece, part: Part) -> Piece:
    return piece.with_factors({name: rounded(f, part.arrays[name].dtype) for name, f in piece.factors().items()})


def make_table(
    kind: Kind,
    example: PerSample,
    samples: int,
    *,
    clip: float,
    difference_clip: float | None = None,
    dtype: torch.dtype | None = None,
) -> Table:
    """Return a table of zeros for `samples` samples a node, for gradients shaped like `example`.

    With clipped differences an entry is a mixture of several gradients of a sample, which has factors only where a
    layer's input never changes; other layers then keep plain gradients (architecture.md, "Fast by construction").
    `dtype` is what numbers are rounded to, the gradients' own if None.
    """
    whole: Sequence[Piece] = [Plain(example.dense())] if kind == "dense" else example.pieces
    pieces = [piece if _worth_factors(piece, difference_clip) else Plain(piece.dense()) for piece in whole]
    like = next(iter(pieces[0].factors().values()))
    mean = like.new_zeros(example.models, example.dim, dtype=torch.float64)
    if dtype is not None and difference_clip is not None:
        raise Refused(
            f"algorithm.table_dtype = '{str(dtype).removeprefix('torch.')}' with algorithm.difference_clip",
            "leave one of them out: a rounded entry may move by more than the difference clip",
        )
    where = _place(pieces, example.models, samples, dtype)
    parts = [Part(piece, samples + 1, where, dtype) for piece in pieces]
    if dtype is not None and dtype != like.dtype:
        return RoundedTable(parts, mean, clip, like.new_zeros(example.models, samples + 1))
    return Table(parts, mean, clip, difference_clip)


def _place(pieces: Sequence[Piece], models: int, samples: int, dtype: torch.dtype | None) -> torch.device:
    """Return where the table lies, by its size."""
    kept = [f for piece in pieces for f in piece.factors().values()]
    numbers = sum(f[0, 0].numel() for f in kept)
    entry = sum(f[0, 0].numel() * _kept(f, dtype).itemsize for f in kept)
    words = f"{models} × {samples:,} entries of {numbers:,} numbers"
    return place(models * (samples + 1) * entry, words, kept[0].device)


def fill(table: Table, gradients: Gradients, samples: Tensor, *, rows: int, chunk: int) -> None:
    """Set every entry to its sample's clipped gradient at x⁰ (the paper's lines 1-3), and the mean with it.

    `gradients(index)` returns the clipped gradients of the samples `index` [m, chunk]; `samples` [m] holds J_i.
    """
    table.mean.zero_()  # its memory serves for the sum
    for index in _every(samples, rows, chunk):
        table.mean += table.set(index, gradients(index))
    table.mean /= samples[:, None]


def restore(table: Table, gradients: Gradients, samples: Tensor, radius: float, *, rows: int, chunk: int) -> Tensor:
    """Let all that a file may hold and a table may not count as 0; return the mean of its entries, [m, d].

    Guarantee: every entry is in the ball of `radius`, and the row that belongs to no sample is 0. An entry outside is
    not one that was clipped: it counts as 0, as in `PerSample.clip_`.
    Assumes: as `fill`.
    """
    for name, a in table.arrays().items():
        if name != "mean":
            a[:, -1] = 0
    total = torch.zeros_like(table.mean)
    for index in _every(samples, rows, chunk):
        total += table.keep_within(radius, index, gradients)
    return total.div_(samples[:, None])


def _every(samples: Tensor, rows: int, chunk: int) -> Iterator[Tensor]:
    """Yield the numbers of all samples [m, chunk]; the padding row's where a node has no more."""
    for start in range(0, rows, chunk):
        index = torch.arange(start, start + chunk, device=samples.device).clamp(max=rows).expand(len(samples), chunk)
        yield index.where(index < samples[:, None], rows)


def _worth_factors(piece: Piece, difference_clip: float | None) -> bool:
    smaller = sum(f[0, 0].numel() for f in piece.factors().values()) < piece.size
    return smaller and (difference_clip is None or linear(piece))
