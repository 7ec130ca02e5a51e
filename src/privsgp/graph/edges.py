"""One step of a network: who sends which share of what it holds to whom.

A node keeps what it does not send, so the shares it hands out sum to one by construction (Assumption 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.errors import Refused

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
    out = np.bincount(senders, minlength=nodes)
    share = 1.0 / (out + 1)
    return _with_self_loops(senders, receivers, share[senders], kept=1.0 - out * share)


def weighted(nodes: int, source: ArrayLike, target: ArrayLike, share: ArrayLike) -> Edges:
    """Each node sends the given shares (no self-loops, no pair twice) and keeps the rest, which must be positive."""
    senders, receivers = np.asarray(source, dtype=np.int64), np.asarray(target, dtype=np.int64)
    shares = np.asarray(share, dtype=np.float64)
    if not (shares > 0).all():
        worst = int(np.argmin(shares > 0))
        raise Refused(
            f"share = {shares[worst]:g} on the edge {senders[worst]} → {receivers[worst]}",
            "give every edge a share above 0, or leave the edge out",
        )
    sent = [math.fsum(shares[senders == node]) for node in range(nodes)]
    if (most := max(sent)) >= 1:
        raise Refused(
            f"node {sent.index(most)} sends shares that sum to {most:g}",
            "let them sum to less than 1: a node keeps the rest, and has to keep something",
        )
    return _with_self_loops(senders, receivers, shares, kept=1.0 - np.asarray(sent))


def _with_self_loops(
    source: NDArray[np.int64], target: NDArray[np.int64], share: NDArray[np.float64], kept: NDArray[np.float64]
) -> Edges:
    nodes = np.arange(len(kept))
    return Edges(
        np.concatenate([source, nodes]), np.concatenate([target, nodes]), np.concatenate([share, kept]).astype(float)
    )
