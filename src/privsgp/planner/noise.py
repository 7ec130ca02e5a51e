"""The sites of a plan, the methods it compares, and the noise that each method needs for their budgets.

A plan asks for σ at several K and for every budget. `calibration.rough_sigma` answers within a percent. A plan may do
that because it promises nothing: training calibrates and certifies every σ_i that it uses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from privsgp import plugins
from privsgp.accounting import calibration
from privsgp.accounting.compound import PersonLevel, Shared
from privsgp.accounting.curve import Gaussian
from privsgp.accounting.mechanisms import Accountant, Mechanism, Relation, nominal
from privsgp.accounting.sharing import Sharing, solve
from privsgp.algorithms import ALGORITHMS, Settings
from privsgp.algorithms.update_rule import node_weights

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.accounting.pairwise import PairwiseCovariance
    from privsgp.algorithms.update_rule import Weights


Budget = tuple[float, float]  # (ε_i, δ_i)


@dataclass(frozen=True)
class Network:
    """The sites and their budgets; all of it public."""

    samples: Sequence[int]
    budgets: Sequence[Budget]
    relation: Relation = "zero-out"
    spare: float = 0.0
    accountant: Accountant = "certified"
    weighting: Weights = "equal"
    sharing: Sharing | None = None  # the sites that share noise; None: no site does
    pair_ratio: float = 2.0
    sites: Sequence[str] = ()  # the names that people use
    rows_per_person: int | None = None  # None: a sample is a record
    sites_per_person: int = 1

    def named(self, node: int) -> str:
        """Return a node's number and name."""
        return f"node {node}" + (f" ({self.sites[node]})" if self.sites else "")

    @cached_property
    def noises(self) -> list[float]:
        """σ_i up to a common factor."""
        return calibration.relative_noise(self.budgets, self.samples)

    @cached_property
    def weights(self) -> list[float] | None:
        """p_i, how much each node counts; None: all count equally."""
        return node_weights(self.weighting, self.samples, self.noises, shared=self.sharing is not None)

    def covariance(self, sigmas: Sequence[float]) -> PairwiseCovariance | None:
        """Return the shared noise that is worth σ_i to each node; None where noise is not shared."""
        if self.sharing is None:
            return None
        return solve(sigmas, self.sharing.honest, self.pair_ratio, self.weights)

    def counted(self, mechanism: Mechanism) -> Mechanism:
        """Return the mechanism of a node's own noise as that of noise that nodes share, and of persons, where it is."""
        if self.sharing is not None and mechanism.shared is None:
            mechanism = Shared(mechanism, self.sharing.honest, self.sharing.nodes - 1)
        if self.rows_per_person is None:
            return mechanism
        return PersonLevel(mechanism, self.rows_per_person, self.sites_per_person, self.correlation)

    @cached_property
    def correlation(self) -> float:
        """The correlation of two nodes' messages, for nodes with one budget."""
        shared = self.covariance(self.noises)
        return 1.0 if self.sharing is None or shared is None else shared.correlation(self.sharing.honest, self.noises)

    @property
    def independent(self) -> float:
        """The average's noise if it were independent, in the unit of `noises`: √Σ p_i² σ_i²."""
        return math.hypot(
            *(p * s for p, s in zip(self.weights or [1 / self.nodes] * self.nodes, self.noises, strict=True))
        )

    @cached_property
    def remaining(self) -> float:
        """The share of the average's noise that sharing leaves: 1 where noise is not shared."""
        shared = self.covariance(self.noises)
        return 1.0 if shared is None else shared.average_sigma / self.independent

    @property
    def nominal(self) -> bool:
        """Whether noise is the paper's."""
        return nominal(self.accountant)

    @property
    def nodes(self) -> int:
        """The paper's n."""
        return len(self.samples)

    @property
    def mean_samples(self) -> float:
        """J̄."""
        return sum(self.samples) / self.nodes

    @property
    def delta(self) -> float:
        """The smallest δ_i, which goes with `epsilon`."""
        return min(delta for _, delta in self.budgets)

    @cached_property
    def epsilon(self) -> float:
        """The ε that, given to every node with J̄ samples, brings as much noise into the average as the budgets do."""
        return Gaussian(1 / (self.mean_samples * math.sqrt(self.nodes) * self.independent)).epsilon(self.delta)

    def releases(self, steps: int) -> int:
        """Count the spare releases in."""
        return steps + math.ceil(self.spare * steps)


@dataclass(frozen=True)
class Method:
    """An algorithm with its settings."""

    algorithm: str
    settings: Settings

    @property
    def scaled(self) -> bool:
        """Whether θ is "auto", and another one for every batch and K."""
        return getattr(self.settings.options, "difference_scale", None) == "auto"

    def changed(self, **options: Any) -> Method:  # noqa: ANN401 - values of options
        """Return the method with other values of those options that it has."""
        return replace(self, settings=self.settings.carried_to(ALGORITHMS[self.algorithm].Options, **options))

    def mechanism(self, batch: float, samples: int) -> Mechanism:
        """Return what one message of a node reveals, without its noise."""
        return ALGORITHMS[self.algorithm].mechanism(self.settings, sigma=0.0, batch=batch, samples=samples, kappa=0.0)


class NoiseNeeded:
    """σ by K, as a method needs it at a batch."""

    def __init__(self, network: Network, method: Method, batch: float) -> None:
        self.network, self.batch = network, batch
        self.method = method.changed(difference_scale=1.0) if network.nominal and method.scaled else method

    def scale(self, steps: int) -> float:
        """Return θ at K: what training will take where it is "auto"."""
        n, bare = self.network, self.method.mechanism(self.batch, round(self.network.mean_samples)).weighted
        if bare is None or not self.method.scaled:
            return self.method.settings.difference_scale
        return calibration.largest(bare, n.releases(steps), *max(n.budgets), n.relation, n.remaining)

    def scaled_method(self, steps: int) -> Method:
        """Return the method with a number for θ."""
        return self.method.changed(difference_scale=self.scale(steps)) if self.method.scaled else self.method

    def sigma(self, steps: int, budget: Budget) -> float:
        """Return σ of a node with J̄ samples and this budget."""
        n, mechanism = self.network, self.scaled_method(steps).mechanism(self.batch, round(self.network.mean_samples))
        if n.nominal:
            return float(plugins.formula(n.accountant).sigma(mechanism, steps, *budget))
        return calibration.rough_sigma(n.counted(mechanism), n.releases(steps), *budget, n.relation)

    def common(self, steps: int) -> float:
        """Return σ of a node with J̄ samples and the common budget."""
        return self.sigma(steps, (self.network.epsilon, self.network.delta))

    def in_average(self, steps: int) -> float:
        """Return √n times the noise in the average: what `common` would be if noise were independent."""
        return self.network.remaining * self.common(steps)

    def each(self, steps: int) -> list[float]:
        """Return σ_i of every node; σJ/G depends on nothing but the rate and the budget."""
        n = self.network
        known = {budget: self.sigma(steps, budget) for budget in set(n.budgets)}
        J = round(n.mean_samples)
        return [known[budget] * J / own for budget, own in zip(n.budgets, n.samples, strict=True)]
