"""PrivSGP-SAG: release the mean of the *updated* table.

    t_j ← clip_G(∇f_i(z_i; j))   for j ∈ B
    g   = (1/J) Σ_j t_j

A sample contributes t_j / J whether it was drawn or not, so one message moves by at most G/J: a plain Gaussian
mechanism, for any way of drawing samples (privacy.md, "Two estimators that make variance reduction pay").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privsgp.algorithms.push_sum import PushSum
from privsgp.algorithms.remember import first_table, replace_all, restore_table
from privsgp.privacy.mechanism import Sag

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.algorithms.block import Drawn, Settings
    from privsgp.gradient.table import Memory
    from privsgp.privacy.mechanism import Mechanism


class PrivSGPSAG(PushSum):
    """Biased where SAGA is not, and much cheaper in privacy at small batches."""

    name: ClassVar[str] = "privsgp-sag"
    table: Memory

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """(1/J) Σ_j t_j + N(0, σ²)."""
        return Sag(
            sigma=sigma, clip=settings.clip, batch=batch, samples=samples, sampling=settings.sampling, kappa=kappa
        )

    def begin(self, z: Tensor) -> None:
        """Fill the table at z⁰, as PrivSGP-VR does."""
        self.__dict__.pop("table", None)  # a second table may not fit beside the first
        self.table = first_table(self.block, self.settings, z)

    def arrays(self) -> dict[str, Tensor]:
        """Return the table."""
        return self.table.arrays()

    def restored(self, z: Tensor) -> None:
        """Keep the entries in the ball of radius G."""
        restore_table(self.block, self.settings, self.table, z)

    def direction(self, z: Tensor, batch: list[Drawn]) -> Tensor:
        """G = (1/J) Σ_j t_j after the drawn entries were replaced."""
        c = replace_all(self.block, self.table, z, batch)
        return self.table.mean.addcdiv_(c.double(), self.block.J).to(c.dtype, copy=True)
