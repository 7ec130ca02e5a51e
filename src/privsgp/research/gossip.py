"""Synchronous gossip on undirected graphs: DP²-SGD, and D-PSGD, which it is without clip and noise."""

from __future__ import annotations

from typing import ClassVar

from privsgp.algorithms.algorithm import Algorithm, Network, cancelling
from privsgp.algorithms.block import State, clipped_mean, moved
from privsgp.algorithms.events import Exchange, Release, Step
from privsgp.algorithms.push_sum import SGP, PrivSGP


class DP2SGD(Algorithm):
    """DP²-SGD (Yu et al. 2021): D-PSGD with Gaussian noise on what the nodes exchange.

        g_i = (1/b) Σ_{j∈B} clip_G(∇f_i(x_i; j))
        x_i ← Σ_j W_ij x_j − γ (g_i + N(0, σ_i² I))

    The paper perturbs a copy of the model before it is sent. Here the noised copy is all there is. If a node went on
    with its own un-noised model, its old gradients would show again in every later message, with fresh noise each time.
    And if it only took its *gradients* at that model, each of them would depend on all old un-noised ones through the
    point at which it is taken: a sample would then move a message by more than γG/b (privacy.md, "Also counted").

    The message of step k + 1 (and the final model) contains the noise of step k: DP-SGD's mechanism.
    """

    name: ClassVar[str] = "dp2-sgd"
    network: ClassVar[Network] = "undirected"
    mechanism = staticmethod(PrivSGP.mechanism)

    @cancelling
    def step(self, k: int, s: State) -> Step:
        """Take step k: combine, then adapt. W is doubly stochastic, so that w stays 1."""
        # g_i = (1/b) Σ_{j∈B} clip_G(∇f_i(x_i; j)) + N(0, σ_i² I), at the model before the averaging
        g = clipped_mean(self.block, s.z, self.block.random.sample(k))
        self.block.random.noise(k, g)
        # x_i ← Σ_j W_ij x_j − γ g_i
        x, _ = yield Exchange(s.x, s.w)
        moved(x, g, self.block.step_size(k))
        yield Release(x)
        return State(x, s.w, s.z.copy_(x))


class DPSGD(DP2SGD):
    """D-PSGD (Lian et al. 2017): every node averages with its neighbours and takes a gradient step. Not private.

    x_i ← Σ_j W_ij x_j − γ g_i(x_i), combine-then-adapt, with a symmetric W. The step is that of `DP2SGD`.

    DP²-SGD with an infinite clip and σ = 0, to the last bit.
    """

    name: ClassVar[str] = "d-psgd"
    private: ClassVar[bool] = False
    mechanism = staticmethod(SGP.mechanism)
