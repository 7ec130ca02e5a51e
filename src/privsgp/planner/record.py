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

    @cached_property
    def constants(self) -> list[float]:
        """The test loss of the best constant guess in every run: the entropy of the classes, or the variance."""
        targets = [run.y_test for run in self.planner.rehearsal.runs]
        if targets[0].is_floating_point():
            return [float(y.double().var(0, correction=0).mean()) for y in targets]
        shares = [y.bincount().double() / len(y) for y in targets]
        return [float(-(p[p > 0] * p[p > 0].log()).sum()) for p in shares]

    @property
    def clip_text(self) -> str:
        """Say what the clip is, and where it comes from."""
        clip = self.chosen.method.settings.clip
        if self.asked.get("clip") != "auto":
            return f"{clip:g} (the configuration says so)"
        median = float(self.planner.rehearsal.norms().median())
        return f"{clip:g} ({clip / median:.1f} times the median gradient norm of the rehearsed samples)"

    @property
    def range_text(self) -> str:
        """Say between which losses the run should end, and what a constant guess gives."""
        losses = self.chosen.losses or [-self.chosen.score]
        return f"{span(sorted(losses))} from strong to weak signal; a constant guess gives {span(self.constants)}"

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
            *_no_better(self.chosen.losses, self.constants),
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
            "clip": c.method.settings.clip,
            "rehearsal_score": c.score,
            "test_loss": list(c.losses),
            "constant_loss": self.constants,
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
            ("clip", self.clip_text),
            ("planned test loss", self.range_text),
            ("rehearsed on", self.source.text),
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


def _no_better(losses: Sequence[float], constants: Sequence[float]) -> list[str]:
    """Compare planned losses with a constant guess."""
    above = [loss >= constant for loss, constant in zip(losses, constants, strict=False)]
    if above and all(above):
        return ["this table and budget cannot beat the base rate: a constant guess has a lower loss in every rehearsal"]
    return ["if the signal is weak, the model is no better than a constant guess"] if any(above) else []


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
