"""Independent noise: every node adds N(0, σ_i² I) of its own, which its mechanism's σ counts as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privsgp.randomness.noise import Keyed, Secure, add_noise_, step_
from privsgp.randomness.prefetch import PrefetchedNoise
from privsgp.randomness.protocol import NodeNoise, Noise

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.randomness.noise import Source
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
        self._source, self._ahead = source, PrefetchedNoise(source, nodes)

    @property
    def zero(self) -> bool:
        """Whether every σ is 0."""
        return not any(m.sigma for m in self._mechanisms.values())

    @property
    def kernel_source(self) -> Keyed | Secure | None:
        """The source itself."""
        return self._source if isinstance(self._source, Keyed | Secure) else None

    def in_parts(self, columns: int) -> bool:
        """True: nobody's noise is another's."""
        del columns
        return True

    def add_(self, g: Tensor, nodes: Sequence[int], step: int, attempt: int) -> None:
        """Add N(0, σ_i² I) to each node's row of g, in place."""
        sigma = [self._mechanisms[i].at(step).sigma for i in nodes]
        if any(sigma):
            add_noise_(g, self._ahead, nodes, step, sigma=sigma, attempt=attempt)

    def step_(self, x: Tensor, g: Tensor, nodes: Sequence[int], step: int, attempt: int, step_size: float) -> bool:
        """Take γ (g + noise) from x where one pass does it."""
        sigma = [self._mechanisms[i].at(step).sigma for i in nodes]
        return step_(x, g, self._ahead, nodes, step, sigma=sigma, attempt=attempt, step_size=step_size)

    def prepare(self, like: Tensor, step: int, attempt: int) -> None:
        """Draw the noise of a step now."""
        self._ahead.prepare(like, step, attempt)

    def begin(self, like: Tensor, step: int, attempt: int) -> None:
        """Let a second thread draw it."""
        self._ahead.begin(like, step, attempt)
