"""Push-sum mixing of all nodes in one process: x_i = Σ_j P_ij x_j, w_i = Σ_j P_ij w_j.

A receiver adds what arrives in the order of the senders' numbers, one addition after the other. Any other transport
does the same, so that a model does not depend on where its nodes live. For a one-peer graph this is a gather and an
add, never an n × n product.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from privsgp.devices import device_of
from privsgp.threads import in_threads
from privsgp.transport.protocol import Transport

if TYPE_CHECKING:
    from privsgp.graph import Edges, Graph


# What arrives is added while it is still in a core's cache: so many numbers at a time.
_PIECE = 1 << 18


class _Round(NamedTuple):
    """The r-th contribution to every target that has one."""

    target: Tensor
    source: Tensor
    share: Tensor  # [edges, 1], in the dtype of x
    everyone: bool


class InProcess(Transport):
    """Mixes where every node is in this process."""

    local: ClassVar[bool] = True
    plain: ClassVar[bool] = True

    def __init__(self, graph: Graph, like: Tensor) -> None:
        self.graph = graph
        self.message_bytes = like.shape[-1] * like.element_size() + torch.float64.itemsize
        self.device, self.dtype = like.device, like.dtype
        self._rounds: dict[int, list[_Round]] = {}

    def mix(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return (P^k x, P^k w).

        Shares are rounded to x's precision once and used for both, so that their rounding cancels in z = x / w.
        """
        mixed, weights, rounds = torch.empty_like(x), torch.zeros_like(w), self._at(k)
        for part in rounds:
            weights.index_add_(0, part.target, w[part.source] * part.share[:, 0].double())
        tall = min(len(x), device_of(x).rows_at_once(x, _PIECE))
        for alike in ([p for p in rounds if p.everyone], *([p] for p in rounds if not p.everyone)):
            add = partial(_add, mixed, x, alike, rounds[0])
            in_threads(add, [slice(top, top + tall) for top in range(0, len(alike[0].target), tall)])
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
        target, source, share = edges.target, edges.source, edges.shares(str(self.dtype).removeprefix("torch."))
        rank = np.arange(len(target)) - np.searchsorted(target, target)
        return [self._round(target[rank == r], source[rank == r], share[rank == r]) for r in range(rank.max() + 1)]

    def _round(self, target: np.ndarray, source: np.ndarray, share: np.ndarray) -> _Round:
        def tensor(values: np.ndarray) -> Tensor:
            return torch.tensor(values, device=self.device)

        everyone = len(target) == self.graph.nodes
        return _Round(tensor(target), tensor(source), tensor(share)[:, None], everyone)


def _add(mixed: Tensor, x: Tensor, alike: list[_Round], first: _Round, rows: slice) -> None:
    """Add a few edges' shares of each round; every target occurs once a round, so the order of additions is fixed."""
    for part in alike:
        source, share = part.source[rows], part.share[rows]
        if part is first:
            torch.index_select(x, 0, source, out=mixed[rows]).mul_(share)
        elif part.everyone:
            mixed[rows].add_(torch.index_select(x, 0, source).mul_(share))
        else:
            mixed.index_add_(0, part.target[rows], torch.index_select(x, 0, source).mul_(share))
