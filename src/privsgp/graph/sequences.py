"""A network that changes from step to step: its edges, and the graphs with a name in run.toml.

At a step a node sends shares of what it holds, and keeps what it does not send: the shares sum to one by construction
(Assumption 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import permutations
from math import isqrt
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field

from privsgp.errors import Refused
from privsgp.options import Count, Options, option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import ArrayLike, DTypeLike, NDArray

    Steps = Sequence[Sequence[Sequence[float]]]  # of each step of a period: [source, target, share]
_UNEVEN = 1e-9  # what a column of shares may be off


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


@dataclass(frozen=True, eq=False)
class Graph:
    """The paper's sequence of directed graphs G^k on `nodes` nodes; `period` is None when it never repeats."""

    name: str
    nodes: int
    period: int | None  # steps after which the sequence starts again
    at: Callable[[int], Edges]  # the edges of each step of a period

    def edges(self, k: int) -> Edges:
        """The shares that nodes send at step `k`."""
        return self.at(k if self.period is None else k % self.period)

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


def cyclic(name: str, nodes: int, phases: Sequence[Edges]) -> Graph:
    """Return a graph that goes through `phases` over and over; a graph that never changes has one phase."""
    return Graph(name, nodes, len(phases), phases.__getitem__)


def every_few(base: Graph, every: int) -> Graph:
    """Return a graph that nodes use at every `every`-th step; at the other steps each node is by itself."""
    alone = _to_hops(base.nodes, [0])

    def edges(k: int) -> Edges:
        message, before = divmod(k + 1, every)
        return alone if before else base.edges(message - 1)

    return Graph(base.name, base.nodes, None if base.period is None else base.period * every, edges)


class _GivenOptions(Options):
    """Shares of one's own; a node keeps what it does not send."""

    shares: list[list[Annotated[list[float], Field(min_length=3, max_length=3)]]] = option(
        [], "for each step of a period a list of [source, target, share]"
    )


class RandomOptions(Options):
    """Receivers that are drawn anew at each step."""

    degree: Count = option(1, "the number of receivers that a node picks at each step")


def make(name: str, nodes: int, *, seed: int = 0, degree: int = 1, shares: Steps = ()) -> Graph:
    """The graph called `name` on `nodes` nodes.

    `seed` and `degree` (receivers per step) are those of `random`, `shares` those of `given`.
    """
    if nodes < 1:
        raise Refused(f"nodes = {nodes} is below 1", "give a network at least one node")
    if name == "random":
        return _random(nodes, degree, seed)
    if name == "given":
        if not shares:
            raise Refused("graph.name = 'given' needs graph.shares", "write, for example, [[[0, 1, 0.5], [1, 0, 0.5]]]")
        return cyclic(name, nodes, tuple(_given(nodes, step) for step in shares))
    if name not in _CYCLIC:
        raise Refused(f"graph.name = {name!r} is not known", f"use one of {', '.join(NAMES)}")
    return cyclic(name, nodes, _CYCLIC[name](nodes))


def _given(nodes: int, step: Sequence[Sequence[float]]) -> Edges:
    """Return the edges of a step by [source, target, share]; a node keeps what it does not send."""
    ends = [(int(source), int(target)) for source, target, _ in step]
    for (source, target), given in zip(ends, step, strict=True):
        if not (0 <= source < nodes and 0 <= target < nodes and source != target and [source, target] == given[:2]):
            what = f"graph.shares has {list(given)} with {nodes} nodes"
            raise Refused(what, f"write [source, target, share], with two different nodes from 0 to {nodes - 1}")
    if len(set(ends)) < len(ends):
        raise Refused("graph.shares has an edge twice in one step", "give each edge once")
    pairs = np.array(ends, np.int64).reshape(-1, 2)
    share, own = np.array([float(given[2]) for given in step]), np.arange(nodes)
    kept = 1.0 - np.bincount(pairs[:, 0], share, nodes)
    sides = (np.concatenate([pairs[:, i], own]) for i in (0, 1))
    return Edges(next(sides), next(sides), np.concatenate([share, kept]))


def described(given: Any, names: Sequence[str] | None = None) -> tuple[int, dict[str, Any]]:  # noqa: ANN401 - whatever was brought
    """Return the number of nodes and the section of run.toml.

    Entry [i, j] of a matrix is the share that i receives from j. An edge of networkx has the attribute `share`; without
    it a node divides evenly among its receivers and itself. Its nodes are numbers, or the `names` of sites.
    """
    several = isinstance(given, list | tuple) and bool(given) and (hasattr(given[0], "adj") or np.ndim(given[0]) == 2)
    steps = [_step(one, names) for one in (given if several or getattr(given, "ndim", 2) == 3 else [given])]
    if len({nodes for nodes, _ in steps}) > 1:
        raise Refused(f"graph has steps of {sorted({n for n, _ in steps})} nodes", "give all steps the same nodes")
    return steps[0][0], {"name": "given", "shares": [shares for _, shares in steps]}


