"""SoteriaFL-SAGA: the table of `privsgp_vr.py` on every node; the server keeps none."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privsgp.algorithms.privsgp_vr import PrivSGPVR
from privsgp.algorithms.remember import corrected, first_table, restore_table
from privsgp.algorithms.soteriafl import COMPRESSION, SoteriaFL

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.algorithms.block import Drawn, Settings
    from privsgp.gradient.table import Memory
    from privsgp.privacy.mechanism import Mechanism


class SoteriaFLSAGA(SoteriaFL):
    """Before it is compressed, a message is PrivSGP-VR's."""

    name: ClassVar[str] = "soteriafl-saga"
    options: ClassVar[tuple[str, ...]] = (*COMPRESSION, "difference_clip")
    table: Memory

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """(1/b) Σ_{j∈B} clip(g_j − t_j, C) + (1/J) Σ_j t_j + N(0, σ²)."""
        return PrivSGPVR.mechanism(settings, sigma=sigma, batch=batch, samples=samples, kappa=kappa)

    def begin(self, z: Tensor) -> None:
        """t_j = clip_G(∇f_i(x⁰; j))."""
        super().begin(z)
        self.__dict__.pop("table", None)  # a second table may not fit beside the first
        self.table = first_table(self.block, self.settings, z, self.settings.difference_clip)

    def arrays(self) -> dict[str, Tensor]:
        """Return the table too."""
        return super().arrays() | self.table.arrays()

    def restored(self, z: Tensor) -> None:
        """Keep the entries in the ball of radius G."""
        restore_table(self.block, self.settings, self.table, z)

    def estimate(self, k: int, z: Tensor, batch: list[Drawn]) -> Tensor:
        """ĝ_i = (1/b) Σ_{j∈B} c_j + (1/J) Σ_j t_j."""
        del k
        return corrected(self.block, self.table, z, batch)
