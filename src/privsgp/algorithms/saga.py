"""Algorithms with a table of gradients: PrivSGP-VR (the paper's Algorithm 1, SAGA) and PrivSGP-SAG.

`Tabled` fills the table at z⁰, `replace_entries` moves one batch's worth of entries, `saga_estimate` is lines 6-7.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import torch
from pydantic import model_validator

from privsgp.accounting.mechanisms import Mechanism, Sag, Saga
from privsgp.algorithms.algorithm import Algorithm
from privsgp.algorithms.block import Block, Drawn, Settings
from privsgp.algorithms.push_sum import PushSum
from privsgp.devices import at_once, device_of
from privsgp.errors import Refused
from privsgp.options import Options, Positive, Share, option

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from privsgp.gradients import PerSample
    from privsgp.gradients.table import Table


_PIECE = 1 << 18  # numbers of a mean that are moved at once: what they need stays in a core's cache
_LOG = logging.getLogger(__name__)


class _TableOptions(Options):
    """A table of gradients: what it starts from, and how it is kept."""

    table: Literal["factored", "dense"] = option(
        "factored", "the form in which gradients are kept: factors, or all numbers"
    )
    table_init: Literal["gradients", "zeros"] = option("gradients", "the entries at the start: gradients at x⁰, or 0")
    table_dtype: Literal["float32", "bfloat16"] | None = option(None, "precision of entries; default: engine.dtype")


class SagaOptions(_TableOptions):
    """SAGA's estimator."""

    difference_clip: Positive | None = option(
        None,
        "C: clips each g_j − t_j; default: G with scale auto if the table stays as small, else 2G (no clip)",
    )
    difference_scale: Share | Literal["auto"] = option(
        "auto", "θ: the weight of differences; 1 is the paper's; auto: the largest that costs little noise"
    )

    @model_validator(mode="after")
    def _rounded_entries_are_not_clipped(self) -> Self:
        if self.table_dtype == "bfloat16" and self.difference_clip is not None:
            what = f"algorithm.table_dtype = 'bfloat16' with algorithm.difference_clip = {self.difference_clip}"
            raise Refused(what, "leave one of them out: a rounded entry may move by more than the difference clip")
        return self


def saga_estimate(block: Block, table: Table, z: Tensor, batch: list[Drawn]) -> Tensor:
    """SAGA's estimate, and its table moved on; [m, d].

    c_j = clip(∇f_i(z_i; j) − t_j, C),   g = (θ/b) Σ_{j∈B} c_j + (1/J) Σ_j t_j,   t_j ← t_j + c_j for j ∈ B
    """
    c = replace_entries(block, table, z, batch)
    if at_once(c) and c.is_contiguous():
        from privsgp.kernels import rows

        return rows.corrected(table.mean, c, block.b_over_scale, block.J)
    b, tall = block.b_over_scale.to(c.dtype), device_of(c).rows_at_once(c, _PIECE)
    for some in (slice(top, top + tall) for top in range(0, len(c), tall)):
        before = table.mean[some].to(c.dtype, copy=True)
        # the mean follows its entries: (1/J) Σ_j (t_j + c_j)
        table.mean[some].addcdiv_(c[some].double(), block.J[some])
        # g = (θ/b) Σ_{j∈B} c_j + (1/J) Σ_j t_j, with the table as it was
        torch.addcdiv(before, c[some], b[some], out=c[some])
    return c


def replace_entries(block: Block, table: Table, z: Tensor, batch: list[Drawn]) -> Tensor:
    """Take the gradients of the drawn samples at z and replace their entries; return Σ_{j∈B} c_j, [m, d]."""
    total = table.replace(batch[0].rows, block.gradients(z, batch[0], table.prepared))
    for drawn in batch[1:]:
        total += table.replace(drawn.rows, block.gradients(z, drawn, table.prepared))
    return total


