"""Every node alone, at its own (ε_i, δ_i): no message ever leaves. It answers whether joining pays.

    g_i = (1/b) Σ_{j∈B} clip_G(∇f_i(x_i; j)) + N(0, σ_i² I)
    x_i ← x_i − γ g_i

A node's model is what it may show others, so all K steps are counted as if each had been seen.
"""

from __future__ import annotations

from typing import ClassVar

from privsgp.algorithms.algorithm import Algorithm, Network, Trust
from privsgp.algorithms.block import State, clipped_mean, moved
from privsgp.algorithms.events import Release, Step
from privsgp.algorithms.push_sum import PrivSGP


class Local(Algorithm):
    """DP-SGD on each node's own data."""

    name: ClassVar[str] = "local"
    network: ClassVar[Network] = "alone"
    mechanism = staticmethod(PrivSGP.mechanism)

    def step(self, k: int, s: State) -> Step:
        """Take step k."""
        # g_i = (1/b) Σ_{j∈B} clip_G(∇f_i(x_i; j)) + N(0, σ_i² I)
        g = clipped_mean(self.block, s.z, self.block.random.sample(k))
        self.block.random.noise(k, g)
        # x_i ← x_i − γ g_i
        x = moved(s.x, g, self.block.step_size(k))
        yield Release(x)
        return State(x, s.w, s.z.copy_(x))


class CentralDPSGD(Local):
    """DP-SGD (Abadi et al. 2016): all nodes' data pooled on one node, which everybody has to trust.

    It draws with the same probability q = b/J as the nodes would, so that its batch is n·b, and keeps to the smallest
    ε_i and δ_i of them all. The step is that of `Local`.

    A server that sees all data, at the same budget.
    """

    name: ClassVar[str] = "dp-sgd"
    trust: ClassVar[Trust] = "curator"
    pooled: ClassVar[bool] = True
