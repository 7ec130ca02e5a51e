"""One file per family of algorithms; each reads like its pseudo-code and declares what one of its messages reveals."""

from privsgp.algorithms.algorithm import Algorithm
from privsgp.algorithms.block import Block, Drawn, Randomness, Settings, State
from privsgp.algorithms.events import Event, Exchange, Meet, Pushed, Release, Step, ToServer
from privsgp.algorithms.methods import ALGORITHMS, register
from privsgp.algorithms.push_sum import PrivSGP, PushSum
from privsgp.algorithms.update_rule import UpdateRule

__all__ = [
    "ALGORITHMS", "Algorithm", "Block", "Drawn", "Event", "Exchange", "Meet", "PrivSGP", "PushSum",
    "Pushed", "Randomness", "Release", "Settings", "State", "Step", "ToServer", "UpdateRule", "register",
]  # fmt: skip
