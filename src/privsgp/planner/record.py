"""A finished plan: what to run, what to expect of it, its warnings, as plain values and as the rows of tables.

The plain values go into plan.json of the run folder.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from privsgp.accounting import statements
from privsgp.accounting.shown import guess, percent_up, small, up
from privsgp.files import finite, in_units
from privsgp.models import per_sample
from privsgp.planner.choose import LENGTHS, Choice, Planner
from privsgp.planner.stand_in import NONE, Samples
from privsgp.runs import benefit
from privsgp.runs.problem import careless_delta
from privsgp.runs.views import labelled, span
from privsgp.transport.rounding import width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from privsgp.data.schema import Schema
    from privsgp.graph import Graph
    from privsgp.planner.noise import Network


VERSION = 1
WIRE, LATENCY, STEP = 8, 0.02, 0.02  # bytes of a number between sites; seconds one way, and of a step (measured)
FEWER = ((8, 1), (4, 1), (4, 4))  # bits and local steps that a plan shows beside those of the run
FEWEST = 0.5  # public rows to rehearse with, for each row of the sites, below which a plan says little


@dataclass(frozen=True)
class Source:
    """The source of a plan's samples."""

    kind: Literal["synthetic", "public"]
    name: str

    @property
    def text(self) -> str:
        """Say it to the user."""
        if self.kind == "synthetic":
            like = "" if self.name == "synthetic" else f" as hard to predict as the rows of {self.name}"
            return f"synthetic stand-in data{like}: nothing was spent"
        return f"{self.name}, which the configuration declares public: nothing was spent"


class _Expected(NamedTuple):
    """The test loss under a signal: of the planned run, of the best constant guess, and of each site alone."""

    signal: str
    loss: float
    constant: float
    alone: Sequence[float] = ()


