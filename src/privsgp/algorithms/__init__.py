"""One file per algorithm; each reads like its pseudo-code and declares what one of its messages reveals."""

from privsgp.algorithms.ad_psgd import ADPSGD
from privsgp.algorithms.adp2_sgd import ADP2SGD
from privsgp.algorithms.algorithm import Algorithm
from privsgp.algorithms.block import Block, Drawn, Settings, State
from privsgp.algorithms.privsgp import PrivSGP
from privsgp.algorithms.privsgp_sag import PrivSGPSAG
from privsgp.algorithms.privsgp_vr import PrivSGPVR
from privsgp.algorithms.push_sum import PushSum
from privsgp.algorithms.sgp import SGP
from privsgp.algorithms.turns import Turns

ALGORITHMS: dict[str, type[Algorithm]] = {a.name: a for a in (SGP, PrivSGP, PrivSGPVR, PrivSGPSAG, ADPSGD, ADP2SGD)}

__all__ = [
    "ADP2SGD",
    "ADPSGD",
    "ALGORITHMS",
    "SGP",
    "Algorithm",
    "Block",
    "Drawn",
    "PrivSGP",
    "PrivSGPSAG",
    "PrivSGPVR",
    "PushSum",
    "Settings",
    "State",
    "Turns",
]
