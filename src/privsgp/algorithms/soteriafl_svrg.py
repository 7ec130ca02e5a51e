"""SoteriaFL-SVRG: differences against an anchor w that a public coin renews (loopless).

    ĝ_i = (1/b) Σ_{j∈B} clip_C(g_j(x) − g_j(w)) + (1/J) Σ_j g_j(w),   g_j = clip_G(∇f_i(·; j))
    w ← x with probability p, after ĝ_i was taken

The full local gradient at w stays inside, without noise of its own; only the noised sum leaves. So one release is the
mixture of two shifts that SAGA's is, with t_j = g_j(w) and c_j = clip_C(g_j(x) − g_j(w)): |t_j| ≤ G, |c_j| ≤ C, and
t_j + c_j lies on the chord from g_j(w) to g_j(x), inside the ball. w is public and has no coins in it, so this is the
easier case of what `Saga` counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privsgp.algorithms.estimators import difference_mean, full_mean
from privsgp.algorithms.privsgp_vr import PrivSGPVR
from privsgp.algorithms.soteriafl import COMPRESSION, SoteriaFL
from privsgp.algorithms.soteriafl_sgd import SoteriaFLSGD
from privsgp.gradient.product import aligned_rows

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.algorithms.block import Drawn, Settings
    from privsgp.privacy.mechanism import Mechanism


class SoteriaFLSVRG(SoteriaFL):
    """One anchor for all nodes; p is b/J unless it is given."""

    name: ClassVar[str] = "soteriafl-svrg"
    options: ClassVar[tuple[str, ...]] = (*COMPRESSION, "difference_clip", "anchor_probability")

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """(1/b) Σ_{j∈B} clip(g_j(x) − g_j(w), C) + (1/J) Σ_j g_j(w) + N(0, σ²)."""
        declare = SoteriaFLSGD.mechanism if settings.clip_what == "mean" else PrivSGPVR.mechanism
        return declare(settings, sigma=sigma, batch=batch, samples=samples, kappa=kappa)

    def begin(self, z: Tensor) -> None:
        """Set w = x⁰."""
        super().begin(z)
        self.point = aligned_rows(z, z.shape[1]).copy_(z)
        self.full = full_mean(self.block, z)

    def arrays(self) -> dict[str, Tensor]:
        """Return w and the full local gradients there too; the latter are for the site alone."""
        return super().arrays() | {"point": self.point, "full": self.full}

    def restored(self, z: Tensor) -> None:
        """Take (1/J) Σ_j g_j(w) anew: it has no noise of its own, and w is public."""
        del z
        self.full.copy_(full_mean(self.block, self.point))

    def estimate(self, k: int, z: Tensor, batch: list[Drawn]) -> Tensor:
        """ĝ_i = (1/b) Σ_{j∈B} clip_C(g_j(x) − g_j(w)) + (1/J) Σ_j g_j(w); then the coin for w."""
        g = difference_mean(self.block, z, self.point, batch, self.settings.difference_clip).add_(self.full)
        if self.renews(k):
            self.point.copy_(z)
            self.full.copy_(full_mean(self.block, z))
        return g

    def renews(self, k: int) -> bool:
        """Toss the public coin of step k."""
        given = self.settings.anchor_probability
        p = self.block.mechanisms[0].rate if given is None else given
        return float(self.block.public("anchor", k).random_raw()) * 2.0**-64 < p