class Tabled(Algorithm):
    """An algorithm whose estimate remembers one gradient for each sample.

    The entries are never released as they are; only the noised mean is.
    """

    table: Table

    def begin(self, z: Tensor) -> None:
        """Lines 1-3: ∇f_i(φ_ij; j) = ∇f_i(z_i⁰; j), every sample's clipped gradient at z⁰ (the paper), or zeros."""
        from privsgp.gradients.table import fill, make_table

        super().begin(z)
        vars(self).pop("table", None)  # a second table may not fit beside the first
        block, o = self.block, self.settings.own(_TableOptions)
        dtype = None if o.table_dtype is None else getattr(torch, o.table_dtype)
        padding = torch.full((z.shape[0], 1), block.rows, device=z.device)
        example = block.gradients(z, Drawn(padding, padding < block.rows))
        clip, difference_clip = self.settings.clip, self.settings.difference_clip
        self.table = make_table(o.table, example, block.rows, clip, difference_clip, dtype)
        if o.table_init == "gradients":
            _LOG.info("table: the gradients of %s samples at x⁰ come first", f"{int(block.samples.sum()):,}")
            fill(self.table, self._gradients(z), block.samples, block.rows)

    def arrays(self) -> dict[str, Tensor]:
        """Return the table too."""
        return super().arrays() | self.table.arrays()

    def restored(self, z: Tensor) -> None:
        """Make of a table from a file what the accountant assumes: |t_j| ≤ G (1 + κ), mean = (1/J) Σ_j t_j.

        With seeded noise there is nothing to protect, and the mean keeps its bits.
        """
        from privsgp.gradients.table import restore

        like = self._gradients(z)  # their factors show which form entries have; z does not matter
        mean = restore(self.table, like, self.block.samples, self.block.rows, self.block.mechanisms[0].radius)
        if self.block.exact:
            self.table.mean.copy_(mean)

    def _gradients(self, z: Tensor) -> Callable[[Tensor], PerSample]:
        """Return the clipped gradients at z by the samples' rows, as the table keeps them."""
        return lambda rows: self.block.gradients(z, Drawn(rows, rows < self.block.rows), self.table.prepared)


class PrivSGPVR(Tabled, PushSum):
    """PrivSGP-VR (the paper's Algorithm 1): PrivSGP with SAGA's variance reduction.

    With t_j the table's entry of sample j, C = 2G and θ = 1 for the paper's estimator, smaller C for clipped
    differences and smaller θ for scaled ones:

        c_j = clip(∇f_i(z_i; j) − t_j, C)
        g   = (θ/b) Σ_{j∈B} c_j + (1/J) Σ_j t_j
        t_j ← t_j + c_j   for j ∈ B

    Its mechanism is the mixture of two shifts that `privsgp.accounting.saga` certifies.
    """

    name: ClassVar[str] = "privsgp-vr"
    Options: ClassVar[type[Options]] = SagaOptions

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """(θ/b) Σ_{j∈B} clip(g_j − t_j, C) + (1/J) Σ_j t_j + N(0, σ²)."""
        return Saga(
            sigma=sigma, clip=settings.clip, batch=batch, samples=samples, kappa=kappa,
            difference_clip=settings.difference_clip, difference_scale=settings.difference_scale,
        )  # fmt: skip

    def direction(self, z: Tensor, batch: list[Drawn]) -> Tensor:
        """Lines 6-7."""
        return saga_estimate(self.block, self.table, z, batch)


class PrivSGPSAG(Tabled, PushSum):
    """PrivSGP-SAG: release the mean of the *updated* table.

        t_j ← clip_G(∇f_i(z_i; j))   for j ∈ B
        g   = (1/J) Σ_j t_j

    A sample contributes t_j / J whether it was drawn or not, so one message moves by at most G/J: a plain Gaussian
    mechanism, for any way of drawing samples (docs/proofs/saga.md).

    Biased where SAGA is not, and much cheaper in privacy at small batches.
    """

    name: ClassVar[str] = "privsgp-sag"
    Options: ClassVar[type[Options]] = _TableOptions

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """(1/J) Σ_j t_j + N(0, σ²)."""
        return Sag(sigma=sigma, clip=settings.clip, batch=batch, samples=samples, kappa=kappa)

    def direction(self, z: Tensor, batch: list[Drawn]) -> Tensor:
        """G = (1/J) Σ_j t_j after the drawn entries were replaced."""
        c = replace_entries(self.block, self.table, z, batch)
        return self.table.mean.addcdiv_(c.double(), self.block.J).to(c.dtype, copy=True)
