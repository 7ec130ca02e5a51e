"""PrivSGP-VR (the paper's Algorithm 1): PrivSGP with SAGA's variance reduction.

With t_j the table's entry of sample j, C = 2G for the paper's estimator and smaller for clipped differences:

    c_j = clip(∇f_i(z_i; j) − t_j, C)
    g   = (1/b) Σ_{j∈B} c_j + (1/J) Σ_j t_j
    t_j ← t_j + c_j   for j ∈ B
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privsgp.algorithms.push_sum import PushSum
from privsgp.algorithms.remember import corrected, first_table, restore_table
from privsgp.errors import Refused
from privsgp.privacy.mechanism import Saga

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.algorithms.block import Drawn, Settings
    from privsgp.gradient.table import Memory
    from privsgp.privacy.mechanism import Mechanism


class PrivSGPVR(PushSum):
    """Its mechanism is the mixture of two shifts that `privsgp.privacy.saga` certifies."""

    name: ClassVar[str] = "privsgp-vr"
    options: ClassVar[tuple[str, ...]] = ("difference_clip",)
    table: Memory

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """(1/b) Σ_{j∈B} clip(g_j − t_j, C) + (1/J) Σ_j t_j + N(0, σ²)."""
        if settings.table == "block":
            raise Refused(
                "algorithm.table = 'block' with SAGA's estimator",
                "take 'privsgp-sag': samples that share a coin show it, and SAGA is counted with coins that are secret",
            )
        return Saga(
            sigma=sigma, clip=settings.clip, batch=batch, samples=samples, sampling=settings.sampling, kappa=kappa,
            difference_clip=settings.difference_clip,
        )  # fmt: skip

    def begin(self, z: Tensor) -> None:
        """Lines 1-3: ∇f_i(φ_ij; j) = ∇f_i(z_i⁰; j)."""
        self.__dict__.pop("table", None)  # a second table may not fit beside the first
        self.table = first_table(self.block, self.settings, z, self.settings.difference_clip)

    def arrays(self) -> dict[str, Tensor]:
        """Return the table."""
        return self.table.arrays()

    def restored(self, z: Tensor) -> None:
        """Keep the entries in the ball of radius G."""
        restore_table(self.block, self.settings, self.table, z)

    def direction(self, z: Tensor, batch: list[Drawn]) -> Tensor:
        """Lines 6-7."""
        return corrected(self.block, self.table, z, batch)
