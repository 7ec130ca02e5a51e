"""One file per algorithm; each reads like its pseudo-code and declares what one of its messages reveals."""

from privsgp.algorithms.block import Block, Drawn, Settings, State
from privsgp.algorithms.privsgp import PrivSGP
from privsgp.algorithms.privsgp_sag import PrivSGPSAG
from privsgp.algorithms.privsgp_vr import PrivSGPVR
from privsgp.algorithms.push_sum import PushSum
from privsgp.algorithms.sgp import SGP
from privsgp.algorithms.steering import Steering

ALGORITHMS: dict[str, type[PushSum]] = {a.name: a for a in (SGP, PrivSGP, PrivSGPVR, PrivSGPSAG)}

__all__ = [
    "ALGORITHMS",
    "SGP",
    "Block",
    "Drawn",
    "PrivSGP",
    "PrivSGPSAG",
    "PrivSGPVR",
    "PushSum",
    "Settings",
    "State",
    "Steering",
]
