"""A finished plan: what to run, what to expect of it, and everything that was looked at on the way.

`Formula` is the paper's bound alone, from constants a user gives; `Plan` is a run that was also rehearsed. Both turn
into plain values for JSON, which people are shown too (`shown.py`); a plan's go into plan.json of the run folder.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from privsgp.accounting.shown import up
from privsgp.files import finite
from privsgp.graph import constants as graph_constants
from privsgp.planner import estimates, theorems
from privsgp.planner.choose import LENGTHS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.graph import Graph
    from privsgp.planner.choose import Choice, Network, NoiseNeeded, Planner
    from privsgp.planner.estimates import Source
    from privsgp.planner.theorems import Constants


VERSION = 1
WIDEST = 4.0**10  # the K between 1 and this among which the bound's valley is looked for
REACHED = 1e9  # steps that no run takes: how many more they are tells nobody anything
HEAVY = 0.9  # leaving a node out is worth a word when the average's noise falls below this share


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

    def bound(self, steps: float) -> float:
        """Return Theorem 1's bound after so many steps."""
        n, sigma = self.network.nodes, self.noise.in_average(steps)
        return theorems.bound(self.constants, n, self.dim, steps, [sigma**2] * n)

    @cached_property
    def log_least_steps(self) -> float:
        """Return ln K̂(C, q)."""
        lemma, n = graph_constants(self.graph, self.dim).lemma, self.network
        return theorems.log_least_steps(
            self.constants.smoothness, n.nodes, n.mean_samples, lemma.log_c, lemma.log_one_minus_q
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        n, K, sigmas = self.network, self.steps, self.noise.each(self.steps)
        return {
            "steps": K,
            "sigma": sigmas[0] if len(set(sigmas)) == 1 else sigmas,
            "bound": self.bound(K),
            "accountant": n.accountant,
            "nodes": n.nodes,
            "epsilon": [epsilon for epsilon, _ in n.budgets],
            "delta": [delta for _, delta in n.budgets],
            "published_steps": self.published_steps,
            "least_steps_log10": finite(self.log_least_steps / math.log(10)),
            "constants": asdict(self.constants),
            "warnings": [
                *below_theorem(K, self.log_least_steps), *outside_theorem_3(K, n), *careless_delta(n),
                *heavy_nodes(sigmas, n),
            ],
        }  # fmt: skip


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

    @cached_property
    def sigmas(self) -> list[float]:
        """σ_i at the chosen K."""
        return self.chosen.noise.each(self.chosen.steps)

    @property
    def network(self) -> Network:
        """The sites and their budgets."""
        return self.planner.network

    def deviation(self, choice: Choice) -> float:
        """Return the standard deviation that privacy adds to a coordinate of the average model."""
        noise = choice.noise.in_average(choice.steps) * math.sqrt(choice.steps / self.network.nodes)
        return choice.step_size * noise * math.sqrt(choice.response)

    def _shared(self) -> dict[str, Any] | None:
        """Return the trust that shared noise needs, and what it gives; None if noise is independent."""
        c, n = self.chosen, self.network
        covariance = n.covariance(self.sigmas)
        if covariance is None or n.sharing is None:
            return None
        made = c.method.mechanism(c.batch, round(n.mean_samples)).with_sigma(c.noise.at(c.steps))
        alike = n.sharing.solved(made.sigma, n.pair_ratio)
        told = n.sharing.told(alike, n.sharing.counted(made, alike), n.releases(c.steps), n.budget[1], n.relation)
        mean = {"average_sigma": covariance.average_sigma, "message_sigma": covariance.message_sigma}
        return told | mean | {"independent_noise_in_average": self.deviation(c) / n.left}

    def as_json(self) -> dict[str, Any]:
        """Return plain values for plan.json; none of them depends on any node's samples."""
        c, n = self.chosen, self.network
        cut = [f"K was cut at {c.steps}: more steps would still help, a larger batch more"]
        heavy = heavy_nodes(self.sigmas, n) if n.weights is None else []
        return {
            "version": VERSION,
            "algorithm": c.method.algorithm,
            "difference_clip": c.method.settings.difference_clip,
            **self._numbers(c),
            "why": self.why,
            "asked": self.asked,
            "estimated_on": {"kind": self.source.kind, "name": self.source.name, "words": self.source.text},
            "accountant": n.accountant,
            "sites": [n.sites[i] if n.sites else f"site {i}" for i in range(n.nodes)],
            "samples": list(n.samples),
            "sigma": self.sigmas,
            "epsilon": [epsilon for epsilon, _ in n.budgets],
            "delta": [delta for _, delta in n.budgets],
            "weights": n.weights,
            "pairwise": self._shared(),
            "rehearsal_score": c.score,
            "bytes_sent_per_node": estimates.bytes_sent_per_node(
                self.graph, self.planner.rehearsal.layout.dim, c.steps
            ),
            "methods": [self._numbers(choice) for choice in self.choices],
            "warnings": [*careless_delta(n), *heavy, *(cut if c.steps >= LENGTHS[-1] else [])],
        }

    def _numbers(self, choice: Choice) -> dict[str, Any]:
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


def below_theorem(steps: float, log_least: float) -> list[str]:
    """K below K̂(C, q): Theorem 1 says nothing here."""
    if math.log(steps) >= log_least:
        return []
    least = f"K̂ = {math.exp(log_least):.2g}" if log_least < math.log(REACHED) else "K̂, which no run reaches"
    return [f"K = {steps:.0f} is below {least}: Theorem 1 says nothing here; its bound only compares plans"]


def outside_theorem_3(steps: float, n: Network) -> list[str]:
    """ε_i ≥ c₁K/J_i²: the paper leaves c₁ open, so say how large it would have to be for its noise to hold."""
    factor = max(epsilon * j**2 / steps for (epsilon, _), j in zip(n.budgets, n.samples, strict=True))
    if factor < 1 or not n.nominal:
        return []
    return [f"Theorem 3 holds if its c₁, which the paper does not give, exceeds {factor:.3g}: this noise is nominal"]


def heavy_nodes(sigmas: Sequence[float], n: Network) -> list[str]:
    """A node whose noise drags all others: what leaving it out, or giving nodes weights ∝ 1/σ², would give."""
    count, total = len(sigmas), math.fsum(s**2 for s in sigmas)
    worst = max(range(count), key=lambda i: sigmas[i])
    without = math.sqrt((total - sigmas[worst] ** 2) / total) * count / (count - 1) if count > 1 and total else 1.0
    if without >= HEAVY:
        return []
    weighted = count / math.sqrt(math.fsum(1 / s**2 for s in sigmas) * total) if min(sigmas) else 0.0
    share = f"{n.named(worst)}, at ε = {up(n.budgets[worst][0])}, brings {sigmas[worst] ** 2 / total:.0%} of the"
    said = f"{share} average's noise: without it the noise is {without:.2f} times as large"
    return [f"{said}, with algorithm.weights = 'noise' {weighted:.2f} times"]


def careless_delta(n: Network) -> list[str]:
    """δ_i ≥ 1/J_i would allow to publish a sample outright."""
    bad = [i for i, ((_, delta), j) in enumerate(zip(n.budgets, n.samples, strict=True)) if delta * j >= 1]
    return [f"δ of {n.named(i)} is not below 1/J = {1 / n.samples[i]:.2g}: it should be, by far" for i in bad[:1]]
