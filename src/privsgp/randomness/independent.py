"""Independent noise: every node adds N(0, σ_i² I) of its own, which its mechanism's σ counts as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privsgp.randomness.noise import Source, add_noise_
from privsgp.randomness.protocol import NodeNoise, Noise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.randomness.protocol import KeyExchange


@dataclass(frozen=True)
class IndependentNoise(Noise):
    """N(0, σ_i² I) for each node, independent of everything else."""

    @property
    def name(self) -> str:
        """What a summary calls it."""
        return "independent"

    def of_nodes(
        self, nodes: range, mechanisms: Sequence[Mechanism], source: Source, exchange: KeyExchange | None = None
    ) -> NodeNoise:
        """Return the noise of a process's nodes: there is nothing to agree on."""
        del exchange
        return _OfNodes(nodes, mechanisms, source)


class _OfNodes(NodeNoise):
    def __init__(self, nodes: range, mechanisms: Sequence[Mechanism], source: Source) -> None:
        self._mechanisms = dict(zip(nodes, mechanisms, strict=True))
        self._source = source

    @property
    def kernel_source(self) -> Source:
        """The source itself."""
        return self._source

    def add_(self, g: Tensor, nodes: Sequence[int], step: int) -> None:
        """Add N(0, σ_i² I) to each node's row of g, in place."""
        sigma = [self._mechanisms[i].at(step).sigma for i in nodes]
        if any(sigma):
            add_noise_(g, self._source, nodes, step, sigma=sigma)
