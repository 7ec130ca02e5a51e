"""A virtual clock: the time of gradients and messages, which nodes wait, and the order of events without waiting.

Times are public randomness, keyed by the node and by the number of its gradient alone. They depend neither on data nor
on how many samples were drawn, so that who acts when reveals nothing, and is known before the run.

In synchronous methods (`Waiting`) a node begins a step when all it needs for it has arrived:

    t_i(k+1) = max over i itself and all j that send to i at step k of  t_j(k) + gradient_j(k) + message_ji

With a server everyone waits for the slowest, and for the way there and back; who is alone waits for nobody.

In asynchronous ones (`Events`) a node reads its model, computes a gradient there for as long as `Times` says, exchanges
models with one neighbour, drawn anew each time, and begins again. No node waits for a node that computes. Others
average with it meanwhile, so its gradient belongs to an older model than the one it changes. A step is n events of any
nodes. How often each node acts is known before the run, and so is what its noise must be calibrated for.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from scipy.special import ndtri

from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from privsgp.graph import Graph


_CHUNK = 256  # numbers that are drawn at a time


@dataclass(frozen=True)
class Times:
    """Times of gradients, 1 on average. `spread` is their standard deviation, log-normal; 0 makes them all alike.

    `stragglers` take `slowdown` times as long.

    `stragglers` are numbers of nodes, or the fraction of all nodes that is slow, at least one; those are drawn then.
    """

    nodes: int
    spread: float = 0.0
    stragglers: float | tuple[int, ...] = 0.0
    slowdown: float = 1.0
    seed: int = 0

    def gradient(self, node: int, number: int) -> float:
        """Return what the node's `number`-th gradient takes."""
        slow = self.slowdown if node in self.slow else 1.0
        if not self.spread:
            return slow
        chunk, index = divmod(number, _CHUNK)
        return float(_gradients(self, node, chunk)[index]) * slow

    def pick(self, node: int, number: int, choices: int) -> int:
        """Return one of 0 … choices − 1 with equal probability: the partner for a node's `number`-th gradient."""
        chunk, index = divmod(number, _CHUNK)
        return int(_uniforms(self.seed, "partner", node, chunk)[index] * choices)

    @cached_property
    def slow(self) -> frozenset[int]:
        """The stragglers."""
        if isinstance(self.stragglers, tuple):
            return frozenset(self.stragglers)
        order = np.argsort(_bits(self.seed, "stragglers", 0, 0, self.nodes), kind="stable")
        count = max(1, round(self.stragglers * self.nodes)) if self.stragglers else 0
        return frozenset(order[:count].tolist())


@lru_cache(maxsize=4096)
def _gradients(times: Times, node: int, chunk: int) -> NDArray[np.float64]:
    """Draw by inversion, with mean 1."""
    u = _uniforms(times.seed, "gradient", node, chunk)
    s = math.sqrt(math.log1p(times.spread**2))
    return np.asarray(np.exp(s * ndtri(u) - s * s / 2))


@lru_cache(maxsize=4096)
def _uniforms(seed: int, purpose: str, node: int, chunk: int) -> NDArray[np.float64]:
    """Return numbers strictly between 0 and 1."""
    return np.asarray(((_bits(seed, purpose, node, chunk, _CHUNK) >> np.uint64(11)) + 0.5) * 2.0**-53)


def _bits(seed: int, purpose: str, node: int, chunk: int, count: int) -> NDArray[Any]:
    # Raw bits of a keyed bit generator, because NumPy promises those (not its samplers) to stay the same for ever.
    key = (("gradient", "partner", "stragglers").index(purpose), node, chunk)
    return np.asarray(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)).random_raw(count))


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
    """Return each node's neighbours by links in both directions; a node without any has itself."""
    links = set() if graph.period is None else set(graph.links())
    if graph.period is None or any((j, i) not in links for i, j in links):
        raise Refused(
            f"graph.name = {graph.name!r} with an asynchronous algorithm: two nodes that average need a link both ways",
            "take an undirected graph: graph.name = 'ring', 'torus' or 'complete'",
        )
    return [[j for j in range(graph.nodes) if (i, j) in links] or [i] for i in range(graph.nodes)]
