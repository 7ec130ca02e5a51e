"""Asynchronous gossip: nodes act one at a time, n events a step, in the order of a public clock.

A node counts its own gradients. Coins, noise and payments go by (node, number), never by the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from privsgp.algorithms.algorithm import Algorithm, Network
from privsgp.algorithms.block import Block, Settings, State, clipped_mean
from privsgp.algorithms.events import Meet, Release, Step
from privsgp.algorithms.push_sum import SGP, PrivSGP

if TYPE_CHECKING:
    from torch import Tensor


class ADP2SGD(Algorithm):
    """A(DP)²SGD (Xu, Zhang, Wang 2021): asynchronous gossip with clipped gradients and Gaussian noise.

    At each event of the clock, with x̂_i the model that node i held when it began to compute:

        g̃        = (1/b) Σ_{j∈B} clip_G(∇f_i(x̂_i; j)) + N(0, σ_i² I)
        x_i, x_j ← (x_i + x_j) / 2      j a neighbour, drawn at each event
        x_i      ← x_i − γ g̃
        x̂_i      ← x_i                  and i computes again

    Only the subsampled Gaussian must be counted. Node i sends x_i, at its own events and at its neighbours'. x_i is a
    function of x⁰, of others' messages, and of i's own g̃, each noised before its first use. x̂_i is an earlier x_i.
    So an observer that knows the node's g̃ so far and all acts of others can compute every message of i, and the point
    x̂_i of its next gradient. That gradient moves by at most G/b, and only if the sample is drawn, whatever came
    before. Node i makes as many releases as it has events; the clock is public, so their number K_i is known
    ahead, and its noise is calibrated for it.
    """

    name: ClassVar[str] = "adp2-sgd"
    network: ClassVar[Network] = "undirected"
    asynchronous: ClassVar[bool] = True
    read: Tensor  # x̂, [n, d]
    counts: Tensor  # how many gradients each node has used, [n]
    g: Tensor  # gradients at x̂, before noise, of the nodes in `_ready`

    def __init__(self, block: Block, settings: Settings) -> None:
        super().__init__(block, settings)
        self._ready: set[int] = set()

    mechanism = staticmethod(PrivSGP.mechanism)

    def begin(self, z: Tensor) -> None:
        """Every node reads x⁰."""
        from privsgp.gradients.product import aligned_rows

        self.read = aligned_rows(z, z.shape[1]).copy_(z)
        self.counts = torch.zeros(len(z), dtype=torch.int64)
        self.g = self.block.zeros(z)
        self._ready.clear()

    def arrays(self) -> dict[str, Tensor]:
        """Return where the nodes compute, and which gradient of theirs.

        The checkpoint leaves out gradients that no event has used. A resumed run without a seed draws new coins for
        them: the old gradients may have been released after the checkpoint, and each coin is counted as drawn once.
        """
        return {"read": self.read, "counts": self.counts}

    def step(self, k: int, s: State) -> Step:
        """Take the n events of step k."""
        x, random = s.x, self.block.random
        for _, i, j, number in random.events(k):
            g = self._gradient(i)
            random.noise(number, g, i)  # g̃ = g + N(0, σ_i² I)
            yield Meet(i, j, x)  # x_i, x_j ← (x_i + x_j) / 2
            x[i].sub_(g[0], alpha=self.block.step_size(k))  # x_i ← x_i − γ g̃
            yield Release(x[i], i, number)
            self.read[i] = x[i]  # x̂_i ← x_i
            self.counts[i] += 1
        return State(x, s.w, s.z.copy_(x))

    def _gradient(self, i: int) -> Tensor:
        """Return (1/b) Σ_{j∈B} clip_G(∇f_i(x̂_i; j)), [1, d].

        A gradient depends on nothing but x̂_i and its own coins: when one is missing, all that are missing are computed
        in one pass, in which nodes that have theirs draw nothing.
        """
        if i not in self._ready:
            missing = [node for node in range(len(self.g)) if node not in self._ready]
            batch = self.block.random.sample_some({node: int(self.counts[node]) for node in missing})
            self.g[missing] = clipped_mean(self.block, self.read, batch)[missing]
            self._ready.update(missing)
        self._ready.remove(i)
        return self.g[i : i + 1]


class ADPSGD(ADP2SGD):
    """AD-PSGD (Lian et al. 2018): asynchronous decentralised SGD without clip and without noise. Not private.

    A(DP)²SGD with an infinite clip and σ = 0, to the last bit.
    """

    name: ClassVar[str] = "ad-psgd"
    private: ClassVar[bool] = False
    mechanism = staticmethod(SGP.mechanism)