@dataclass(frozen=True)
class Plan:
    """A run that was chosen."""

    planner: Planner
    graph: Graph
    source: Source
    chosen: Choice
    asked: dict[str, Any]  # what the configuration says of all that can be chosen: a value, or "auto"
    schema: Schema | None = None  # of the sites' tables, if they are tables
    bits: int = 32  # of a number of a message
    link: float = 10.0  # Mbit/s between organisations

    @cached_property
    def sigmas(self) -> list[float]:
        """σ_i at the chosen K."""
        return self.chosen.noise.each(self.chosen.steps)

    @property
    def network(self) -> Network:
        """The sites and their budgets."""
        return self.planner.network

    @cached_property
    def messages(self) -> float:
        """Messages that a node sends in a step, on average."""
        return messages_per_step(self.graph, self.chosen.steps)

    @property
    def between_sites(self) -> dict[str, float]:
        """Bytes that a site sends in `join`, and about how many seconds that takes over links of this speed."""
        return self._between(self.bits, self._local)

    @property
    def _local(self) -> int:
        return self.chosen.method.settings.local_steps

    def _between(self, bits: int, local: int) -> dict[str, float]:
        """Return the same for other messages: of so many bits a number, after so many steps each."""
        rehearsal, d = self.planner.rehearsal, self.planner.rehearsal.layout.dim
        rounds = self.chosen.steps / local + rehearsal.final_model.final_mixing
        each = self.messages * self._local * (WIRE * (d + 1) if bits == 32 else width(bits, d))
        seconds = self.chosen.steps * STEP + rounds * (2 * LATENCY + each / (self.link * 1e6 / 8))
        return {"bytes": rounds * each, "seconds": seconds}

    @cached_property
    def expected(self) -> list[_Expected]:
        """The planned loss of every rehearsed run."""
        c, rehearsal, found = self.chosen, self.planner.rehearsal, list[_Expected]()
        timed, made_up = rehearsal.loss is per_sample("survival"), self.schema and self.source.kind == "synthetic"
        losses = rehearsal.losses(self.planner.spec(c.noise, c.steps), c.distance)
        for run, loss in zip(rehearsal.runs, losses, strict=True):
            alone = [_alone(run, rows, timed=timed) for rows in self.network.samples] if made_up else ()
            found.append(_Expected(run.name, loss, _constant(run.y_test, timed=timed), alone))
        return found

    @property
    def _with_signal(self) -> list[_Expected]:
        return [e for e in self.expected if not e.signal.startswith(NONE.name)]

    @property
    def clip_text(self) -> str:
        """Say what the clip is, and where it comes from."""
        clip = self.chosen.method.settings.clip
        if self.asked.get("clip") != "auto":
            return f"{clip:g} (set in run.toml)"
        median = float(self.planner.rehearsal.norms().median())
        return f"{clip:g} ({clip / median:.1f} times the median gradient norm of the rehearsed samples)"

    @property
    def range_text(self) -> str:
        """Say between which losses the run should end, under which signals, and what a constant guess gives."""
        low, high = (end(self.expected, key=lambda e: e.loss) for end in (min, max))
        ends = f"{self._shown(low.loss)}, {low.signal}, to {self._shown(high.loss)}, {high.signal}"
        return f"{ends}; a constant guess gives {self._shown(*(e.constant for e in self.expected))}"

    @cached_property
    def _unit(self) -> float | None:
        """One on the schema's scale, in the unit of a target that is a number."""
        squared = self.planner.rehearsal.loss is per_sample("mse")
        return self.schema.target.affine[1] if squared and self.schema is not None else None

    @property
    def loss_name(self) -> str:
        """The name that `train` gives the planned loss."""
        return "test loss" if self._unit is None else "RMSE"

    def _shown(self, *losses: float) -> str:
        return span([loss if self._unit is None else math.sqrt(loss) * self._unit for loss in losses])

    @cached_property
    def shared(self) -> dict[str, Any] | None:
        """The trust that shared noise needs, and what it gives; None if noise is independent."""
        c, n = self.chosen, self.network
        covariance = n.covariance(self.sigmas)
        if covariance is None or n.sharing is None:
            return None
        made = c.method.mechanism(c.batch, round(n.mean_samples)).with_sigma(c.noise.common(c.steps))
        sigmas = n.sharing.solved(made.sigma, n.pair_ratio)
        mechanism = n.sharing.counted(made, sigmas)
        summary = n.sharing.summary(sigmas, mechanism, n.releases(c.steps), n.delta, n.relation, n.counted)
        mean = {"average_sigma": covariance.average_sigma, "message_sigma": covariance.message_sigma}
        return summary | mean | {"noise_left": n.remaining}

    @cached_property
    def by_sites(self) -> list[tuple[int, float]]:
        """ε of a person by the number of sites that have rows of it; nothing for records."""
        c, n = self.chosen, self.network
        made = c.method.mechanism(c.batch, round(n.mean_samples)).with_sigma(c.noise.common(c.steps))
        return statements.by_sites(n.counted(made), n.releases(c.steps), n.delta, n.relation)

    @cached_property
    def warnings(self) -> list[str]:
        """Return what to know before the plan is carried out."""
        n, last = self.network, LENGTHS[-1]
        return [
            *careless_delta(n.samples, [delta for _, delta in n.budgets], n.named),
            *no_better(self._with_signal),
            *self._few_rows(),
            *([f"K was cut at {last}: more steps would still help"] if self.chosen.steps >= last else []),
        ]

    def _few_rows(self) -> list[str]:
        rows, samples = len(self.planner.rehearsal.runs[0].y), self.network.samples
        if self.source.kind == "synthetic" or enough(rows, samples):
            return []
        words = f"{self.source.name}: a rehearsal learns from {rows:,} rows, and the sites have {sum(samples):,}"
        return [f"{words}: planned losses are too high. Leave plan.data out, or take more public rows"]

    def as_json(self) -> dict[str, Any]:
        """Return plain values for plan.json; none of them depends on any node's samples."""
        c, n = self.chosen, self.network
        return {
            "version": VERSION,
            "algorithm": c.method.algorithm,
            "batch": c.batch,
            "steps": c.steps,
            "step_size": c.step_size,
            "difference_scale": c.scale,
            "difference_clip": c.method.settings.difference_clip,
            "asked": self.asked,
            "estimated_on": asdict(self.source) | {"words": self.source.text},
            "accountant": n.accountant,
            "sigma": self.sigmas,
            "epsilon": [epsilon for epsilon, _ in n.budgets],
            "delta": [delta for _, delta in n.budgets],
            "weights": n.weights,
            "pairwise": self.shared,
            "by_sites": [[sites, finite(epsilon)] for sites, epsilon in self.by_sites],
            "clip": c.method.settings.clip,
            "rehearsal_score": c.score,
            "clip_from": self.clip_text,
            "signals": [e.signal for e in self.expected],
            "test_loss": [e.loss for e in self.expected],
            "constant_loss": [e.constant for e in self.expected],
            "alone_loss": [list(e.alone) for e in self.expected],
            "between_sites": self.between_sites | {"mbit": self.link},
            "warnings": self.warnings,
        }

    def rows(self) -> list[tuple[str, str]]:
        """Return what `privsgp plan` prints first."""
        n, d = self.network, self.planner.rehearsal.layout.dim
        others = [one for one in FEWER if one != (self.bits, self._local)]
        return labelled(
            "plan.txt", p=self, weights=[n.nodes * p for p in n.weights or ()], latency=LATENCY, traffic=_traffic,
            # the bytes of a step take longer than its way there and back
            is_slow=8 * self.messages * WIRE * d / (self.link * 1e6) > 2 * LATENCY,
            fewer=[(*one, self._between(*one)) for one in others],
        )  # fmt: skip

    def signal_rows(self) -> list[tuple[str, ...]]:
        """Return a row for every signal: its name, the planned loss, a constant guess, and the sites alone."""
        return [
            (e.signal, self._shown(e.loss), self._shown(e.constant), self._shown(*e.alone) if e.alone else "–")
            for e in self.expected
        ]

    def _gains(self, site: int) -> str:
        """Say under which signals the planned run has a lower loss than the site's own model."""
        known = [e for e in self._with_signal if e.alone]
        gains = [e.signal.split(" (")[0] for e in known if e.loss < e.alone[site]]
        if not known:
            return "–"
        return "always" if len(gains) == len(known) else ", ".join(gains) or "never"

    def site_rows(self) -> list[tuple[str, ...]]:
        """Return a row for every site: name, records, ε, δ, the best guess, share of the noise, when it gains."""
        n = self.network
        weights = n.weights or [1 / n.nodes] * n.nodes
        noise = [(p * sigma) ** 2 for p, sigma in zip(weights, self.sigmas, strict=True)]
        return [
            (
                n.sites[i] if n.sites else f"site {i}", f"{n.samples[i]:,}", up(epsilon), small(delta),
                "nominal: no guarantee" if n.nominal else percent_up(guess(epsilon, delta)),
                f"{noise[i] / math.fsum(noise):.0%}", self._gains(i),
            )
            for i, (epsilon, delta) in enumerate(n.budgets)
        ]  # fmt: skip


