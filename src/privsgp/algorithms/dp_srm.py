"""Distributed DP-SRM (Wang et al. 2023): recursive momentum, by default behind secure aggregation.

    v⁰ = mean_i m_i⁰,   then   v ← (1 − α) v + mean_i m_i

α = 1 is DP-SGD, α = 0 SPIDER without restarts. Under secure aggregation the server sees Σ_i m_i only. Every node adds
N(0, σ²), so that the sum carries √n σ while one sample moves it as it moves its own node's message: per node much less
noise than where every message is seen, and a guarantee that rests on the others' noise too.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar

from privsgp.algorithms.anchors import Anchors

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.accounting.mechanisms import Anchored
    from privsgp.algorithms.algorithm import Trust
    from privsgp.algorithms.block import Block, Settings


class DPSRM(Anchors):
    """`algorithm.trust = "per-node"` counts it as if every message were seen."""

    name: ClassVar[str] = "dp-srm"
    trust: ClassVar[Trust] = "secure aggregation"
    options: ClassVar[tuple[str, ...]] = ("difference_clip", "anchor_batch", "anchor_noise", "alpha", "trust")

    def __init__(self, block: Block, settings: Settings) -> None:
        super().__init__(block, settings)
        self.alpha = settings.alpha

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Anchored:
        """One anchor, then α g_j + (1 − α) clip(g_j − g_j', C)."""
        anchored = Anchors.mechanism(settings, sigma=sigma, batch=batch, samples=samples, kappa=kappa)
        seen_together = settings.nodes if settings.trust == "secure aggregation" else 1
        return dataclasses.replace(anchored, period=None, alpha=settings.alpha, aggregated=seen_together)

    def direction(self, k: int, mean: Tensor, x: Tensor) -> Tensor:
        """Anchor: v = mean_i m_i. Otherwise v ← (1 − α) v + mean_i m_i. Either way x' = x."""
        self.point.copy_(x)
        return self.estimate.copy_(mean) if self.is_anchor(k) else self.estimate.mul_(1 - self.alpha).add_(mean)
