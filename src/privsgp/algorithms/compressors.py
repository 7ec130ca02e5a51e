"""Unbiased compressors: E C(v) = v and E‖C(v) − v‖² ≤ ω ‖v‖². Their coins are public, so that no indices are sent.

What they compress already carries its noise: nothing they do can reveal more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, Protocol, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from privsgp.errors import Refused
from privsgp.options import Count, Options, Share, option

if TYPE_CHECKING:
    from torch import Tensor


class Compressor(Protocol):
    """C, for vectors of d numbers."""

    @property
    def omega(self) -> float:
        """The variance ω."""

    def size(self, number: int) -> int:
        """Return the bytes of a message whose numbers have so many bytes each."""

    def __call__(self, v: Tensor, bits: np.random.Philox) -> Tensor:
        """Return C(v_i) for every row of v [m, d], each with coins of its own."""


class CompressionOptions(Options):
    """How messages to the server are compressed, after their noise."""

    compressor: Literal["none", "random-k", "quantisation"] = option("none", "how a message is made shorter")
    kept: Share | None = option(None, "share of the coordinates that random-k sends; left out: 0.05")
    levels: Count | None = option(None, "levels of quantisation on either side of 0; left out: 16")
    shift_rate: Annotated[float, Field(ge=0, le=1)] | None = option(None, "γ_s; left out: as in SoteriaFL's code")

    @model_validator(mode="after")
    def _has_a_use(self) -> Self:
        for key, compressor in (("kept", "random-k"), ("levels", "quantisation")):
            if getattr(self, key) is not None and self.compressor != compressor:
                raise Refused(
                    f"algorithm.{key} = {getattr(self, key)} with algorithm.compressor = {self.compressor!r}",
                    f"leave it out, or take algorithm.compressor = {compressor!r}",
                )
        return self

    def make(self, dim: int) -> Compressor:
        """Return the compressor for messages of so many numbers."""
        if self.compressor == "random-k":
            return RandomK(dim, max(1, int((self.kept or 0.05) * dim)))
        if self.compressor == "quantisation":
            return Quantisation(dim, self.levels or 16)
        return Whole(dim)


@dataclass(frozen=True)
class Whole:
    """No compression."""

    dim: int
    omega: float = 0.0

    def size(self, number: int) -> int:
        """All numbers."""
        return self.dim * number

    def __call__(self, v: Tensor, bits: np.random.Philox) -> Tensor:
        """Return v itself."""
        del bits
        return v


@dataclass(frozen=True)
class RandomK:
    """(d/k) · v on k coordinates, each set of k equally likely; 0 elsewhere."""

    dim: int
    kept: int

    @property
    def omega(self) -> float:
        """E‖C(v) − v‖² = (d/k − 1) ‖v‖²."""
        return self.dim / self.kept - 1

    def size(self, number: int) -> int:
        """The numbers alone: which they are, everybody knows."""
        return self.kept * number

    def __call__(self, v: Tensor, bits: np.random.Philox) -> Tensor:
        """Keep the k coordinates with the smallest coins."""
        coins = bits.random_raw(v.numel()).reshape(v.shape)
        chosen = torch.from_numpy(np.argpartition(coins, self.kept - 1, axis=1)[:, : self.kept]).to(v.device)
        return torch.zeros_like(v).scatter_(1, chosen, v.gather(1, chosen) * (self.dim / self.kept))


@dataclass(frozen=True)
class Quantisation:
    """‖v‖ · sign(v) · (a whole number of 1/s), rounded up or down at random so that the mean is right (QSGD)."""

    dim: int
    levels: int

    @property
    def omega(self) -> float:
        """Alistarh et al. 2017, Lemma 3.1: min(d/s², √d/s)."""
        return min(self.dim / self.levels**2, math.sqrt(self.dim) / self.levels)

    def size(self, number: int) -> int:
        """One of 2s + 1 levels for each coordinate, and the norm."""
        return math.ceil(self.dim * math.ceil(math.log2(2 * self.levels + 1)) / 8) + number

    def __call__(self, v: Tensor, bits: np.random.Philox) -> Tensor:
        """Round |v| s / ‖v‖ down after a uniform number was added."""
        coins = torch.from_numpy(bits.random_raw(v.numel()).reshape(v.shape) * 2.0**-64).to(v)
        unit: Tensor = torch.linalg.vector_norm(v, dim=1, keepdim=True) / self.levels
        level = torch.floor(v.abs() / unit + coins)
        return (unit * v.sign() * level).where(unit > 0, 0.0)
