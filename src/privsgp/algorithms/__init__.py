"""One file per family of algorithms; each reads like its pseudo-code and declares what one of its messages reveals."""

from privsgp.algorithms.algorithm import Algorithm
from privsgp.algorithms.anchors import DPSRM, LDPSPIDER, LDPSVRG
from privsgp.algorithms.async_gossip import ADP2SGD, ADPSGD, AsyncTools
from privsgp.algorithms.block import Block, Drawn, Settings, State
from privsgp.algorithms.gossip import DP2SGD, DPSGD
from privsgp.algorithms.push_sum import SGP, PrivSGP, PushSum
from privsgp.algorithms.saga import PrivSGPSAG, PrivSGPVR
from privsgp.algorithms.single import CentralDPSGD, Local
from privsgp.algorithms.soteriafl import SoteriaFLSAGA, SoteriaFLSGD, SoteriaFLSVRG
from privsgp.algorithms.update_rule import UpdateRule

_PUSH_SUM: tuple[type[Algorithm], ...] = (SGP, PrivSGP, PrivSGPVR, PrivSGPSAG)
_GOSSIP: tuple[type[Algorithm], ...] = (DPSGD, DP2SGD, ADPSGD, ADP2SGD)
_SERVER: tuple[type[Algorithm], ...] = (DPSRM, LDPSVRG, LDPSPIDER, SoteriaFLSGD, SoteriaFLSVRG, SoteriaFLSAGA)
_ALONE: tuple[type[Algorithm], ...] = (CentralDPSGD, Local)
ALGORITHMS: dict[str, type[Algorithm]] = {a.name: a for a in (*_PUSH_SUM, *_GOSSIP, *_SERVER, *_ALONE)}

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AsyncTools",
    "Block",
    "Drawn",
    "PrivSGP",
    "PushSum",
    "Settings",
    "State",
    "UpdateRule",
]
