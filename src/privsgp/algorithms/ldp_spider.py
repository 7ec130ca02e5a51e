"""LDP-SPIDER (Lowy et al. 2023): an estimate follows the gradient from step to step, and now and then starts anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privsgp.algorithms.anchors import Anchors

if TYPE_CHECKING:
    from torch import Tensor


class LDPSPIDER(Anchors):
    """Every `period` steps an anchor; in between (1/b) Σ clip_C(g_j(x) − g_j(x')) with x' the step before."""

    name: ClassVar[str] = "ldp-spider"

    def direction(self, k: int, mean: Tensor, x: Tensor) -> Tensor:
        """Anchor: v = mean_i m_i. Otherwise v ← v + mean_i m_i. Either way x' = x."""
        self.point.copy_(x)
        return self.estimate.copy_(mean) if self.is_anchor(k) else self.estimate.add_(mean)
