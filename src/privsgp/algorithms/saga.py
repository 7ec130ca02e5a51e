"""Algorithms with a table of gradients: PrivSGP-VR (the paper's Algorithm 1, SAGA) and PrivSGP-SAG.

`init_table` fills the table at z⁰, `replace_entries` moves one batch's worth of entries, `saga_estimate` is lines 6-7.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

import torch

from privsgp.accounting.mechanisms import Sag, Saga
from privsgp.algorithms.block import Drawn
from privsgp.algorithms.push_sum import PushSum
from privsgp.errors import Refused
from privsgp.gradients.tables.blocks import BlockTable
from privsgp.gradients.tables.storage import Storage
from privsgp.gradients.tables.table import fill, make_table
from privsgp.kernels import at_once

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.algorithms.block import Block, Settings
    from privsgp.gradients import PerSample
    from privsgp.gradients.tables.table import Memory


_CHUNK = 64  # samples of a node whose first gradients are taken at once
_PIECE = 1 << 18  # numbers of a mean that are moved at once: what they need stays in a core's cache
_LOG = logging.getLogger(__name__)


def init_table(block: Block, settings: Settings, z: Tensor, difference_clip: float | None = None) -> Memory:
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


def saga_estimate(block: Block, table: Memory, z: Tensor, batch: list[Drawn]) -> Tensor:
    """SAGA's estimate, and its table moved on; [m, d].

    c_j = clip(∇f_i(z_i; j) − t_j, C),   g = (1/b) Σ_{j∈B} c_j + (1/J) Σ_j t_j,   t_j ← t_j + c_j for j ∈ B
    """
    c = replace_entries(block, table, z, batch)
    if at_once(c) and c.is_contiguous():
        from privsgp.kernels import means

        return means.corrected(table.mean, c, block.b, block.J)
    b, tall = block.b.to(c.dtype), max(1, _PIECE // c.shape[1]) if c.device.type == "cpu" else len(c)
    with block.leave_one_core():
        for some in (slice(top, top + tall) for top in range(0, len(c), tall)):
            before = table.mean[some].to(c.dtype, copy=True)
            # the mean follows its entries: (1/J) Σ_j (t_j + c_j)
            table.mean[some].addcdiv_(c[some].double(), block.J[some])
            # g = (1/b) Σ_{j∈B} c_j + (1/J) Σ_j t_j, with the table as it was
            torch.addcdiv(before, c[some], b[some], out=c[some])
    return c


def replace_entries(block: Block, table: Memory, z: Tensor, batch: list[Drawn]) -> Tensor:
    """Take the gradients of the drawn samples at z and replace their entries; return Σ_{j∈B} c_j, [m, d]."""
    total = table.replace(batch[0].rows, block.gradients(z, batch[0]))
    for drawn in batch[1:]:
        total += table.replace(drawn.rows, block.gradients(z, drawn))
    return total


class PrivSGPVR(PushSum):
    """PrivSGP-VR (the paper's Algorithm 1): PrivSGP with SAGA's variance reduction.

    With t_j the table's entry of sample j, C = 2G for the paper's estimator and smaller for clipped differences:

        c_j = clip(∇f_i(z_i; j) − t_j, C)
        g   = (1/b) Σ_{j∈B} c_j + (1/J) Σ_j t_j
        t_j ← t_j + c_j   for j ∈ B

    Its mechanism is the mixture of two shifts that `privsgp.accounting.saga` certifies.
    """

    name: ClassVar[str] = "privsgp-vr"
    options: ClassVar[tuple[str, ...]] = ("difference_clip",)
    table: Memory

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """(1/b) Σ_{j∈B} clip(g_j − t_j, C) + (1/J) Σ_j t_j + N(0, σ²)."""
        if settings.table == "block":
            raise Refused(
                "algorithm.table = 'block' with SAGA's estimator",
                "take 'privsgp-sag': samples that share a coin show it, and SAGA is counted with coins that are secret",
            )
        return Saga(
            sigma=sigma, clip=settings.clip, batch=batch, samples=samples, sampling=settings.sampling, kappa=kappa,
            difference_clip=settings.difference_clip,
        )  # fmt: skip

    def begin(self, z: Tensor) -> None:
        """Lines 1-3: ∇f_i(φ_ij; j) = ∇f_i(z_i⁰; j)."""
        self.__dict__.pop("table", None)  # a second table may not fit beside the first
        self.table = init_table(self.block, self.settings, z, self.settings.difference_clip)

    def arrays(self) -> dict[str, Tensor]:
        """Return the table."""
        return self.table.arrays()

    def direction(self, z: Tensor, batch: list[Drawn]) -> Tensor:
        """Lines 6-7."""
        return saga_estimate(self.block, self.table, z, batch)


class PrivSGPSAG(PushSum):
    """PrivSGP-SAG: release the mean of the *updated* table.

        t_j ← clip_G(∇f_i(z_i; j))   for j ∈ B
        g   = (1/J) Σ_j t_j

    A sample contributes t_j / J whether it was drawn or not, so one message moves by at most G/J: a plain Gaussian
    mechanism, for any way of drawing samples (privacy.md, "Two estimators that make variance reduction pay").

    Biased where SAGA is not, and much cheaper in privacy at small batches.
    """

    name: ClassVar[str] = "privsgp-sag"
    table: Memory

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """(1/J) Σ_j t_j + N(0, σ²)."""
        return Sag(
            sigma=sigma, clip=settings.clip, batch=batch, samples=samples, sampling=settings.sampling, kappa=kappa
        )

    def begin(self, z: Tensor) -> None:
        """Fill the table at z⁰, as PrivSGP-VR does."""
        self.__dict__.pop("table", None)  # a second table may not fit beside the first
        self.table = init_table(self.block, self.settings, z)

    def arrays(self) -> dict[str, Tensor]:
        """Return the table."""
        return self.table.arrays()

    def direction(self, z: Tensor, batch: list[Drawn]) -> Tensor:
        """G = (1/J) Σ_j t_j after the drawn entries were replaced."""
        c = replace_entries(self.block, self.table, z, batch)
        return self.table.mean.addcdiv_(c.double(), self.block.J).to(c.dtype, copy=True)
