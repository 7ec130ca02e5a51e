"""The common part of SVRG, SPIDER and SRM: a server, anchors, and differences to a public point.

    anchor       m_i = (1/J) Σ_j g_j(x) + N(0, σ_i²)
    otherwise    m_i = (1/b) Σ_{j∈B} [α g_j(x) + (1 − α) clip_C(g_j(x) − g_j(x'))] + N(0, σ_i²)
    server       v from the mean of all m_i and what it remembers;  x ← x − γ v

g_j = clip_G(∇f_i(·; j)); α = 0 but for SRM. x, x' and v are made of released messages alone, so the next release has no
hidden state, and each is counted on its own (`Anchored`).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch

from privsgp.accounting.compound import Anchored, Summed
from privsgp.algorithms.algorithm import Algorithm, Network, Trust
from privsgp.algorithms.block import Block, Drawn, Settings, State, clipped_mean
from privsgp.algorithms.events import Release, Step, ToServer
from privsgp.options import Count, Options, Positive, Share, option
from privsgp.research.estimates import difference_mean

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.accounting.mechanisms import Mechanism


class _AnchorOptions(Options):
    """The common part of methods with anchors."""

    difference_clip: Positive | None = option(None, "C: clips each difference of two gradients; default: 2G, no clip")


class _PeriodicOptions(_AnchorOptions):
    """Anchors that come again."""

    period: Count = option(10, "steps from one anchor to the next")


class _RecursiveOptions(_AnchorOptions):
    """One anchor, then recursive momentum."""

    alpha: Share = option(0.1, "α: the share of the plain gradient; 1 is DP-SGD")


class Anchors(Algorithm):
    """A server method that remembers a `point` x' (the same row for every node) and an `estimate` [d] there."""

    network: ClassVar[Network] = "server"
    Options: ClassVar[type[Options]] = _PeriodicOptions
    alpha = 0.0

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """Anchors and differences in turn."""
        return _anchored(settings, settings.own(_PeriodicOptions).period, sigma, batch, samples, kappa)

    @property
    def difference_clip(self) -> float | None:
        """C, None for 2G."""
        return self.settings.own(_AnchorOptions).difference_clip

    def begin(self, z: Tensor) -> None:
        """Set x' = x⁰; the first release is an anchor, so that nothing of the estimate is used before it is set."""
        from privsgp.gradients.product import aligned_rows

        self.point = aligned_rows(z, z.shape[1]).copy_(z)
        self.estimate = torch.zeros_like(z[0])

    def arrays(self) -> dict[str, Tensor]:
        """Return x' and the estimate."""
        return {"point": self.point, "estimate": self.estimate}

    def is_anchor(self, k: int) -> bool:
        """Tell whether the release of step k is an anchor."""
        return self.block.mechanisms[0].is_anchor(k)

    @abstractmethod
    def direction(self, k: int, mean: Tensor, x: Tensor) -> Tensor:
        """Return the server's v from the mean of the messages of step k, and remember what the next step needs."""

    def step(self, k: int, s: State) -> Step:
        """Take step k."""
        m = self._message(k, s.z, self.block.random.sample(k))
        self.block.random.noise(k, m)
        m = m.to(s.x.dtype)  # now it may be rounded
        yield Release(m)
        mean = yield ToServer(m, m[0].nbytes)
        v = self.direction(k, mean, s.z)
        # x ← x − γ v, the same for all nodes
        x = s.x.sub_(v, alpha=self.block.step_size(k))
        return State(x, s.w, s.z.copy_(x))

    def _message(self, k: int, z: Tensor, batch: list[Drawn]) -> Tensor:
        if self.is_anchor(k):
            return clipped_mean(self.block, z, batch, self.block.batch(k))
        return difference_mean(self.block, z, self.point, batch, self.difference_clip, self.alpha)


def _anchored(
    settings: Settings, period: int | None, sigma: float, batch: float, samples: int, kappa: float
) -> Anchored:
    return Anchored(
        sigma=sigma, clip=settings.clip, batch=batch, samples=samples, kappa=kappa,
        period=period, difference_clip=settings.own(_AnchorOptions).difference_clip, spare=settings.spare,
    )  # fmt: skip


class DPSRM(Anchors):
    """Distributed DP-SRM (Wang et al. 2023): recursive momentum, by default behind secure aggregation.

        v⁰ = mean_i m_i⁰,   then   v ← (1 − α) v + mean_i m_i

    α = 1 is DP-SGD, α = 0 SPIDER without restarts. Under secure aggregation the server sees Σ_i m_i only. Every node
    adds N(0, σ²), so that the sum carries √n σ while one sample moves it as it moves its own node's message: per node
    much less noise than where every message is seen, and a guarantee that rests on the others' noise too.

    `algorithm.trust = "per-node"` counts it as if every message were seen.
    """

    name: ClassVar[str] = "dp-srm"
    trust: ClassVar[Trust] = "secure aggregation"
    trusts: ClassVar[tuple[Trust, ...]] = ("per-node", "secure aggregation")
    Options: ClassVar[type[Options]] = _RecursiveOptions

    def __init__(self, block: Block, settings: Settings) -> None:
        super().__init__(block, settings)
        self.alpha = settings.own(_RecursiveOptions).alpha

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """One anchor, then α g_j + (1 − α) clip(g_j − g_j', C)."""
        anchored = _anchored(settings, None, sigma, batch, samples, kappa)
        anchored = anchored.changed(alpha=settings.own(_RecursiveOptions).alpha)
        return Summed(anchored, settings.nodes) if settings.trust == "secure aggregation" else anchored

    def direction(self, k: int, mean: Tensor, x: Tensor) -> Tensor:
        """Anchor: v = mean_i m_i. Otherwise v ← (1 − α) v + mean_i m_i. Either way x' = x."""
        self.point.copy_(x)
        return self.estimate.copy_(mean) if self.is_anchor(k) else self.estimate.mul_(1 - self.alpha).add_(mean)


class LDPSVRG(Anchors):
    """LDP-SVRG (Lowy et al. 2023): a full gradient at an anchor now and then, differences against it in between.

    Every `period` steps an anchor, which is a step too; in between (1/b) Σ clip_C(g_j(x) − g_j(x')) on top of it.
    """

    name: ClassVar[str] = "ldp-svrg"

    def direction(self, k: int, mean: Tensor, x: Tensor) -> Tensor:
        """Anchor: x' = x, a = mean_i m_i, v = a. Otherwise v = a + mean_i m_i."""
        if self.is_anchor(k):
            self.point.copy_(x)
            return self.estimate.copy_(mean)
        return self.estimate + mean


class LDPSPIDER(Anchors):
    """LDP-SPIDER (Lowy et al. 2023): an estimate follows the gradient from step to step, and now and then starts anew.

    Every `period` steps an anchor; in between (1/b) Σ clip_C(g_j(x) − g_j(x')) with x' the step before.
    """

    name: ClassVar[str] = "ldp-spider"

    def direction(self, k: int, mean: Tensor, x: Tensor) -> Tensor:
        """Anchor: v = mean_i m_i. Otherwise v ← v + mean_i m_i. Either way x' = x."""
        self.point.copy_(x)
        return self.estimate.copy_(mean) if self.is_anchor(k) else self.estimate.add_(mean)