def enough(rows: int, samples: Sequence[int]) -> bool:
    """Return whether a rehearsal on so many public rows says what sites with so many samples will get."""
    return rows >= min(FEWEST * sum(samples), 512)


def _traffic(found: dict[str, float]) -> str:
    return f"{in_units(found['bytes'])} and about {math.ceil(found['seconds'] / 60):,} min"


def _alone(run: Samples, rows: int, *, timed: bool) -> float:
    """Return the test loss of a site's own model without noise, learnt from so many rows."""
    x, y, x_test, y_test = (tensor.numpy() for tensor in run[:4])
    if run.y.is_floating_point():
        return benefit.loss_alone("survival" if timed else "mse", x[:rows], y[:rows], x_test, y_test)
    if bool((run.y[:rows] == run.y[0]).all()):
        return _constant(run.y_test, timed=False)
    return benefit.loss_alone("cross-entropy", x[:rows], y[:rows], x_test, y_test, int(run.y_test.max()) + 1)


def _constant(targets: Tensor, *, timed: bool) -> float:
    """Return the test loss of the best constant guess: the entropy of the classes or hazards, or the variance."""
    if timed:
        same, y = np.zeros((len(targets), 1), np.float32), targets.numpy()
        return benefit.loss_alone("survival", same, y, same, y)
    if targets.is_floating_point():
        return float(targets.double().var(0, correction=0).mean())
    p = targets.bincount().double() / len(targets)
    return float(-(p[p > 0] * p[p > 0].log()).sum())


def no_better(expected: Sequence[_Expected]) -> list[str]:
    """Compare planned losses with a constant guess, under every signal."""
    above = [e.signal for e in expected if e.loss >= e.constant]
    if above and len(above) == len(expected):
        return ["this table and budget cannot beat the base rate: a constant guess has a lower loss in every rehearsal"]
    words = "this table and budget may not beat the base rate: a constant guess has a lower loss if the signal is"
    return [f"{words} {' or '.join(above)}"] if above else []


def messages_per_step(graph: Graph, steps: int) -> float:
    """Return how many messages a node sends in a step on average: one to every out-neighbour."""
    period = graph.period or min(steps, 64)
    return (
        sum(len(graph.out_neighbours(k, i)) for k in range(period) for i in range(graph.nodes)) / period / graph.nodes
    )
