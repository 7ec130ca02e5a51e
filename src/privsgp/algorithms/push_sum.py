"""The paper's loop, lines 5 to 14 of Algorithm 1; the algorithms on top of it differ only in their direction.

5       draw samples
6-7     g_i = direction(z_i)          this is where SGP, PrivSGP, PrivSGP-VR and PrivSGP-SAG differ
8       g_i += N(0, σ_i² I)
9       x_i^{k+½} = x_i − γ g_i       `steering` may give nodes weights, momentum or steps of one length
10-13   x_i = Σ_j P_ij x_j^{k+½},  w_i = Σ_j P_ij w_j
14      z_i = x_i / w_i
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import torch

from privsgp.algorithms.algorithm import Algorithm
from privsgp.algorithms.block import State

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.algorithms.block import Drawn


class PushSum(Algorithm):
    """Stochastic gradient push for a block of nodes."""

    @abstractmethod
    def direction(self, z: Tensor, batch: list[Drawn]) -> Tensor:
        """Return the nodes' gradient estimates [m, d] at z, before noise; the next call may overwrite them."""

    def step(self, k: int, s: State) -> State:
        """Take step k."""
        batch = self.block.sample(k)  # 5
        g = self.direction(s.z, batch)  # 6-7
        with self.block.lightly():
            self.block.noise(k, g)  # 8
            g = g if self.block.steering is None else self.block.steering(g)
            x = s.x.sub_(g, alpha=self.block.step_size(k))  # 9
            self.block.release(k, x)
            x, w = self.block.mix(k, x, s.w)  # 10-13
            return State(x, w, torch.div(x, w.to(x.dtype)[:, None], out=s.z))  # 14
