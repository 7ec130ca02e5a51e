"""SoteriaFL-SGD: ĝ_i = (1/b) Σ_{j∈B} clip_G(∇f_i(x; j))."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privsgp.accounting.mechanisms import MeanClipped
from privsgp.algorithms.estimators import clipped_mean
from privsgp.algorithms.privsgp import PrivSGP
from privsgp.algorithms.soteriafl import SoteriaFL

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.algorithms.block import Drawn, Settings


class SoteriaFLSGD(SoteriaFL):
    """Before it is compressed, a message is DP-SGD's."""

    name: ClassVar[str] = "soteriafl-sgd"

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """(1/b) Σ_{j∈B} clip(g_j) + N(0, σ²)."""
        if settings.clip_what == "mean":
            return MeanClipped(
                sigma=sigma, mean_clip=settings.clip, batch=batch, samples=samples, sampling=settings.sampling,
                kappa=kappa,
            )  # fmt: skip
        return PrivSGP.mechanism(settings, sigma=sigma, batch=batch, samples=samples, kappa=kappa)

    def estimate(self, k: int, z: Tensor, batch: list[Drawn]) -> Tensor:
        """ĝ_i = (1/b) Σ_{j∈B} clip_G(∇f_i(x; j))."""
        del k
        return clipped_mean(self.block, z, batch)
