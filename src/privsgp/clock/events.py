"""Asynchronous methods on the virtual clock: the list of events, in the order in which they happen.

A node reads its model, computes a gradient there for as long as `Times` says, exchanges models with one neighbour,
drawn anew each time, and begins again. Nobody waits for a node that computes: others average with it meanwhile, so that
its gradient is of an older model than the one it changes. n events are called a step, whoever they are of.

The list depends on public randomness alone. How often each node acts is known before the run, and so is what each
node's noise must be calibrated for.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from privsgp.clock.times import Times
    from privsgp.graph import Graph


class Event(NamedTuple):
    """At `time`, `node` averages with `partner` and takes the step of its `number`-th gradient, counted from 0.

    The gradient is of the model that the node held just after its own last event.
    """

    time: float
    node: int
    partner: int
    number: int


@dataclass(frozen=True)
class Events:
    """K · n events of n nodes."""

    nodes: int
    every: Sequence[Event]

    def of(self, k: int) -> Sequence[Event]:
        """Return the events of step k."""
        return self.every[k * self.nodes : (k + 1) * self.nodes]

    def at(self, k: int) -> float:
        """Return the time at which k steps are done."""
        return self.every[k * self.nodes - 1].time if k else 0.0

    def released(self, node: int, k: int) -> int:
        """Return how many of the events of the first k steps are the node's own."""
        return int(self._released[k, node])

    def until(self, node: int, releases: int) -> int:
        """Return how many steps can be taken while the node releases no more than so often."""
        return int(np.searchsorted(self._released[:, node], releases, side="right")) - 1

    @cached_property
    def _released(self) -> NDArray[np.int64]:
        """[K + 1, n]."""
        actors = np.array([event.node for event in self.every], dtype=np.int64).reshape(-1, self.nodes)
        counts = np.array([np.bincount(row, minlength=self.nodes) for row in actors])
        return np.concatenate([np.zeros((1, self.nodes), np.int64), counts.cumsum(0)])


def schedule(times: Times, graph: Graph, steps: int, message: float) -> Events:
    """Return the events of so many steps; `message` is what an exchange of models takes."""
    neighbours = _neighbours(graph)
    due = [(times.gradient(i, 0) + message, i, 0) for i in range(graph.nodes)]
    heapq.heapify(due)
    every = []
    for _ in range(steps * graph.nodes):
        time, i, number = due[0]
        partner = neighbours[i][times.pick(i, number, len(neighbours[i]))]
        every.append(Event(time, i, partner, number))
        heapq.heapreplace(due, (time + times.gradient(i, number + 1) + message, i, number + 1))
    return Events(graph.nodes, every)


def _neighbours(graph: Graph) -> list[list[int]]:
    """Return with whom each node has a link that goes both ways; a node that is alone has itself."""
    links = np.eye(graph.nodes, dtype=bool)
    for k in range(graph.period or 0):
        edges = graph.edges(k)
        links[edges.source, edges.target] = True
    if graph.period is None or (links != links.T).any():
        raise Refused(
            f"graph.name = {graph.name!r} with an asynchronous algorithm: two nodes that average need a link both ways",
            "take an undirected graph: graph.name = 'ring', 'torus' or 'complete'",
        )
    return [[j for j in range(graph.nodes) if links[i, j] and (j != i or graph.nodes == 1)] for i in range(graph.nodes)]
