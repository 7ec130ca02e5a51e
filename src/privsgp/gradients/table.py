"""SAGA's memory: for every sample of every node the last gradient taken of it, and the mean of them all.

The *dense* table stores gradients as they are: the obvious version. The *factored* one stores for each layer the
factors of its gradients (only δ where the other one is the data itself), or the gradients where those are smaller: the
same gradients, stored better. Entries are clipped gradients, and stay in the ball of radius G for ever. Row J of every
table belongs to no sample: padding slots of a Poisson batch point there, and it stays 0.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from privsgp import devices
from privsgp.devices import at_once
from privsgp.errors import Refused
from privsgp.files import in_units
from privsgp.gradients.per_sample import (
    Factors,
    PerSample,
    Piece,
    Plain,
    broadcast,
    gather,
    in_float64,
    kept_numbers,
    linear,
    numbered,
    smaller,
)
from privsgp.gradients.rounding import CHUNK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Gradients = Callable[[Tensor], PerSample]

Kind = Literal["dense", "factored"]
_SHARE = 0.75  # of what is free; steps need the rest
_LOG = logging.getLogger(__name__)


class Table:
    """The tables of m nodes and their means, `mean` [m, d] = (1/J_i) Σ_j t_j.

    For each layer (when dense, for the whole gradient) a table holds each factor of the gradients, [m, rows, …].

    A mean is updated at every step and never recomputed. So its rounding errors stay, and may differ with and without a
    record. In float64 that is nothing beside G/J; in float32 it could be made as large.

    With fewer bits, `dtype`, there is one `scale` [m, rows] for each entry.

    Guarantee: an entry is then scale · (its rounded factors), and that *is* the sample's gradient: it enters the
    estimator, and the mean moves by stored-new minus stored-old. The scale is the clip's factor for the rounded
    gradient, so it stays in the ball of radius G (docs/proofs/rounding.md).

    Assumes: gradients are `prepared` before they are clipped; others are not taken where there is a scale.
    """

    def __init__(
        self, like: Sequence[Piece], samples: int, clip: float, difference_clip: float | None, dtype: torch.dtype | None
    ) -> None:
        self.clip, self.difference_clip = clip, difference_clip
        self.names = [piece.names for piece in like]
        self.plain = [isinstance(piece, Plain) for piece in like]
        first, where = like[0].delta, _device(like, samples, dtype)
        self.parts = [
            {
                name: torch.zeros((len(f), samples + 1, *f.shape[2:]), dtype=_kept(f, dtype), device=where)
                for name, f in piece.factors().items()
            }
            for piece in like
        ]
        self.mean = first.new_zeros(len(first), sum(piece.size for piece in like), dtype=torch.float64)
        fewer_bits = dtype is not None and dtype != first.dtype
        self.scale = first.new_zeros(len(first), samples + 1) if fewer_bits else None

    def prepared(self, g: PerSample) -> PerSample:
        """Multiply out what is kept plain, and round what is kept in fewer bits, before it is clipped.

        Positions may cancel, and then to multiply them out rounds by more than a clip allows.
        """
        pieces = self._like_parts(g)
        if self.scale is None:
            return PerSample(pieces)
        pieces = self._rounded(pieces)
        return PerSample(pieces, unclipped=[piece.factors() for piece in pieces])

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
        old = self._entries(rows, new)
        if self.difference_clip is not None:
            new = self._towards(g.wide(old), g.wide(new), self.difference_clip)
        self._store(rows, new, g)
        changes = [_minus(*g.wide([n, o])) if self._subtracted(n, g) else n for n, o in zip(new, old, strict=True)]
        total = PerSample(changes, exact=g.exact).sum()
        for piece, columns in zip(old, torch.split(total, [piece.size for piece in old], 1), strict=True):
            if not self._subtracted(piece, g):
                columns.sub_(PerSample([piece], exact=g.exact).sum())
        return total

    def _subtracted(self, piece: Piece, g: PerSample) -> bool:
        """Tell whether gradients are subtracted before they are summed, and not their sums, which takes no copy.

        Tables of fewer bits are large, and to subtract plain gradients is to go through all of them once more.
        """
        return linear(piece) and not (isinstance(piece, Plain) and (g.exact or self.scale is not None))

    def _sum(self, pieces: Sequence[Piece], g: PerSample) -> Tensor:
        """Return the sum of entries, to the bits that `replace` takes out again: where it subtracts, in float64."""
        wide = [in_float64(p) if g.exact and self._subtracted(p, g) else p for p in pieces]
        return PerSample(wide, exact=g.exact).sum()

    def _like_parts(self, g: PerSample) -> Sequence[Piece]:
        """Return the gradients in the form that is stored here."""
        pieces = g.pieces if len(self.parts) == len(g.pieces) else [Plain(g.dense())]
        pairs = zip(self.plain, pieces, strict=True)
        return [Plain(piece.dense()) if plain and not isinstance(piece, Plain) else piece for plain, piece in pairs]

    def _entries(self, rows: Tensor, like: Sequence[Piece]) -> Sequence[Piece]:
        """Return the stored gradients of the samples `rows` [m, b]; `like` brings the input where that is the data.

        δ carries the scale.
        """
        scale = None if self.scale is None else gather(self.scale, rows)
        entries = []
        for stored, piece in zip(self.parts, like, strict=True):
            factors = piece.factors()
            found = {n: gather(a, rows, factors[n], scale if n == "delta" else None) for n, a in stored.items()}
            entries.append(replace(piece, **found))
        return entries

    def _store(self, rows: Tensor, new: Sequence[Piece], g: PerSample) -> None:
        """Replace the stored gradients of the samples `rows`."""
        if self.scale is None:
            for stored, piece in zip(self.parts, new, strict=True):
                for name, factor in piece.factors().items():
                    scatter(stored[name], rows, factor)
            return
        if g.unclipped is None or g.factor is None:
            raise TypeError("a rounded table takes gradients that were prepared, and clipped after that")
        scatter(self.scale, rows, g.factor)
        for stored, factors in zip(self.parts, g.unclipped, strict=True):
            for name, factor in factors.items():
                _put(stored[name], rows, factor, g.factor)

    def _towards(self, old: Sequence[Piece], new: Sequence[Piece], C: float) -> Sequence[Piece]:
        """Return t_j + clip(g_j − t_j, C) as it can be kept, back in the ball of radius G if rounding left it."""
        c = [_minus(n, o) for n, o in zip(new, old, strict=True)]
        PerSample(c).clip_(C)
        moved = [replace(o, delta=o.delta + d.delta) for o, d in zip(old, c, strict=True)]
        PerSample(moved).clip_(self.clip)
        return self._rounded(moved)

    def _rounded(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Return the pieces with their numbers rounded to what can be kept of them."""
        return [
            replace(piece, **{name: _rounded_to(f, stored[name].dtype) for name, f in piece.factors().items()})
            for stored, piece in zip(self.parts, pieces, strict=True)
        ]

    def keep_within(self, radius: float, rows: Tensor, gradients: Gradients) -> Tensor:
        """Let entries of the samples `rows` [m, b] outside the ball of `radius` count as 0; return Σ_j t_j, [m, d]."""
        g = gradients(rows)
        like = self._like_parts(g)
        inside = PerSample(self._entries(rows, like), exact=g.exact).norm() <= radius  # not finite: not inside
        for name, a in self.arrays().items():
            if name != "mean":
                outside = numbered(a, rows.where(~inside, a.shape[1] - 1))
                a.flatten(0, 1).index_fill_(0, outside.flatten(), 0)
        return self._sum(self._entries(rows, like), g)

    def arrays(self) -> Factors:
        """Return everything a checkpoint must keep, by name."""
        named = enumerate(zip(self.names, self.parts, strict=True))
        kept = {f"{i}.{names[name]}": a for i, (names, stored) in named for name, a in stored.items()}
        return kept | {"mean": self.mean} | ({} if self.scale is None else {"scale": self.scale})


