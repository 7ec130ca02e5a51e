"""The interface of every kind of noise. A new kind is one more file here, and its proof in accounting.

A `Noise` is a frozen value of a run's spec; it makes the `NodeNoise` of a process, which adds it.
Only the nodes' mechanisms count its cost: they are in the ledgers, with their σ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.randomness.noise import Source
    from privsgp.randomness.pair_streams import PairStreams
    from privsgp.randomness.pairwise import Ends

    KeyExchange = Callable[[Ends], PairStreams]  # agrees on secrets with nodes elsewhere


class NodeNoise(Protocol):
    """Adds the noise of one process's nodes."""

    # The source that a GPU's kernel may draw each node's own N(0, σ_i² I) from; None: `add_` alone adds it.
    kernel_source: Source | None = None

    def begin(self, step: int, like: Tensor) -> None:
        """Draw what the nodes share at a step, for rows shaped like `like`, before `add_` is called for some of them.

        A single call of `add_` for all nodes needs no call of this.
        """
        del step, like

    def add_(self, g: Tensor, nodes: Sequence[int], step: int) -> None:
        """Add the noise of a step to each node's row of g, in place (Algorithm 1, line 8).

        Guarantee: g is then a release of the node's mechanism at that step, as it is counted.

        Assumes: no two different g meet one (node, step).
        """


class Noise(Protocol):
    """Which noise a run adds to its nodes' gradients."""

    name: ClassVar[str]  # in a summary

    def of_nodes(
        self, nodes: range, mechanisms: Sequence[Mechanism], source: Source, exchange: KeyExchange | None = None
    ) -> NodeNoise:
        """Return the noise of a process's nodes, one mechanism each, drawn from `source`.

        `exchange` agrees on secrets with nodes that are elsewhere; None where all are here.
        """
