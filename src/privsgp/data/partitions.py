"""The division of samples among nodes: even, by Dirichlet shares or sorted; equal or given sizes J_i; disjoint.

A partition simulates sites on one machine. It is public randomness, drawn from the generator the caller keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from privsgp.errors import Refused
from privsgp.options import Options, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from privsgp.data.dataset import Targets

    Rows = NDArray[np.int64]


class _DirichletOptions(Options):
    """Label skew: each class is cut among the nodes in Dirichlet(α) shares."""

    # Above 1e9 the shares are equal to six digits; far above, their sum overflows.
    alpha: Annotated[float, Field(gt=0, le=1e9)] = option(0.5, "α: smaller is more skewed")


PARTITIONS: dict[str, type[Options]] = {"even": Options, "dirichlet": _DirichletOptions, "sorted": Options}
KINDS = tuple(PARTITIONS)


def check(kind: str, nodes: int, sizes: Sequence[int] | None) -> None:
    """Refuse what is impossible for any data, before any is read."""
    if kind not in KINDS:
        raise Refused(f"data.partition = {kind!r} is unknown", f"use one of {', '.join(KINDS)}")
    if sizes is None:
        return
    if kind == "dirichlet":
        raise Refused("data.sizes with data.partition = 'dirichlet'", "leave data.sizes out: the draw decides them")
    if len(sizes) != nodes:
        raise Refused(f"data.sizes has {len(sizes)} entries for data.nodes = {nodes}", "give one size per node")
    if min(sizes) < 1:
        raise Refused(f"data.sizes has the entry {min(sizes)}: a node without samples", "give every node at least one")


def partition(
    kind: str,
    labels: Targets,
    nodes: int,
    *,
    rng: np.random.Generator,
    alpha: float = 0.5,
    sizes: Sequence[int] | None = None,
) -> list[Rows]:
    """The rows of each node, at least one each.

    Without `sizes` every sample is given out: "even" and "sorted" sizes differ by one at most (the first N mod n nodes
    have one more), "dirichlet" sizes follow the draw. With `sizes`, which "dirichlet" refuses, node i gets exactly
    sizes[i] samples.
    """
    check(kind, nodes, sizes)
    N = len(labels)
    if nodes > N:
        raise Refused(f"data.nodes = {nodes}, but there are only {N} samples", f"use at most {N} nodes")
    if sizes is not None and sum(sizes) > N:
        raise Refused(f"data.sizes sum to {sum(sizes)}, but there are only {N} samples", f"let them sum to at most {N}")
    if kind != "even" and (labels.dtype.kind not in "iu" or labels.ndim != 1):
        raise Refused(f"data.partition = {kind!r} needs class labels", 'use "even" for regression')
    if kind == "dirichlet":
        return _feed_empty(_dirichlet(labels, nodes, alpha, rng))
    given = even_sizes(N, nodes) if sizes is None else sizes
    chosen = rng.permutation(N)[: sum(given)]
    if kind == "sorted":
        chosen = chosen[np.argsort(labels[chosen], kind="stable")]
    return np.split(chosen, np.cumsum(given)[:-1])


def even_sizes(N: int, nodes: int) -> list[int]:
    """The sizes J_i of an even partition: the first N mod n nodes have one sample more."""
    return [N // nodes + (node < N % nodes) for node in range(nodes)]


def _dirichlet(labels: Targets, nodes: int, alpha: float, rng: np.random.Generator) -> list[Rows]:
    """Each class is cut among the nodes in Dirichlet(alpha) shares."""
    pieces = []
    classes = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    for rows in classes:
        ends = np.cumsum(rng.dirichlet(np.full(nodes, alpha))) * len(rows)
        pieces.append(np.split(rows, np.rint(ends[:-1]).astype(np.int64)))
    return [np.concatenate(node) for node in zip(*pieces, strict=True)]


def _feed_empty(parts: list[Rows]) -> list[Rows]:
    """Give each node without samples one of the largest node's: J_i = 0 has no sampling rate."""
    for node, rows in enumerate(parts):
        if len(rows) == 0:
            largest = int(np.argmax([len(other) for other in parts]))
            parts[node], parts[largest] = parts[largest][-1:], parts[largest][:-1]
    return parts
