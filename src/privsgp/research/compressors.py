"""An unbiased compressor: E C(v) = v and E‖C(v) − v‖² = ω ‖v‖². Its coins are public, so that no indices are sent.

What it compresses already carries its noise: nothing it does can reveal more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from privsgp.errors import Refused
from privsgp.options import Options, Share, option

if TYPE_CHECKING:
    from torch import Tensor


class CompressionOptions(Options):
    """How messages to the server are compressed, after their noise."""

    compressor: Literal["none", "random-k"] = option("none", "how a message is made shorter")
    kept: Share | None = option(None, "share of the coordinates that random-k sends; left out: 0.05")
    shift_rate: Annotated[float, Field(ge=0, le=1)] | None = option(None, "γ_s; left out: as in SoteriaFL's code")

    @model_validator(mode="after")
    def _has_a_use(self) -> Self:
        if self.kept is not None and self.compressor == "none":
            raise Refused(
                f"algorithm.kept = {self.kept} with algorithm.compressor = 'none'",
                "leave it out, or take algorithm.compressor = 'random-k'",
            )
        return self

    def make(self, dim: int) -> RandomK:
        """Return the compressor for messages of so many numbers."""
        return RandomK(dim, dim if self.compressor == "none" else max(1, int((self.kept or 0.05) * dim)))


@dataclass(frozen=True)
class RandomK:
    """(d/k) · v on k coordinates, each set of k equally likely; 0 elsewhere. k = d is no compression."""

    dim: int
    kept: int

    @property
    def omega(self) -> float:
        """E‖C(v) − v‖² = (d/k − 1) ‖v‖²."""
        return self.dim / self.kept - 1

    def size(self, number: int) -> int:
        """Return the bytes of a message whose numbers have so many bytes each: which they are, everybody knows."""
        return self.kept * number

    def __call__(self, v: Tensor, bits: np.random.Philox) -> Tensor:
        """Keep of every row of v [m, d] the k coordinates with the smallest coins."""
        if self.kept == self.dim:
            return v
        coins = bits.random_raw(v.numel()).reshape(v.shape)
        chosen = torch.from_numpy(np.argpartition(coins, self.kept - 1, axis=1)[:, : self.kept]).to(v.device)
        return torch.zeros_like(v).scatter_(1, chosen, v.gather(1, chosen) * (self.dim / self.kept))
