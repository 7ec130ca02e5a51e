"""What a run asks of its noise, whichever kind it is. A new kind is one more file here, and its proof in accounting.

A `Noise` is a frozen value of a run's spec; it makes the `NodeNoise` of a process, which adds it and draws it ahead.
What it costs is counted by the nodes' mechanisms alone: they stand in the ledgers, and it is their σ that is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.randomness.noise import Keyed, Secure, Source
    from privsgp.randomness.pairwise import Ends, PairStreams, PairwiseNoise

    Gather = Callable[[list[str]], list[str]]  # bytes of each node here, in hexadecimal, to those of all nodes
    KeyExchange = Callable[[PairwiseNoise, Ends], PairStreams]  # agrees on secrets with nodes elsewhere


class NodeNoise(Protocol):
    """Adds the noise of one process's nodes."""

    @property
    def zero(self) -> bool:
        """Whether there is none to add, at any step."""

    @property
    def kernel_source(self) -> Keyed | Secure | None:
        """The source that a GPU's kernel may draw each node's own N(0, σ_i² I) from; None: `add_` alone adds it."""

    def in_parts(self, columns: int) -> bool:
        """Whether `add_` and `step_` may be called for some of the nodes, by several threads, where g has so many."""

    def add_(self, g: Tensor, nodes: Sequence[int], step: int, attempt: int) -> None:
        """Add the noise of a step to each node's row of g, in place (Algorithm 1, line 8).

        Guarantee: g is then a release of the node's mechanism at that step, as it is counted.

        Assumes: no two different g meet one (node, step, attempt).
        """

    def step_(self, x: Tensor, g: Tensor, nodes: Sequence[int], step: int, attempt: int, step_size: float) -> bool:
        """Take γ times what `add_` makes of g from x, in place, where one pass does it; tell whether that was done."""
        del x, g, nodes, step, attempt, step_size
        return False

    def prepare(self, like: Tensor, step: int, attempt: int) -> None:
        """Draw the noise of a step now, for rows shaped like `like`: it is waited for less when it is added."""

    def begin(self, like: Tensor, step: int, attempt: int) -> None:
        """Let a second thread `prepare`, where there is a core for it."""


class Noise(Protocol):
    """Which noise a run adds to its nodes' gradients."""

    @property
    def name(self) -> str:
        """What a summary calls it."""

    @property
    def shared(self) -> bool:
        """Whether nodes share it: all of them are then at one attempt of a step."""
        return False

    def of_nodes(
        self, nodes: range, mechanisms: Sequence[Mechanism], source: Source, exchange: KeyExchange | None = None
    ) -> NodeNoise:
        """Return the noise of a process's nodes, one mechanism each, drawn from `source`.

        `exchange` agrees on secrets with nodes that are elsewhere; None where all are here.
        """
