"""A finished plan: what to run, what to expect of it, its warnings, as plain values and as the rows of tables.

The plain values go into plan.json of the run folder.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from privsgp.accounting.shown import guess, percent_up, small, span_up, up
from privsgp.planner.choose import LENGTHS
from privsgp.planner.theorems import careless_delta
from privsgp.runs.views import span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from privsgp.graph import Graph
    from privsgp.planner.choose import Choice, Planner
    from privsgp.planner.noise import Network
    from privsgp.planner.theorems import Budget


VERSION = 1
HEAVY = 0.9  # leaving a node out is worth a warning when the average's noise falls below this share
BYTES = 4  # float32


@dataclass(frozen=True)
class Source:
    """Where the samples of a plan come from."""

    kind: Literal["synthetic", "public"]
    name: str

    @property
    def text(self) -> str:
        """Say it to the user."""
        if self.kind == "synthetic":
            return "synthetic stand-in data: nothing was spent"
        return f"{self.name}, which the configuration declares public: nothing was spent"


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

    @cached_property
    def bytes_sent(self) -> int:
        """Bytes that a node sends on average."""
        return bytes_sent_per_node(self.graph, self.planner.rehearsal.layout.dim, self.chosen.steps)

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
        made = c.method.mechanism(c.batch, round(n.mean_samples)).with_sigma(c.noise.common(c.steps))
        alike = n.sharing.solved(made.sigma, n.pair_ratio)
        mechanism = n.sharing.counted(made, alike)
        told = n.sharing.told(alike, mechanism, n.releases(c.steps), n.delta, n.relation)
        mean = {"average_sigma": covariance.average_sigma, "message_sigma": covariance.message_sigma}
        return told | mean | {"independent_noise_in_average": self.deviation(c) / n.left}

    @cached_property
    def warnings(self) -> list[str]:
        """Return what to know before the plan is carried out."""
        n, last = self.network, LENGTHS[-1]
        return [
            *careless_delta(n.samples, n.budgets, n.named),
            *(heavy_nodes(self.sigmas, n.budgets, n.named) if n.weights is None else []),
            *([f"K was cut at {last}: more steps would still help"] if self.chosen.steps >= last else []),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for plan.json; none of them depends on any node's samples."""
        c, n = self.chosen, self.network
        return {
            "version": VERSION,
            **self._method(c),
            "algorithm": c.method.algorithm,
            "difference_clip": c.method.settings.difference_clip,
            "why": self.why,
            "asked": self.asked,
            "estimated_on": asdict(self.source) | {"words": self.source.text},
            "accountant": n.accountant,
            "sigma": self.sigmas,
            "epsilon": [epsilon for epsilon, _ in n.budgets],
            "delta": [delta for _, delta in n.budgets],
            "weights": n.weights,
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
            "sigma": choice.noise.common(choice.steps),
            "noise_in_average": self.deviation(choice),
            "score": choice.score,
        }

    def rows(self) -> list[tuple[str, str]]:
        """Return what `privsgp plan` prints first."""
        c, n, shared = self.chosen, self.network, self.shared
        noise = f"{self.deviation(c):.3g} per coordinate"
        trust: list[tuple[str, str]] = []
        if shared is not None:
            noise += f"; independent noise would leave {shared['independent_noise_in_average']:.3g}"
            known = (f"{h}: {'no bound' if epsilon is None else up(epsilon, 3)}" for h, epsilon in shared["curve"])
            trust.append(("trust", f"{shared['honest']} of {shared['nodes']} nodes are honest"))
            trust.append(("ε by the number of honest nodes", ", ".join(known)))
        weights = "equal" if n.weights is None else f"{span([n.nodes * p for p in n.weights])} times 1/n"
        return [
            ("algorithm", c.method.label),
            ("why", self.why),
            ("steps K*", str(c.steps)),
            ("batch", f"{c.batch:g} of {n.mean_samples:g} samples a node"),
            ("step size γ", f"{c.step_size:.4g}"),
            *([("weight θ of differences", f"{c.scale:.4g}")] if c.method.algorithm == "privsgp-vr" else []),
            ("noise σ", span(self.sigmas)),
            ("budget ε", span_up([epsilon for epsilon, _ in n.budgets])),
            ("weights of nodes", weights),
            ("noise in the average model", noise),
            *trust,
            ("score in rehearsal", f"{c.score:.3g} on {self.source.text}"),
            ("sent by a node", f"{self.bytes_sent / 1e6:.1f} MB"),
        ]

    def method_rows(self) -> list[tuple[str, ...]]:
        """Return one row for every method that was looked at: label, batch, K, γ, σ, noise in the average, score."""
        columns = ("step_size", "sigma", "noise_in_average", "score")
        return [
            (m["method"], f"{m['batch']:g}", str(m["steps"]), *(f"{m[key]:.3g}" for key in columns))
            for m in map(self._method, self.choices)
        ]

    def site_rows(self) -> list[tuple[str, ...]]:
        """Return a row for every site: name, records, ε, δ, how often a guess is right at most, share of the noise."""
        n = self.network
        weights = n.weights or [1 / n.nodes] * n.nodes
        noise = [(p * sigma) ** 2 for p, sigma in zip(weights, self.sigmas, strict=True)]
        return [
            (
                n.sites[i] if n.sites else f"site {i}", f"{n.samples[i]:,}", up(epsilon), small(delta),
                "nominal: no guarantee" if n.nominal else percent_up(guess(epsilon, delta)),
                f"{noise[i] / math.fsum(noise):.0%}",
            )
            for i, (epsilon, delta) in enumerate(n.budgets)
        ]  # fmt: skip


def bytes_sent_per_node(graph: Graph, dim: int, steps: int) -> int:
    """Return what a node sends on average: x and its float64 weight w, to every out-neighbour at every step."""
    period = graph.period or min(steps, 64)
    messages = sum(len(graph.out_neighbours(k, i)) for k in range(period) for i in range(graph.nodes))
    return round(messages / period / graph.nodes * steps * (dim * BYTES + 8))


def heavy_nodes(
    sigmas: Sequence[float], budgets: Sequence[Budget], named: Callable[[int], str] = "node {}".format
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
    who, share = f"{named(worst)}, at ε = {up(budgets[worst][0])},", sigmas[worst] ** 2 / total
    instead = f"without it the noise is {without:.2f} times as large, with algorithm.weights = 'noise' {weighted:.2f}"
    return [f"{who} brings {share:.0%} of the average's noise: {instead} times"]
