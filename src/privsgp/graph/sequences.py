"""A network that changes from step to step: its edges, what every graph answers, and graphs that repeat themselves.

At a step a node sends shares of what it holds, and keeps what it does not send: the shares sum to one by construction
(Assumption 1).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import permutations
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray


@dataclass(frozen=True, eq=False)
class Edges:
    """The non-zero entries of P^k: `source[e]` sends the fraction `share[e]` to `target[e]`; self-loops included.

    Sorted by (target, source) and read-only. A receiver sums in this order, so that every layout of nodes over
    processes rounds alike and gives the same bits.
    """

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    share: NDArray[np.float64]

    def __post_init__(self) -> None:
        order = np.lexsort((self.source, self.target))
        for name, kind in (("source", np.int64), ("target", np.int64), ("share", np.float64)):
            column = np.asarray(getattr(self, name), dtype=kind)[order]
            column.flags.writeable = False
            object.__setattr__(self, name, column)

    def shares(self, dtype: DTypeLike) -> NDArray[np.floating[Any]]:
        """Return the shares in a lower precision; a node keeps exactly what it does not send, so none is lost or made.

        A third is a little more than a third in float32: three of them would let w grow by 3e-8 a step while x, which
        rounds, does not follow.
        """
        rounded: NDArray[np.floating[Any]] = self.share.astype(dtype)
        kept = self.source == self.target
        nodes = int(self.target.max()) + 1
        sent = np.bincount(self.source[~kept], rounded[~kept].astype(np.float64), nodes)
        rounded[kept] = 1.0 - sent[self.source[kept]]
        return rounded


def uniform(nodes: int, source: ArrayLike, target: ArrayLike) -> Edges:
    """Each node gives every distinct receiver and itself the same share, 1 / (receivers + 1)."""
    pairs = np.unique(np.asarray(source, dtype=np.int64) * nodes + np.asarray(target, dtype=np.int64))
    senders, receivers = np.divmod(pairs, nodes)
    others = senders != receivers
    senders, receivers = senders[others], receivers[others]
    out, own = np.bincount(senders, minlength=nodes), np.arange(nodes)
    share = 1.0 / (out + 1)
    return Edges(
        np.concatenate([senders, own]), np.concatenate([receivers, own]),
        np.concatenate([share[senders], 1.0 - out * share]),
    )  # fmt: skip


class Graph(ABC):
    """The paper's sequence of directed graphs G^k on `nodes` nodes; `period` is None when it never repeats."""

    name: str
    nodes: int

    @property
    @abstractmethod
    def period(self) -> int | None:
        """Steps after which the sequence starts again."""

    @abstractmethod
    def edges(self, k: int) -> Edges:
        """Who sends which share to whom at step `k`."""

    def matrix(self, k: int) -> NDArray[np.float64]:
        """P^k as a dense matrix: entry [i, j] is the share that i receives from j; columns sum to one."""
        edges = self.edges(k)
        matrix = np.zeros((self.nodes, self.nodes))
        matrix[edges.target, edges.source] = edges.share
        return matrix

    def links(self) -> list[tuple[int, int]]:
        """Every (source, target) that is ever used, sorted, self-loops left out; one that never repeats may use any."""
        if self.period is None:
            return list(permutations(range(self.nodes), 2))
        steps = [self.edges(k) for k in range(self.period)]
        pairs = {pair for e in steps for pair in zip(e.source.tolist(), e.target.tolist(), strict=True)}
        return sorted((j, i) for j, i in pairs if j != i)

    def out_neighbours(self, k: int, i: int) -> tuple[int, ...]:
        """The nodes that `i` sends a message to at step `k`, itself left out."""
        edges = self.edges(k)
        return tuple(int(j) for j in edges.target[edges.source == i] if j != i)


@dataclass(frozen=True, eq=False)
class Cyclic(Graph):
    """A graph that goes through `phases` over and over; a graph that never changes has one phase."""

    name: str
    nodes: int
    phases: tuple[Edges, ...]

    @property
    def period(self) -> int:
        """Steps after which the sequence starts again."""
        return len(self.phases)

    def edges(self, k: int) -> Edges:
        """Who sends which share to whom at step `k`."""
        return self.phases[k % len(self.phases)]
