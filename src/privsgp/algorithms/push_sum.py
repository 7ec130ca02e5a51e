"""The paper's loop, lines 5 to 14 of Algorithm 1; the algorithms on top of it differ only in their direction.

5       draw samples
6-7     g_i = direction(z_i)          this is where SGP, PrivSGP, PrivSGP-VR and PrivSGP-SAG differ
8       g_i += N(0, σ_i² I)
9       x_i^{k+½} = x_i − γ g_i       `update_rule` may give nodes weights, momentum or steps of one length
10-13   x_i = Σ_j P_ij x_j^{k+½},  w_i = Σ_j P_ij w_j
14      z_i = x_i / w_i

With τ = `local_steps` > 1, lines 10-13 come at every τ-th step only. Each step before has noise of its own, and of its
pairs, before the next gradient is taken: a message is made of τ releases, and the ledger has all of them.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch

from privsgp.accounting.mechanisms import Mechanism, SampledMean, Unprotected
from privsgp.algorithms.algorithm import Algorithm, cancelling
from privsgp.algorithms.block import Block, Drawn, Settings, State, clipped_mean
from privsgp.algorithms.events import Exchange, Release, Step

if TYPE_CHECKING:
    from torch import Tensor


# --8<-- [start:loop]
class PushSum(Algorithm):
    """Stochastic gradient push for a block of nodes."""

    def __init__(self, block: Block, settings: Settings) -> None:
        super().__init__(block, settings)
        self.recorded = block.recorded(self.direction, self.arrays)

    @abstractmethod
    def direction(self, z: Tensor, batch: list[Drawn]) -> Tensor:
        """Return the nodes' gradient estimates [m, d] at z, before noise; the next call may overwrite them."""

    @cancelling
    def step(self, k: int, s: State) -> Step:
        """Take step k."""
        g = self.recorded(s.z, self.block.random.sample(k))  # 5-7
        x = self.block.descend(k, g, s.x)  # 8-9: x −= γ (g + noise)
        yield Release(x)
        w = s.w
        if (k + 1) % self.settings.local_steps == 0:
            x, w = yield Exchange(x, w)  # 10-13
        return State(x, w, torch.div(x, w.to(x.dtype)[:, None], out=s.z))  # 14: z = x / w


class PrivSGP(PushSum):
    """PrivSGP (the paper's Algorithm 2): stochastic gradient push with clipped gradients and Gaussian noise.

    A sample moves a message by at most G/b, and only when it is drawn: DP-SGD's subsampled Gaussian.
    """

    name: ClassVar[str] = "privsgp"

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """(1/b) Σ_{j∈B} clip(g_j) + N(0, σ²)."""
        return SampledMean(sigma=sigma, clip=settings.clip, batch=batch, samples=samples, kappa=kappa)

    def direction(self, z: Tensor, batch: list[Drawn]) -> Tensor:
        """G = (1/b) Σ_{j∈B} clip_G(∇f_i(z_i; j))."""
        return clipped_mean(self.block, z, batch)


# --8<-- [end:loop]
class SGP(PrivSGP):
    """SGP (Assran et al. 2019): stochastic gradient push without clip and without noise. Not private.

    PrivSGP with an infinite clip and σ = 0, to the last bit.
    """

    name: ClassVar[str] = "sgp"
    private: ClassVar[bool] = False

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """(1/b) Σ_{j∈B} g_j, as it is; σ is ignored."""
        del sigma, settings
        return Unprotected(batch=batch, samples=samples, kappa=kappa)
