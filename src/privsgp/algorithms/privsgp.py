"""PrivSGP (the paper's Algorithm 2): stochastic gradient push with clipped gradients and Gaussian noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privsgp.accounting.mechanisms import SampledMean
from privsgp.algorithms.estimators import clipped_mean
from privsgp.algorithms.push_sum import PushSum

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.algorithms.block import Drawn, Settings


class PrivSGP(PushSum):
    """A sample moves a message by at most G/b, and only when it is drawn: DP-SGD's subsampled Gaussian."""

    name: ClassVar[str] = "privsgp"

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """(1/b) Σ_{j∈B} clip(g_j) + N(0, σ²)."""
        return SampledMean(
            sigma=sigma, clip=settings.clip, batch=batch, samples=samples, sampling=settings.sampling, kappa=kappa
        )

    def direction(self, z: Tensor, batch: list[Drawn]) -> Tensor:
        """G = (1/b) Σ_{j∈B} clip_G(∇f_i(z_i; j))."""
        return clipped_mean(self.block, z, batch)