def _step(given: Any, names: Sequence[str] | None) -> tuple[int, list[list[float]]]:  # noqa: ANN401 - of networkx, or a matrix
    if hasattr(given, "to_directed"):
        return len(given), _of_networkx(given.to_directed(), names)
    if np.ndim(given) != 2 or np.shape(given)[0] != np.shape(given)[1]:
        remedy = "give a name, a networkx graph, a square matrix of shares, or a list of these"
        raise Refused(f"graph={type(given).__name__} is no network", remedy)
    P = np.asarray(given, np.float64)
    if not (np.abs(P.sum(0) - 1) <= _UNEVEN).all():
        raise Refused("a column of graph=… does not sum to 1", "let P[i, j] be the share that node i receives from j")
    target, source = np.nonzero(P * (1 - np.eye(len(P))))
    return len(P), [[int(j), int(i), float(P[i, j])] for i, j in zip(target, source, strict=True)]


def _of_networkx(graph: Any, names: Sequence[str] | None) -> list[list[float]]:  # noqa: ANN401 - networkx's
    known = range(len(graph)) if set(graph) == set(range(len(graph))) else names or ()
    if set(graph) != set(known):
        raise Refused("the nodes of graph=… are not the sites", "call them 0, 1, 2, …, or by the names of the sites")
    number = {name: i for i, name in enumerate(known)}
    edges = [(u, v, share) for u, v, share in graph.edges(data="share") if u != v]
    missing = [share is None for *_, share in edges]
    if any(missing) and not all(missing):
        raise Refused("some edges of graph=… have a share, and others have none", "give each edge a share, or none")
    out = {u: sum(v != u for v in graph.adj[u]) for u in graph}
    return [[number[u], number[v], float(1 / (out[u] + 1) if share is None else share)] for u, v, share in edges]


def unconnected(name: str, nodes: int) -> Graph:
    """Nodes that send each other nothing: they are alone, or talk to a server."""
    return cyclic(name, nodes, (_to_hops(nodes, [0]),))


def _to_hops(nodes: int, hops: Iterable[int]) -> Edges:
    source, hop = np.meshgrid(np.arange(nodes), np.fromiter(hops, dtype=np.int64), indexing="ij")
    return uniform(nodes, source.ravel(), ((source + hop) % nodes).ravel())


def _powers(nodes: int) -> list[int]:
    # 2^0 … 2^⌊log2(n−1)⌋ (the paper's appendix); (n−1).bit_length() is ⌊log2(n−1)⌋+1 without rounding.
    return [2**r for r in range((nodes - 1).bit_length())] or [0]


def _torus(nodes: int) -> tuple[Edges, ...]:
    rows = _rows(nodes)
    columns = nodes // rows
    if rows == 1 < nodes:
        near = [size for size in (nodes - 1, nodes + 1, nodes + 2) if _rows(size) > 1]
        raise Refused(
            f"nodes = {nodes} is prime: a torus needs rows × columns", f"use {' or '.join(map(str, near[:2]))}"
        )
    row, column = np.divmod(np.arange(nodes), columns)
    down, up = (row + 1) % rows, (row - 1) % rows
    right, left = (column + 1) % columns, (column - 1) % columns
    target = [down * columns + column, up * columns + column, row * columns + right, row * columns + left]
    return (uniform(nodes, np.tile(np.arange(nodes), 4), np.concatenate(target)),)


def _rows(nodes: int) -> int:
    """The shorter side of the most square grid of `nodes` nodes."""
    return max(side for side in range(1, isqrt(nodes) + 1) if nodes % side == 0)


def _random(nodes: int, degree: int, seed: int) -> Graph:
    """At each step every node picks `degree` distinct others uniformly; receivers differ, so push-sum is at work.

    Keyed by (`seed`, step) alone: any process, at any time, gets the same edges.
    """
    if not 1 <= degree < max(nodes, 2):
        raise Refused(f"graph.degree = {degree} with nodes = {nodes}", f"use 1 … {max(nodes - 1, 1)}")
    if not 0 <= seed < 2**256:
        raise Refused(f"seed = {seed} is negative, or too large", "use a whole number from 0 to 2^256 − 1")
    return Graph("random", nodes, None, partial(_random_edges, nodes, degree, seed))


@lru_cache(maxsize=64)
def _random_edges(nodes: int, degree: int, seed: int, k: int) -> Edges:
    if nodes == 1:
        return _to_hops(1, [0])
    # Raw bits of a keyed bit generator, because NumPy promises those (not its samplers) to stay the same for ever.
    bits = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(k,))).random_raw(nodes * (nodes - 1))
    picked = np.argpartition(bits.reshape(nodes, nodes - 1), degree - 1, axis=1)[:, :degree]
    source = np.arange(nodes)[:, None]
    return uniform(nodes, np.repeat(source, degree), (picked + (picked >= source)).ravel())


_CYCLIC: dict[str, Callable[[int], tuple[Edges, ...]]] = {
    "exponential": lambda nodes: tuple(_to_hops(nodes, [hop]) for hop in _powers(nodes)),
    "exponential-static": lambda nodes: (_to_hops(nodes, _powers(nodes)),),
    "ring-directed": lambda nodes: (_to_hops(nodes, [1]),),
    "ring": lambda nodes: (_to_hops(nodes, [1, nodes - 1]),),
    "complete": lambda nodes: (_to_hops(nodes, range(nodes)),),
    "torus": _torus,
}
GRAPHS: dict[str, type[Options]] = dict.fromkeys(_CYCLIC, Options) | {"random": RandomOptions, "given": _GivenOptions}
NAMES = (*_CYCLIC, "random")  # those that need no shares
