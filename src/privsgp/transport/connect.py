"""Chooses what carries a run's messages: nobody else asks which kind it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privsgp.transport.in_process import InProcess
from privsgp.transport.lossy import Faults, LossyNetwork
from privsgp.transport.torch_distributed import TorchDistributed

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.graph import Graph
    from privsgp.transport.protocol import Transport
    from privsgp.transport.rendezvous import World


def connect(graph: Graph, like: Tensor, world: World, faults: Faults | None = None) -> Transport:
    """Return the transport of this process's nodes, whose parameters are like `like` [m, d]."""
    if not world.alone:
        return TorchDistributed(graph, like, world)
    return InProcess(graph, like) if faults is None else LossyNetwork(graph, like, faults)
