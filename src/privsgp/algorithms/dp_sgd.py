"""DP-SGD (Abadi et al. 2016): all nodes' data pooled on one node, which everybody has to trust.

It draws with the same probability q = b/J as the nodes would, so that its batch is n·b, and keeps to the smallest ε_i
and δ_i of them all. The step is that of `local.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from privsgp.algorithms.local import Local

if TYPE_CHECKING:
    from privsgp.algorithms.algorithm import Trust


class CentralDPSGD(Local):
    """What a server that sees all data could do at the same budget."""

    name: ClassVar[str] = "dp-sgd"
    trust: ClassVar[Trust] = "curator"
    pooled: ClassVar[bool] = True
