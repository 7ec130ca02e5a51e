"""The paper's Table 1: utility and communication rounds of every row, up to constants.

Orders of magnitude, for a network of n nodes with J samples each and one budget (ε, δ): what they are good for is the
comparison of rows. DP-SRM protects the whole data set against someone who sees only aggregates, the others each node
against its neighbours: rows of different `trust` promise different things.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Setting:
    """n, J, d, (ε, δ), and ω of the compressor (0: none)."""

    nodes: int
    samples: int
    dim: int
    epsilon: float
    delta: float
    compression: float = 0.0

    @property
    def local(self) -> float:
        """√(d ln(1/δ)) / (Jε): what a node reaches on its own, DP-SGD's utility."""
        return math.sqrt(self.dim * math.log(1 / self.delta)) / (self.samples * self.epsilon)


@dataclass(frozen=True)
class Row:
    """A row: bound on E‖∇f‖², and rounds to reach it (None: there is nobody to talk to)."""

    name: str
    utility: Callable[[Setting], float]
    rounds: Callable[[Setting], float | None]
    trust: Literal["node", "aggregate"]


def _rounds(s: Setting) -> float:
    """Return Jε √(d/ln(1/δ)), which the servers' methods multiply by a power of n."""
    return s.samples * s.epsilon * math.sqrt(s.dim / math.log(1 / s.delta))


def _soteria_utility(s: Setting) -> float:
    return math.sqrt((1 + s.compression) / s.nodes) * s.local


ROWS = (
    Row("DP-SGD", lambda s: s.local, lambda _: None, "node"),
    Row("Distributed DP-SRM", lambda s: s.local / s.nodes, lambda s: s.nodes**2 * _rounds(s), "aggregate"),
    Row("LDP SVRG/SPIDER", lambda s: s.local / math.sqrt(s.nodes), lambda s: s.nodes**1.5 * _rounds(s), "node"),
    Row("SoteriaFL-SAGA/SVRG", _soteria_utility, lambda s: 1 / _soteria_utility(s), "node"),
    Row("A(DP)²SGD", lambda s: s.local, lambda s: s.local**-2, "node"),
    Row("PrivSGP-VR", lambda s: s.local / math.sqrt(s.nodes), lambda s: s.local**-2, "node"),
)
