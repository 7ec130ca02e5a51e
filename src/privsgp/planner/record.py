"""A finished plan: what to run, what to expect of it, and everything that was looked at on the way.

`Formula` is the paper's bound alone, from constants a user gives; `Plan` is a run that was also rehearsed. Both turn
into plain values for JSON; a plan's go into plan.json of the run folder.

What a careful colleague would say about a plan before it is carried out.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from privsgp.accounting.shown import up
from privsgp.files import finite
from privsgp.graph import constants as graph_constants
from privsgp.planner import comparison, estimates, theorems
from privsgp.planner.choose import LENGTHS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from privsgp.graph import Graph
    from privsgp.planner.choose import Choice, Network, NoiseNeeded, Planner
    from privsgp.planner.estimates import Source
    from privsgp.planner.theorems import Budget, Constants


VERSION = 1
WIDEST = 4.0**10  # the K between 1 and this among which the bound's valley is looked for


@dataclass(frozen=True)
class Formula:
    """Theorem 1's bound for a network, with the noise of an accountant; d is `dim` and G `clip`."""

    network: Network
    graph: Graph
    constants: Constants
    dim: int
    clip: float
    noise: NoiseNeeded

    @cached_property
    def published_steps(self) -> float:
        """Corollary 1's K."""
        n = self.network
        return theorems.best_steps(self.constants, self.dim, self.clip, n.budgets, n.samples, n.c2)

    @cached_property
    def steps(self) -> int:
        """The K at which the bound is smallest: Corollary 1's, or by search with the certified σ(K)."""
        if self.network.nominal:
            return max(1, round(self.published_steps))
        return max(1, round(theorems.minimise(self.bound, 1.0, WIDEST, precision=1e-2)))

    def bound(self, steps: float, noise: NoiseNeeded | None = None) -> float:
        """Return Theorem 1's bound after so many steps, with this formula's noise or another method's."""
        n, sigma = self.network.nodes, (noise or self.noise).in_average(steps)
        return theorems.bound(self.constants, n, self.dim, steps, [sigma**2] * n)

    @cached_property
    def log_least_steps(self) -> float:
        """Return ln K̂(C, q)."""
        lemma, n = graph_constants(self.graph, self.dim).lemma, self.network
        return theorems.log_least_steps(
            self.constants.smoothness, n.nodes, n.mean_samples, lemma.log_c, lemma.log_one_minus_q
        )

    def warnings(self, steps: int) -> list[str]:
        """Return what to be careful about with the theory at this K."""
        n = self.network
        said = below_theorem(steps, self.log_least_steps)
        if n.nominal:
            said += outside_theorem_3(steps, n.samples, n.budgets)
        return said + careless_delta(n.samples, n.budgets, n.named)

    def comparison(self) -> list[dict[str, Any]]:
        """Return the paper's Table 1 for this network, up to constants."""
        n = self.network
        where = comparison.Setting(n.nodes, round(n.mean_samples), self.dim, n.epsilon, n.delta)
        return [
            {"algorithm": row.name, "utility": row.utility(where), "rounds": row.rounds(where), "trust": row.trust}
            for row in comparison.ROWS
        ]

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        n, sigmas = self.network, self.noise.each(self.steps)
        return {
            "steps": self.steps,
            "sigma": sigmas[0] if len(set(sigmas)) == 1 else sigmas,
            "bound": self.bound(self.steps),
            "accountant": n.accountant,
            "nodes": n.nodes,
            "epsilon": [epsilon for epsilon, _ in n.budgets],
            "delta": [delta for _, delta in n.budgets],
            "published_steps": self.published_steps,
            "least_steps_log10": finite(self.log_least_steps / math.log(10)),
            "constants": asdict(self.constants),
            "comparison": self.comparison(),
            "warnings": self.warnings(self.steps) + heavy_nodes(sigmas, n.budgets, n.named),
        }


