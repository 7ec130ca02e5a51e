"""Runs that have ended, and that another run continues: what they released is counted together with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from privsgp.accounting.compound import Continued, Shared
from privsgp.accounting.pairwise import PairwiseCovariance
from privsgp.algorithms import ALGORITHMS
from privsgp.algorithms.update_rule import node_weights
from privsgp.runs.budgets import batch_sizes, settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.runs.config import Config


@dataclass(frozen=True)
class Phase:
    """The releases of one node in a run that has ended, as all sites agreed on that run.

    `shared` is its pairwise noise, if any: each node's own variances, and that of a pair. `honest` is how many of its
    nodes are taken to be honest, this one included: 1 where another site may know the node's pair secrets.
    """

    config: Config
    samples: Sequence[int]
    sigma: Sequence[float]
    shared: tuple[Sequence[float], float] | None
    node: int
    releases: int
    honest: int

    def mechanism(self, slack: float, coordinates: int, honest: int) -> Mechanism:
        """Return what was released, if at most `honest` nodes were honest.

        Guarantee: as `PairwiseCovariance.effective`, for every set of so many honest nodes of that run.
        """
        c, i = self.config, self.node
        made = ALGORITHMS[c.algorithm.name].mechanism(
            settings(c), sigma=self.sigma[i], batch=batch_sizes(c, self.samples)[i], samples=self.samples[i],
            kappa=slack,
        ).changed(coordinates=coordinates)  # fmt: skip
        if self.shared is None:
            return made
        weights = node_weights(c.algorithm.weights, self.samples, self.sigma, shared=True)
        own, pair = self.shared
        noise = PairwiseCovariance(tuple(own), pair, None if weights is None else tuple(weights))
        h = min(self.honest, honest)
        return Shared(made.with_sigma(noise.effective(h)[i]), h, noise.nodes - 1, min(noise.own_sigma))


def continued(mechanism: Mechanism, phases: Sequence[Phase], honest: int) -> Mechanism:
    """Return a node's mechanism counted together with all that the node released before."""
    slack, coordinates = mechanism.kappa, mechanism.coordinates
    earlier = tuple((one.mechanism(slack, coordinates, honest), one.releases) for one in phases if one.releases)
    return Continued(mechanism, earlier) if earlier else mechanism