def _minus(new: Piece, old: Piece) -> Piece:
    return replace(new, delta=new.delta - old.delta)


def _kept(factor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return (dtype or factor.dtype) if factor.is_floating_point() else torch.int32


def make_table(
    kind: Kind, example: PerSample, samples: int, clip: float, difference_clip: float | None = None,
    dtype: torch.dtype | None = None,
) -> Table:  # fmt: skip
    """Return a table of zeros for `samples` samples a node, for gradients shaped like `example`.

    With clipped differences an entry is a mixture of several gradients of a sample, which has factors only where a
    layer's input never changes; other layers then keep plain gradients.
    `dtype` is what numbers are rounded to, the gradients' own if None.
    """
    whole: Sequence[Piece] = [Plain(example.dense())] if kind == "dense" else example.pieces
    pieces = [p if difference_clip is None or linear(p) else Plain(p.dense()) for p in whole]
    pieces = [smaller(piece) for piece in pieces]
    return Table(pieces, samples, clip, difference_clip, dtype)


def _device(pieces: Sequence[Piece], samples: int, dtype: torch.dtype | None) -> torch.device:
    """Return where the table lies, by its size."""
    first = pieces[0].delta
    kept = [f for piece in pieces for f in piece.factors().values()]
    entry = sum(f[0, 0].numel() * _kept(f, dtype).itemsize for f in kept)
    words = f"{len(first)} × {samples:,} entries of {sum(map(kept_numbers, pieces)):,} numbers"
    return _table_device(len(first) * (samples + 1) * entry, words, first.device)


def fill(table: Table, gradients: Gradients, samples: Tensor, rows: int, chunk: int = CHUNK) -> None:
    """Set every entry to its sample's clipped gradient at x⁰ (the paper's lines 1-3), and the mean with it.

    `gradients(index)` returns the clipped gradients of the samples `index` [m, chunk]; `samples` [m, 1] holds J_i.
    """
    table.mean.zero_()  # its memory serves for the sum
    for index in every(samples, rows, chunk):
        table.mean += table.set(index, gradients(index))
    table.mean /= samples


def restore(table: Table, gradients: Gradients, samples: Tensor, rows: int, radius: float) -> Tensor:
    """Let all that a file may hold and a table may not count as 0; return the mean of its entries, [m, d].

    Guarantee: every entry is in the ball of `radius`, and the row that belongs to no sample is 0. An entry outside is
    not one that was clipped: it counts as 0, as in `PerSample.clip_`.
    Assumes: as `fill`.
    """
    for name, a in table.arrays().items():
        if name != "mean":
            a[:, -1] = 0
    total = torch.zeros_like(table.mean)
    for index in every(samples, rows):
        total += table.keep_within(radius, index, gradients)
    return total.div_(samples)


def every(samples: Tensor, rows: int, chunk: int = CHUNK) -> Iterator[Tensor]:
    """Yield the numbers of all samples [m, chunk]; the padding row's where a node has no more."""
    for start in range(0, rows, chunk):
        index = torch.arange(start, start + chunk, device=samples.device).clamp(max=rows)
        yield index.where(index < samples, rows)


def _table_device(size: int, words: str, device: torch.device) -> torch.device:
    """Return where a table of `size` bytes lies: on the device, or in memory if the device has no room."""
    free = {device: devices.free_on(device), torch.device("cpu"): devices.free_memory()}
    for where, room in free.items():
        if size <= _SHARE * room:
            name = "on the device" if where == device else "in memory"
            _LOG.info("table: %s = %s, %s (%s free)", words, in_units(size), name, in_units(room))
            return where
    what = f"a table of {words} takes {in_units(size)}, and {in_units(max(free.values()))} are free"
    remedy = "algorithm.table_dtype = 'bfloat16', fewer samples a node, or 'privsgp', which keeps no table"
    raise Refused(what, f"a table may take {_SHARE:.0%} of that: take {remedy}")


def _put(table: Tensor, rows: Tensor, value: Tensor, factor: Tensor) -> None:
    """Do `scatter`, with 0 for samples whose factor [m, b] is 0."""
    flat = value.flatten(2)
    if table.device == rows.device and value.is_floating_point() and at_once(table.flatten(2)) and at_once(flat):
        from privsgp.kernels import rows as kernels

        kernels.put(table.flatten(2), rows.contiguous(), flat, factor)
    else:
        scatter(table, rows, value.masked_fill(broadcast(factor, value) == 0, 0))


def _rounded_to(f: Tensor, dtype: torch.dtype) -> Tensor:
    """Return f [m, b, …] as `dtype` has it, in its own precision."""
    flat = f.flatten(2)
    if dtype == torch.bfloat16 and at_once(flat):
        from privsgp.kernels import rows

        return rows.rounded(flat).view(f.shape)
    return f.to(dtype).to(f.dtype)


def scatter(table: Tensor, rows: Tensor, value: Tensor) -> None:
    """table[i, rows[i, j]] = value[i, j]; a row that occurs twice must get the same value."""
    order, value = numbered(table, rows), value.to(table.dtype)
    if value.stride(0) < value.stride(1):
        order, value = order.t(), value.transpose(0, 1)
    table.flatten(0, 1).index_copy_(0, order.flatten(), value.flatten(0, 1).to(table.device))
