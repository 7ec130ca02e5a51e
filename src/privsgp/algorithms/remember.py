"""What the algorithms with a memory share: the first table, and one batch's worth of replaced entries."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from privsgp.algorithms.block import Drawn
from privsgp.gradients.tables.blocks import BlockTable
from privsgp.gradients.tables.storage import Storage
from privsgp.gradients.tables.table import fill, make_table
from privsgp.kernels import at_once

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.algorithms.block import Block, Settings
    from privsgp.gradients import PerSample
    from privsgp.gradients.tables.table import Memory

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

        samples = torch.tensor([mechanism.samples for mechanism in block.mechanisms], device=z.device)
        _LOG.info("table: the gradients of all %s samples at x⁰ come first", f"{sum(samples.tolist()):,}")
        whole_blocks = -(-_CHUNK // settings.block_size) * settings.block_size
        fill(table, gradients, samples, rows=block.rows, chunk=whole_blocks)
    return table


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
