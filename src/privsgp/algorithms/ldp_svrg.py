"""LDP-SVRG (Lowy et al. 2023): a full gradient at an anchor now and then, differences against it in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privsgp.algorithms.anchors import Anchors

if TYPE_CHECKING:
    from torch import Tensor


class LDPSVRG(Anchors):
    """Every `period` steps an anchor, which is a step too; in between (1/b) Σ clip_C(g_j(x) − g_j(x')) on top of it."""

    name: ClassVar[str] = "ldp-svrg"

    def direction(self, k: int, mean: Tensor, x: Tensor) -> Tensor:
        """Anchor: x' = x, a = mean_i m_i, v = a. Otherwise v = a + mean_i m_i."""
        if self.is_anchor(k):
            self.point.copy_(x)
            return self.estimate.copy_(mean)
        return self.estimate + mean
