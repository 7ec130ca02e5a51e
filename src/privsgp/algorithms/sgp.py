"""SGP (Assran et al. 2019): stochastic gradient push without clip and without noise. Not private."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privsgp.accounting.mechanisms import Unprotected
from privsgp.algorithms.privsgp import PrivSGP

if TYPE_CHECKING:
    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.algorithms.block import Settings


class SGP(PrivSGP):
    """PrivSGP with an infinite clip and σ = 0, to the last bit."""

    name: ClassVar[str] = "sgp"
    private: ClassVar[bool] = False

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """(1/b) Σ_{j∈B} g_j, as it is; σ is ignored."""
        del sigma
        return Unprotected(batch=batch, samples=samples, sampling=settings.sampling, kappa=kappa)
