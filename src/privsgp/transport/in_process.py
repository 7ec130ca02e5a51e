"""Push-sum mixing of all nodes in one process: x_i = Σ_j P_ij x_j, w_i = Σ_j P_ij w_j.

A receiver adds what arrives in the order of the senders' numbers, one addition after the other. Any other transport
does the same, so that a model does not depend on where its nodes live. For a one-peer graph this is a gather and an
add, never an n × n product.

With fewer than 32 bits a link carries a rounded share (`rounding.py`), and its sender keeps what it does not carry.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from privsgp.devices import device_of, in_threads
from privsgp.transport.protocol import Transport

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privsgp.graph import Graph
    from privsgp.transport.rounding import Carrying, Rounding

    Indices = NDArray[np.int64]


# Arrivals are added while they are in a core's cache: this many numbers at a time.
_PIECE = 1 << 18


class Round(NamedTuple):
    """The r-th contribution to every target that has one."""

    target: Tensor
    source: Tensor
    share: Tensor  # [edges, 1], in the dtype of x
    everyone: bool


class Rounded(NamedTuple):
    """The rounded shares that links carry at a step, and the rounds that compute the rest at the nodes."""

    links: Carrying
    kept: list[Round]

    def remaining(self, x: Tensor, w: Tensor, shares: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the nodes keep: x and w without the rounded shares."""
        return combined(self.kept, torch.cat([x, shares]), torch.cat([w, weights]))


class InProcess(Transport):
    """Mixes where every node is in this process."""

    local: ClassVar[bool] = True

    def __init__(self, graph: Graph, like: Tensor, rounding: Rounding | None = None) -> None:
        self.graph, self.like, self.rounding = graph, like[:0], rounding
        row = like.shape[-1] * like.element_size() if rounding is None else rounding.width
        self.message_bytes = row + torch.float64.itemsize
        self._rounds: dict[int, tuple[list[Round], Rounded | None]] = {}

    def mix(self, k: int, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Return (P^k x, P^k w)."""
        made, rounded = self._at(k)
        if self.rounding is None or rounded is None:
            return combined(made, x, w)
        codes, weights = self.rounding.codes(k, rounded.links, x, w)
        shares = self.rounding.shares(rounded.links, codes, weights)
        x, w = rounded.remaining(x, w, shares, weights)
        return combined(made, torch.cat([x, shares]), torch.cat([w, weights]))

    def arrays(self) -> dict[str, Tensor]:
        """Return what both ends of links remember."""
        return {} if self.rounding is None else {"carried": self.rounding.carried}

    def messages(self, k: int) -> int:
        """Count the messages between different nodes at step k."""
        edges = self.graph.edges(k)
        return int(np.count_nonzero(edges.source != edges.target))

    def _at(self, k: int) -> tuple[list[Round], Rounded | None]:
        at = k if self.graph.period is None else k % self.graph.period
        if at not in self._rounds:
            self._rounds = self._rounds if self.graph.period else {}
            edges = self.graph.edges(k)
            shares, away = edges.shares(_name(self.like)), edges.source != edges.target
            if self.rounding is None:
                self._rounds[at] = rounds(edges.target, edges.source, shares, self.like), None
            else:
                ends = edges.source[away], edges.target[away]
                made = mixing_rounds(self.rounding.here, *ends, self.like)
                self._rounds[at] = made, rounded(self.rounding, *ends, shares[away], self.like)
        return self._rounds[at]


def rounded(rounding: Rounding, source: Indices, target: Indices, share: NDArray[np.floating], like: Tensor) -> Rounded:
    """Return what links from the nodes here carry in few bits; a node subtracts one share after the other."""
    m = len(rounding.here)
    node = np.concatenate([np.arange(m), source - rounding.here.start])
    order = np.argsort(node, kind="stable")
    sign = np.concatenate([np.ones(m), -np.ones(len(source))]).astype(share.dtype)[order]
    links = zip(source.tolist(), target.tolist(), strict=True)
    return Rounded(rounding.carrying(links, share.tolist()), rounds(node[order], order, sign, like))


def mixing_rounds(here: range, source: Indices, target: Indices, like: Tensor) -> list[Round]:
    """Return the rounds that add to what each node here has kept the shares that arrive, in the order of the senders.

    The rows are first those that the nodes kept, then the shares.
    """
    own = np.arange(here.start, here.stop)
    node, sender = np.concatenate([own, target]), np.concatenate([own, source])
    order = np.lexsort((sender, node))
    return rounds(node[order] - here.start, order, np.ones(len(node), _name(like)), like)


def rounds(target: Indices, source: Indices, share: NDArray[np.floating], like: Tensor) -> list[Round]:
    """Sort edges, which lie by target and then by source, into rounds; self-loops make the first reach every target."""
    rank = np.arange(len(target)) - np.searchsorted(target, target)
    found = []
    for r in range(rank.max() + 1):
        edges = tuple(torch.tensor(values[rank == r], device=like.device) for values in (target, source, share))
        found.append(Round(edges[0], edges[1], edges[2][:, None], len(edges[0]) == target.max() + 1))
    return found


def combined(all_rounds: list[Round], x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the targets of edges hold, x and w: each contribution is added in the order of the sources.

    Shares are rounded to x's precision once and used for both, so that their rounding cancels in z = x / w.
    """
    targets = len(all_rounds[0].target)
    mixed, weights = x.new_empty(targets, x.shape[1]), w.new_zeros(targets)
    for arrivals in all_rounds:
        weights.index_add_(0, arrivals.target, w[arrivals.source] * arrivals.share[:, 0].double())
    tall = min(targets, device_of(x).rows_at_once(x, _PIECE))
    for group in ([p for p in all_rounds if p.everyone], *([p] for p in all_rounds if not p.everyone)):
        add = partial(_add, mixed, x, group, all_rounds[0])
        in_threads(add, [slice(top, top + tall) for top in range(0, len(group[0].target), tall)])
    return mixed, weights


def _add(mixed: Tensor, x: Tensor, group: list[Round], first: Round, rows: slice) -> None:
    """Add a few edges' shares of each round; every target occurs once a round, so the order of additions is fixed."""
    for arrivals in group:
        source, share = arrivals.source[rows], arrivals.share[rows]
        if arrivals is first:
            torch.index_select(x, 0, source, out=mixed[rows]).mul_(share)
        elif arrivals.everyone:
            mixed[rows].add_(torch.index_select(x, 0, source).mul_(share))
        else:
            mixed.index_add_(0, arrivals.target[rows], torch.index_select(x, 0, source).mul_(share))


def _name(like: Tensor) -> str:
    return str(like.dtype).removeprefix("torch.")
