"""What the algorithms with a memory share: the first table, and one batch's worth of replaced entries."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from privsgp.algorithms.block import Drawn
from privsgp.gradient.blocks import BlockTable
from privsgp.gradient.storage import Storage
from privsgp.gradient.table import fill, make_table, restore
from privsgp.kernels import at_once

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.algorithms.block import Block, Settings
    from privsgp.gradient import PerSample
    from privsgp.gradient.table import Memory

_CHUNK = 64  # samples of a node whose first gradients are taken at once
_PIECE = 1 << 18  # numbers of a mean that are moved at once: what they need stays in a core's cache
_LOG = logging.getLogger(__name__)


def first_table(block: Block, settings: Settings, z: Tensor, difference_clip: float | None = None) -> Memory:
    """Return the table at z⁰: every sample's clipped gradient there (the paper), or zeros.

    The entries are never released as they are; only the noised mean is.
    """
    block.prepare = None  # an earlier table's, which is not to stay
    table = _zeros(block, settings, z, difference_clip)
    block.prepare = table.prepared
    if settings.table_init == "gradients":

        def gradients(rows: Tensor) -> PerSample:
            return block.gradients(z, Drawn(rows, rows < block.rows))

        samples = _samples(block, z)
        _LOG.info("table: the gradients of all %s samples at x⁰ come first", f"{sum(samples.tolist()):,}")
        fill(table, gradients, samples, rows=block.rows, chunk=_chunk(settings))
    return table


def restore_table(block: Block, settings: Settings, table: Memory, z: Tensor) -> None:
    """Make of a table that was read from a file what the accountant assumes: |t_j| ≤ G (1 + κ), mean = (1/J) Σ_j t_j.

    Where noise comes from a seed there is nothing to protect, and the mean stays what it was to the bit.
    """

    def gradients(rows: Tensor) -> PerSample:  # whose factors show which form entries have; z does not matter
        return block.gradients(z, Drawn(rows, rows < block.rows))

    mean = restore(
        table, gradients, _samples(block, z), block.mechanisms[0].radius, rows=block.rows, chunk=_chunk(settings)
    )
    if block.exact:
        table.mean.copy_(mean)


def _samples(block: Block, z: Tensor) -> Tensor:
    return torch.tensor([mechanism.samples for mechanism in block.mechanisms], device=z.device)


def _chunk(settings: Settings) -> int:
    """Return how many samples of a node are taken at once: whole blocks."""
    return -(-_CHUNK // settings.block_size) * settings.block_size


def _zeros(block: Block, settings: Settings, z: Tensor, difference_clip: float | None) -> Memory:
    padding = torch.full((z.shape[0], 1), block.rows, device=z.device)
    example = block.gradients(z, Drawn(padding, torch.zeros_like(padding, dtype=torch.bool)))
    storage = Storage(settings.table_place, block.private)
    if settings.table == "block":
        return BlockTable(example, block.rows, settings.block_size, storage)
    dtype: torch.dtype | None = None if settings.table_dtype is None else getattr(torch, settings.table_dtype)
    if dtype == z.dtype:
        dtype = None
    return make_table(
        settings.table, example, block.rows, clip=settings.clip, difference_clip=difference_clip, dtype=dtype,
        storage=storage,
    )  # fmt: skip


def corrected(block: Block, table: Memory, z: Tensor, batch: list[Drawn]) -> Tensor:
    """SAGA's estimate, and its table moved on; [m, d].

    c_j = clip(∇f_i(z_i; j) − t_j, C),   g = (1/b) Σ_{j∈B} c_j + (1/J) Σ_j t_j,   t_j ← t_j + c_j for j ∈ B
    """
    c = replace_all(block, table, z, batch)
    if at_once(c) and c.is_contiguous():
        from privsgp.kernels import means

        return means.corrected(table.mean, c, block.b, block.J)
    b, tall = block.b.to(c.dtype), max(1, _PIECE // c.shape[1]) if c.device.type == "cpu" else len(c)
    with block.lightly():
        for some in (slice(top, top + tall) for top in range(0, len(c), tall)):
            before = table.mean[some].to(c.dtype, copy=True)
            # the mean follows its entries: (1/J) Σ_j (t_j + c_j)
            table.mean[some].addcdiv_(c[some].double(), block.J[some])
            # g = (1/b) Σ_{j∈B} c_j + (1/J) Σ_j t_j, with the table as it was
            torch.addcdiv(before, c[some], b[some], out=c[some])
    return c


def replace_all(block: Block, table: Memory, z: Tensor, batch: list[Drawn]) -> Tensor:
    """Take the gradients of the drawn samples at z and replace their entries; return Σ_{j∈B} c_j, [m, d]."""
    total = table.replace(batch[0].rows, block.gradients(z, batch[0]))
    for drawn in batch[1:]:
        total += table.replace(drawn.rows, block.gradients(z, drawn))
    return total
