"""Synchronous methods on the virtual clock: a node begins a step when all it needs for it has arrived.

    t_i(k+1) = max over i itself and all j that send to i at step k of  t_j(k) + gradient_j(k) + message_ji

With a server everyone waits for the slowest, and for the way there and back; who is alone waits for nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privsgp.clock.times import Times
    from privsgp.graph import Graph

Hears = Literal["neighbours", "server", "nobody"]


class Waiting:
    """When the steps of a synchronous method are done; `message` is what one message takes."""

    def __init__(self, times: Times, graph: Graph, message: float, hears: Hears = "neighbours") -> None:
        self.times, self.graph, self.message, self.hears = times, graph, message, hears
        self._step = 0
        self._at = np.zeros(graph.nodes)

    def at(self, k: int) -> float:
        """Return the time at which every node has taken k steps."""
        return float(self.nodes_at(k).max())

    def nodes_at(self, k: int) -> NDArray[np.float64]:
        """Return the times at which the nodes have taken k steps, [n]."""
        if k < self._step:
            self._step, self._at = 0, np.zeros(self.graph.nodes)
        while self._step < k:
            self._at = self._after(self._step, self._at)
            self._step += 1
        return self._at

    def _after(self, k: int, t: NDArray[np.float64]) -> NDArray[np.float64]:
        done = t + [self.times.gradient(i, k) for i in range(self.graph.nodes)]
        if self.hears == "nobody":
            return done
        if self.hears == "server":
            return np.full_like(done, done.max() + 2 * self.message)
        edges, begins = self.graph.edges(k), done.copy()
        np.maximum.at(begins, edges.target, done[edges.source] + self.message * (edges.source != edges.target))
        return begins
