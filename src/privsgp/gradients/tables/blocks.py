"""Block tables: one entry for each fixed, public block of a node's samples, for models whose table fits nowhere.

Sample j belongs to block ⌊j / size⌋. A block is drawn as a whole, and its entry is the sum of its samples' clipped
gradients. Nothing but sums is ever taken of an entry: each sample's share stays in the ball of radius G, as if it had
an entry of its own (privacy.md, "Clipping").
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Self

import torch

from privsgp.gradients.per_sample import PerSample, Piece, sum_pieces
from privsgp.gradients.tables.storage import Storage, clear, gather, scatter

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.gradients.tables.table import Gradients


class BlockTable:
    """Sums of blocks, [m, blocks + 1, d]; the last row belongs to none and stays 0.

    Assumes: the slots of a batch hold whole blocks, `size` slots each; those of samples that are not there hold the
    padding row, but a block that was drawn begins with a sample.
    """

    def __init__(self, example: PerSample, samples: int, size: int, storage: Storage) -> None:
        first = next(iter(example.pieces[0].factors().values()))
        self.size, self.samples, self.blocks = size, samples, -(-samples // size)
        words = f"{example.models} × {self.blocks:,} sums of {size:,} gradients of {example.dim:,} numbers"
        shape = (example.models, self.blocks + 1, example.dim)
        dtype = torch.float64 if example.exact else first.dtype  # a sum rounds otherwise without one of its records
        where = storage.settled(torch.Size(shape).numel() * dtype.itemsize, words, first.device)
        self.sums = where.zeros(shape, dtype, first.device)
        self.mean = first.new_zeros(example.models, example.dim, dtype=torch.float64)  # see `Table`

    def of_nodes(self, nodes: slice) -> Self:
        """Return the sums of some of the nodes, in the same memory."""
        some = copy.copy(self)
        some.sums, some.mean = self.sums[nodes], self.mean[nodes]
        return some

    @property
    def entry_bytes(self) -> float:
        """Memory per sample."""
        return self.sums[0, 0].nbytes / self.size

    def prepared(self, g: PerSample) -> PerSample:
        """Return the gradients themselves: sums are not rounded further."""
        return g

    def set(self, rows: Tensor, g: PerSample) -> Tensor:
        """Make the clipped gradients g the entries of their blocks; return Σ_j g_j, [m, d]."""
        new = self._sums(g)
        scatter(self.sums, self.places(rows), new)
        return new.sum(1)

    def replace(self, rows: Tensor, g: PerSample) -> Tensor:
        """Replace the entries of the drawn blocks; return the sum of new minus old, [m, d]."""
        blocks, new = self.places(rows), self._sums(g)
        old = gather(self.sums, blocks)
        scatter(self.sums, blocks, new)
        return new.sub_(old).sum(1)

    def places(self, rows: Tensor) -> Tensor:
        """Return which blocks the samples `rows` make up, [m, slots / size]."""
        first = rows[:, :: self.size]
        return (first // self.size).where(first < self.samples, self.blocks)

    def _sums(self, g: PerSample) -> Tensor:
        """Return Σ g_j over every `size` slots, [m, slots / size, d]: as many small batches as there are blocks."""
        sums = sum_pieces([_split(piece, self.size) for piece in g.pieces], exact=g.exact)
        return sums.view(g.models, -1, g.dim)

    def keep_within(self, radius: float, rows: Tensor, gradients: Gradients) -> Tensor:
        """Let sums longer than those of as many gradients of `radius` count as 0; return the sum of all, [m, d]."""
        del gradients
        blocks = self.places(rows)
        most = radius * (rows < self.samples).view(*blocks.shape, self.size).sum(-1)
        inside = torch.linalg.vector_norm(gather(self.sums, blocks), dim=-1, dtype=torch.float64) <= most
        clear(self.sums, blocks.where(~inside, self.blocks))
        return gather(self.sums, blocks).sum(1)

    def arrays(self) -> dict[str, Tensor]:
        """Return everything a checkpoint must keep, by name."""
        return {"sums": self.sums, "mean": self.mean}


def _split(piece: Piece, size: int) -> Piece:
    """Show every `size` samples of a model as the batch of a model of its own."""
    factors = piece.factors(data=True)
    return piece.with_factors({name: f.reshape(-1, size, *f.shape[2:]) for name, f in factors.items()})
