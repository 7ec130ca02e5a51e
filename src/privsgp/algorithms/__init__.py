"""One file per algorithm; each reads like its pseudo-code and declares what one of its messages reveals."""

from privsgp.algorithms.ad_psgd import ADPSGD
from privsgp.algorithms.adp2_sgd import ADP2SGD
from privsgp.algorithms.algorithm import Algorithm
from privsgp.algorithms.block import Block, Drawn, Settings, State
from privsgp.algorithms.d_psgd import DPSGD
from privsgp.algorithms.dp2_sgd import DP2SGD
from privsgp.algorithms.dp_sgd import CentralDPSGD
from privsgp.algorithms.dp_srm import DPSRM
from privsgp.algorithms.ldp_spider import LDPSPIDER
from privsgp.algorithms.ldp_svrg import LDPSVRG
from privsgp.algorithms.local import Local
from privsgp.algorithms.privsgp import PrivSGP
from privsgp.algorithms.privsgp_sag import PrivSGPSAG
from privsgp.algorithms.privsgp_vr import PrivSGPVR
from privsgp.algorithms.push_sum import PushSum
from privsgp.algorithms.sgp import SGP
from privsgp.algorithms.soteriafl_saga import SoteriaFLSAGA
from privsgp.algorithms.soteriafl_sgd import SoteriaFLSGD
from privsgp.algorithms.soteriafl_svrg import SoteriaFLSVRG
from privsgp.algorithms.steering import Steering
from privsgp.algorithms.turns import Turns

_PUSH_SUM: tuple[type[Algorithm], ...] = (SGP, PrivSGP, PrivSGPVR, PrivSGPSAG)
_GOSSIP: tuple[type[Algorithm], ...] = (DPSGD, DP2SGD, ADPSGD, ADP2SGD)
_SERVER: tuple[type[Algorithm], ...] = (DPSRM, LDPSVRG, LDPSPIDER, SoteriaFLSGD, SoteriaFLSVRG, SoteriaFLSAGA)
_ALONE: tuple[type[Algorithm], ...] = (CentralDPSGD, Local)
ALGORITHMS: dict[str, type[Algorithm]] = {a.name: a for a in (*_PUSH_SUM, *_GOSSIP, *_SERVER, *_ALONE)}

__all__ = ["ALGORITHMS", "Algorithm", "Block", "Drawn", "PrivSGP", "PushSum", "Settings", "State", "Steering", "Turns"]
