"""D-PSGD (Lian et al. 2017): every node averages with its neighbours and takes a gradient step. Not private.

x_i ← Σ_j W_ij x_j − γ g_i(x_i), combine-then-adapt, with a symmetric W. The step is that of `dp2_sgd.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privsgp.algorithms.dp2_sgd import DP2SGD
from privsgp.algorithms.sgp import SGP

if TYPE_CHECKING:
    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.algorithms.block import Settings


class DPSGD(DP2SGD):
    """DP²-SGD with an infinite clip and σ = 0, to the last bit."""

    name: ClassVar[str] = "d-psgd"
    private: ClassVar[bool] = False

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """(1/b) Σ_{j∈B} g_j, as it is; σ is ignored."""
        return SGP.mechanism(settings, sigma=sigma, batch=batch, samples=samples, kappa=kappa)
