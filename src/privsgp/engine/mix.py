"""Push-sum mixing of all nodes in one process: x_i = Σ_j P_ij x_j, w_i = Σ_j P_ij w_j.

A receiver adds what arrives in the order of the senders' numbers, one addition after the other. Any other transport
does the same, so that a model does not depend on where its nodes live. For a one-peer graph this is a gather and an
add, never an n × n product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from privsgp.graph import Edges, Graph


class _Round(NamedTuple):
    """The r-th contribution to every target that has one."""

    target: Tensor
    source: Tensor
    share: Tensor  # [edges, 1], in the dtype of x
    everyone: bool


class InProcess:
    """Mixing for the case that every node is here."""

    def __init__(self, graph: Graph, like: Tensor) -> None:
        self.graph = graph
        self.device, self.dtype = like.device, like.dtype
        self._rounds: dict[int, list[_Round]] = {}

    def __call__(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return (P^k x, P^k w).

        Shares are rounded to x's precision once and used for both, so that their rounding cancels in z = x / w.
        """
        first, *others = self._at(k)
        mixed, weights = x[first.source].mul_(first.share), w[first.source] * first.share[:, 0].double()
        for part in others:
            arrived, weight = x[part.source].mul_(part.share), w[part.source] * part.share[:, 0].double()
            if part.everyone:
                mixed.add_(arrived)
                weights.add_(weight)
            else:  # every target occurs once a round, so the order of additions is fixed
                mixed.index_add_(0, part.target, arrived)
                weights.index_add_(0, part.target, weight)
        return mixed, weights

    def messages(self, k: int) -> int:
        """Count the messages between different nodes at step k."""
        edges = self.graph.edges(k)
        return int(np.count_nonzero(edges.source != edges.target))

    def _at(self, k: int) -> list[_Round]:
        if self.graph.period is None:
            return self._split(self.graph.edges(k))
        k %= self.graph.period
        if k not in self._rounds:
            self._rounds[k] = self._split(self.graph.edges(k))
        return self._rounds[k]

    def _split(self, edges: Edges) -> list[_Round]:
        """Sort the edges into rounds; self-loops see to it that the first one reaches every node."""
        target, source, share = edges.target, edges.source, edges.share
        rank = np.arange(len(target)) - np.searchsorted(target, target)
        return [self._round(target[rank == r], source[rank == r], share[rank == r]) for r in range(rank.max() + 1)]

    def _round(self, target: np.ndarray, source: np.ndarray, share: np.ndarray) -> _Round:
        def tensor(values: np.ndarray) -> Tensor:
            return torch.tensor(values, device=self.device)

        everyone = len(target) == self.graph.nodes
        return _Round(tensor(target), tensor(source), tensor(share).to(self.dtype)[:, None], everyone)