@dataclass(frozen=True)
class Plan:
    """A run that was chosen: `chosen` among `choices`, and why."""

    planner: Planner
    graph: Graph
    source: Source
    chosen: Choice
    choices: Sequence[Choice]
    why: str
    asked: dict[str, Any]  # what the configuration says of all that can be chosen: a value, or "auto"
    measure: Callable[[Tensor, Tensor], dict[str, Any]] | None = None

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """Metrics of the chosen rehearsal's model, on samples it has not seen: made up, or public."""
        c, rehearsal = self.chosen, self.planner.rehearsal
        if self.measure is None:
            return {}
        x = rehearsal.end(self.planner.spec(c.noise, c.steps), c.distance)
        return self.measure(rehearsal.outputs(x), rehearsal.samples.y_test)

    @cached_property
    def sigmas(self) -> list[float]:
        """σ_i at the chosen K."""
        return self.chosen.noise.each(self.chosen.steps)

    @property
    def network(self) -> Network:
        """The sites and their budgets."""
        return self.planner.network

    @cached_property
    def bytes_sent(self) -> int:
        """Bytes that a node sends on average."""
        return estimates.bytes_sent_per_node(self.graph, self.planner.rehearsal.layout.dim, self.chosen.steps)

    def deviation(self, choice: Choice) -> float:
        """Return the standard deviation that privacy adds to a coordinate of the average model."""
        noise = choice.noise.in_average(choice.steps) * math.sqrt(choice.steps / self.network.nodes)
        return choice.step_size * noise * math.sqrt(choice.response)

    @cached_property
    def shared(self) -> dict[str, Any] | None:
        """The trust that shared noise needs, and what it gives; None if noise is independent."""
        c, n = self.chosen, self.network
        covariance = n.covariance(self.sigmas)
        if covariance is None or n.sharing is None:
            return None
        made = c.method.mechanism(c.batch, round(n.mean_samples)).with_sigma(c.noise.at(c.steps))
        alike = n.sharing.solved(made.sigma, n.pair_ratio)
        mechanism = n.sharing.counted(made, alike)
        told = n.sharing.told(alike, mechanism, n.releases(c.steps), n.delta, n.relation)
        mean = {"average_sigma": covariance.average_sigma, "message_sigma": covariance.message_sigma}
        return told | mean | {"independent_noise_in_average": self.deviation(c) / n.left}

    @cached_property
    def warnings(self) -> list[str]:
        """Return what to know before the plan is carried out."""
        n = self.network
        return [
            *careless_delta(n.samples, n.budgets, n.named),
            *(heavy_nodes(self.sigmas, n.budgets, n.named) if n.weights is None else []),
            *more_steps_help(self.chosen.steps, LENGTHS[-1]),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for plan.json; none of them depends on any node's samples."""
        c, n = self.chosen, self.network
        return {
            "version": VERSION,
            "steps": c.steps,
            "step_size": c.step_size,
            "batch": c.batch,
            "algorithm": c.method.algorithm,
            "difference_clip": c.method.settings.difference_clip,
            "difference_scale": c.scale,
            "evaluations": c.evaluations,
            "why": self.why,
            "asked": self.asked,
            "estimated_on": {"kind": self.source.kind, "name": self.source.name, "words": self.source.text},
            "accountant": n.accountant,
            "sigma": self.sigmas,
            "epsilon": [epsilon for epsilon, _ in n.budgets],
            "delta": [delta for _, delta in n.budgets],
            "weights": n.weights,
            "noise_in_average": self.deviation(c),
            "pairwise": self.shared,
            "rehearsal_score": c.score,
            "bytes_sent_per_node": self.bytes_sent,
            "methods": [self._method(choice) for choice in self.choices],
            "warnings": self.warnings,
        }

    def _method(self, choice: Choice) -> dict[str, Any]:
        return {
            "method": choice.method.label,
            "batch": choice.batch,
            "steps": choice.steps,
            "step_size": choice.step_size,
            "difference_scale": choice.scale,
            "evaluations": choice.evaluations,
            "sigma": choice.noise.at(choice.steps),
            "noise_in_average": self.deviation(choice),
            "score": choice.score,
        }


REACHED = 1e9  # steps that no run takes: how many more they are tells nobody anything
HEAVY = 0.9  # leaving a node out is worth a word when the average's noise falls below this share


def below_theorem(steps: float, log_least: float) -> list[str]:
    """K below K̂(C, q): Theorem 1 says nothing here."""
    if math.log(steps) >= log_least:
        return []
    least = f"K̂ = {math.exp(log_least):.2g}" if log_least < math.log(REACHED) else "K̂, which no run reaches"
    return [f"K = {steps:.0f} is below {least}: Theorem 1 says nothing here; its bound only compares plans"]


def outside_theorem_3(steps: float, samples: Sequence[int], budgets: Sequence[Budget]) -> list[str]:
    """ε_i ≥ c₁K/J_i²: the paper leaves c₁ open, so say how large it would have to be."""
    factor = max(epsilon * j**2 / steps for (epsilon, _), j in zip(budgets, samples, strict=True))
    if factor < 1:
        return []
    return [
        (
            f"Theorem 3 holds for ε_i < c₁K/J² only, with a c₁ that the paper does not give; here c₁ would have to "
            f"exceed {factor:.3g}: the published noise is nominal"
        )
    ]


def _numbered(node: int) -> str:
    return f"node {node}"


def heavy_nodes(
    sigmas: Sequence[float], budgets: Sequence[Budget], named: Callable[[int], str] = _numbered
) -> list[str]:
    """A node whose noise drags all others: what leaving it out, or giving nodes weights ∝ 1/σ², would give."""
    n, total = len(sigmas), math.fsum(s**2 for s in sigmas)
    if n < 2 or not total:
        return []
    worst = max(range(n), key=lambda i: sigmas[i])
    without = math.sqrt((total - sigmas[worst] ** 2) / total) * n / (n - 1)
    if without >= HEAVY:
        return []
    weighted = n / math.sqrt(math.fsum(1 / s**2 for s in sigmas) * total) if min(sigmas) else 0.0
    return [
        (
            f"{named(worst)}, at ε = {up(budgets[worst][0])}, brings {sigmas[worst] ** 2 / total:.0%} of the average's "
            f"noise: without it the noise is {without:.2f} times as large, with algorithm.weights = 'noise' "
            f"{weighted:.2f} times"
        )
    ]


def careless_delta(
    samples: Sequence[int], budgets: Sequence[Budget], named: Callable[[int], str] = _numbered
) -> list[str]:
    """δ_i ≥ 1/J_i would allow to publish a sample outright."""
    bad = [i for i, ((_, delta), j) in enumerate(zip(budgets, samples, strict=True)) if delta * j >= 1]
    return [f"δ of {named(bad[0])} is not below 1/J = {1 / samples[bad[0]]:.2g}: it should be, by far"] if bad else []


def more_steps_help(steps: int, most: int) -> list[str]:
    """K was cut at the end of what a plan looks at."""
    if steps < most:
        return []
    return [f"K was cut at {most}: more steps would still help, a larger batch more"]
