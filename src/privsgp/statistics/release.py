"""One noised sum of the sites' vectors: of each person one vector, of each site one Gaussian release.

Nothing here reads or writes a file. `Release.plan` sets the noise, `added` forms a site's sum, `noised` adds the noise,
and `total` is push-sum: every site gets the sum over all sites. A site's sum never leaves without its noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from privsgp.accounting import accountant, calibration
from privsgp.accounting.mechanisms import Counts, Shared
from privsgp.accounting.pairwise import NoiseGraph
from privsgp.accounting.sharing import solve
from privsgp.errors import Refused
from privsgp.randomness.noise import IndependentNoise, Source, levels, snap_
from privsgp.randomness.pairwise import PairwiseNoise
from privsgp.transport.in_process import InProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from privsgp.accounting.mechanisms import Mechanism, Relation
    from privsgp.graph import Graph
    from privsgp.randomness.protocol import Noise

    Array = NDArray[np.float64]

KAPPA = 2.0**-20  # by which a vector's norm, computed in float64, may be off, and a sum of vectors
_ROOM = 1 + 2.0**-17  # for what the sampler of shared noise costs where other nodes add less than a node expects
_LONGEST = 10_000  # rounds of push-sum


@dataclass(frozen=True)
class Vectors:
    """The form of a person's vector: length, largest norm, and whether an entry may be negative."""

    length: int
    norm: float
    signed: bool = False


@dataclass(frozen=True)
class Release:
    """A release that was planned: one mechanism for each site, the noise they add, and what it costs.

    Guarantee: `epsilon` of each site is certified at `delta` for its one message, and at most the budget.
    """

    vectors: Vectors
    mechanisms: tuple[Mechanism, ...]
    noise: Noise
    own: tuple[float, ...]  # the standard deviation of each site's own noise
    relation: Relation
    epsilon: tuple[float, ...]
    delta: float

    @classmethod
    def plan(
        cls, vectors: Vectors, sizes: Sequence[int], epsilon: float, delta: float, relation: Relation = "zero-out",
        honest: int | None = None, ratio: float = 2.0,
    ) -> Release:  # fmt: skip
        """Return the release with the least noise that is within (ε, δ) for each site.

        `sizes` are how many persons each site counts, which is public. With `honest`, pairs of sites share noise, and ε
        holds as long as so many of them are honest.
        """
        n = len(sizes)
        graph = NoiseGraph(n) if honest is not None and n > 1 else None
        bare = [
            Counts(
                sigma=1.0, clip=vectors.norm, samples=size, kappa=KAPPA, coordinates=vectors.length,
                signed=vectors.signed,
            )
            for size in sizes
        ]  # fmt: skip
        made: list[Mechanism] = list(bare)
        if graph is not None and honest is not None:
            made = [Shared(one, honest, graph.partners) for one in bare]
        room = 1.0 if graph is None else _ROOM
        known = {m: room * calibration.sigma(m, 1, epsilon, delta, relation) for m in set(made)}
        needed, noise, own = [known[m] for m in made], IndependentNoise(), [known[m] for m in made]
        made = [m.with_sigma(sigma) for m, sigma in zip(made, needed, strict=True)]
        if graph is None or honest is None:
            return cls._counted(vectors, made, noise, own, relation, delta)
        covariance = solve(needed, honest, ratio, graph)
        worth, own = covariance.effective(honest), covariance.own_sigma
        made = [Shared(m.with_sigma(s), honest, graph.partners, min(own)) for m, s in zip(bare, worth, strict=True)]
        return cls._counted(vectors, made, PairwiseNoise(covariance, honest), own, relation, delta)

    @classmethod
    def _counted(
        cls, vectors: Vectors, made: Sequence[Mechanism], noise: Noise, own: Sequence[float], relation: Relation,
        delta: float,
    ) -> Release:  # fmt: skip
        spent = [accountant.epsilon(m, 1, delta, relation).epsilon for m in made]
        return cls(vectors, tuple(made), noise, tuple(own), relation, tuple(spent), delta)

    @property
    def sigma(self) -> float:
        """The standard deviation of each entry's noise in the sum over all sites, rounding included."""
        return math.sqrt(sum(s * s for s in self.own) + sum(g * g for g in self._grids) / 12)

    @property
    def _grids(self) -> list[float]:
        return [float(one) for one in levels(self.own, torch.device("cpu"))[:, 1]]

    def noised(self, sums: Sequence[Array], source: Source) -> Tensor:
        """Return each site's message: its sum with its noise, rounded to a public grid.

        Guarantee: each row is one release of the site's mechanism, as it is counted.
        Assumes: `sums` are what `added` made, and `source` has drawn nothing for these sites before.
        """
        g, nodes = torch.from_numpy(np.stack(sums)), range(len(sums))
        self.noise.of_nodes(nodes, self.mechanisms, source).add_(g, nodes, 0)
        snap_(g, self.own)  # of a secret source it is on the grid already
        return g

    def total(self, messages: Tensor, graph: Graph) -> Array:
        """Return the exact sum of all messages, which push-sum brings to every site.

        All messages are on a grid. So a site knows the sum as soon as its estimate is near one point of the grid.
        """
        n, grid = len(messages), min(self._grids)
        exact = messages.sum(0).div_(grid).round_()
        x, w = messages, torch.ones(n, dtype=torch.float64)
        transport = InProcess(graph, x)
        for k in range(_LONGEST):
            if all(
                torch.equal(torch.round(row * (n / weight / grid)), exact) for row, weight in zip(x, w, strict=True)
            ):
                return np.asarray((exact * grid).numpy())
            x, w = transport.mix(k, x, w)
        raise Refused(f"the sites do not agree on the sum after {_LONGEST:,} rounds", "take another graph.name")


def added(vectors: Vectors, rows: Array, persons: NDArray[np.int64] | None = None) -> Array:
    """Return a site's sum: of each person the mean of the vectors of that person's rows.

    `persons` numbers the person of each row from 0; None: each row is a person.

    Guarantee: refuses vectors that are longer than was counted, so no person moves the sum by more.
    """
    if persons is not None:
        weights = 1 / np.bincount(persons)[persons]
        merged = np.zeros((int(persons.max(initial=-1)) + 1, vectors.length))
        np.add.at(merged, persons, rows * weights[:, None])
        rows = merged
    norms = np.sqrt(np.square(rows).sum(1)) if len(rows) else np.zeros(1)
    negative = not vectors.signed and bool((rows < 0).any())
    if rows.shape[1:] != (vectors.length,) or negative or not bool((norms <= vectors.norm * (1 + KAPPA / 2)).all()):
        raise RuntimeError("a person's vector is not as it was counted: nothing was released")
    return np.asarray(rows.sum(0))
