"""From a budget to a run one can act on: which algorithm, how many steps, which batch and step size.

The distance T = γK is found in a rehearsal. With σ growing like √K, noise at a given T hardly depends on K: more steps
gain a little (shorter ones follow the curvature better, tables are fresher, sampling costs less) and cost time and
messages. K is the smallest of a few lengths whose rehearsal is as good as the longest one's.

θ of scaled differences is what training will take for that batch and K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from privsgp import plugins
from privsgp.accounting import calibration
from privsgp.accounting.calibration import gaussian_shift, relative_noise
from privsgp.accounting.counting import C2
from privsgp.accounting.mechanisms import Sag, SampledMean, nominal
from privsgp.accounting.pairwise import solve
from privsgp.algorithms import ALGORITHMS
from privsgp.algorithms.saga import TableOptions
from privsgp.algorithms.update_rule import node_weights
from privsgp.planner import estimates, theorems
from privsgp.planner.price import Price, common_budget
from privsgp.planner.rehearsal import STEPS, TIE, Rehearsal, RehearsalSpec
from privsgp.planner.theorems import response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.accounting.mechanisms import Accountant, Mechanism, Relation
    from privsgp.accounting.pairwise import PairwiseCovariance, Sharing
    from privsgp.algorithms import Settings
    from privsgp.algorithms.update_rule import Weights
    from privsgp.planner.theorems import Budget, Constants

LENGTHS = (1024, 2048, 4096)  # K to choose from; on scikit-learn's digits accuracy still rises up to about 500
NEARLY = 1.05  # noise this much above the least is not worth more steps
SHORT = 16  # γ ≤ 1/(16L): short beside the curvature even where real data bends four times as much as the stand-in
CHEAP = 1.02  # what drawing samples may cost in noise


@dataclass(frozen=True)
class Network:
    """Who takes part and what each may spend; all of it public."""

    samples: Sequence[int]
    budgets: Sequence[Budget]
    relation: Relation = "zero-out"
    spare: float = 0.0
    accountant: Accountant = "certified"
    c2: float = C2
    weighting: Weights = "equal"
    sharing: Sharing | None = None  # who shares noise; None: nobody
    pair_ratio: float = 2.0
    sites: Sequence[str] = ()  # what people call the nodes

    def named(self, node: int) -> str:
        """What a node is called in a sentence."""
        return f"node {node}" + (f" ({self.sites[node]})" if self.sites else "")

    @cached_property
    def noises(self) -> list[float]:
        """What the nodes' σ_i are to each other."""
        return relative_noise(self.budgets, self.samples)

    @cached_property
    def weights(self) -> list[float] | None:
        """p_i, how much each node counts; None for all alike."""
        return node_weights(self.weighting, self.samples, self.noises, shared=self.sharing is not None)

    def covariance(self, sigmas: Sequence[float]) -> PairwiseCovariance | None:
        """Return the shared noise that is worth σ_i to each node; None where noise is not shared."""
        if self.sharing is None:
            return None
        return solve(sigmas, self.sharing.honest, self.pair_ratio, self.sharing.graph, self.weights)

    @cached_property
    def left(self) -> float:
        """What sharing leaves of the noise of the average: 1 where noise is not shared."""
        return 1.0 if (shared := self.covariance(self.noises)) is None else shared.left(self.noises)

    @cached_property
    def gain(self) -> float:
        """The average's noise with nodes weighted by their noise, as a share of what it is when all count alike."""
        if self.sharing is not None:
            found = (replace(self, weighting=kind).covariance(self.noises) for kind in ("noise", "equal"))
            weighted, alike = (1.0 if one is None else one.average_sigma for one in found)
            return weighted / alike
        return self.nodes / math.sqrt(math.fsum(v**-2 for v in self.noises) * math.fsum(v**2 for v in self.noises))

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
        """The smallest δ_i, to which the common budget is put."""
        return min(delta for _, delta in self.budgets)

    @cached_property
    def epsilon(self) -> float:
        """The ε that stands for all budgets (`common_budget`)."""
        return common_budget(self.budgets, self.samples, self.delta, self.weights)

    def releases(self, steps: int) -> int:
        """Count the spare releases in."""
        return steps + math.ceil(self.spare * steps)


@dataclass(frozen=True)
class Method:
    """An algorithm with its settings."""

    algorithm: str
    settings: Settings

    @property
    def label(self) -> str:
        """Tell methods apart in a table."""
        if self.scaled:
            return f"{self.algorithm}, scaled differences"
        clip, scale = self.settings.difference_clip, self.settings.difference_scale
        weight = f", differences times {scale:g}" if scale < 1 else ""
        return self.algorithm + weight + ("" if clip is None else f", differences clipped to {clip:g}")

    @property
    def scaled(self) -> bool:
        """Whether θ is "auto", and another one for every batch and K."""
        return getattr(self.settings.options, "difference_scale", None) == "auto"

    @property
    def fills_a_table(self) -> bool:
        """Whether a run begins with a gradient of every sample."""
        own = self.settings.options or ALGORITHMS[self.algorithm].Options()
        return isinstance(own, TableOptions) and own.table_init == "gradients"

    def weighted(self, scale: float) -> Method:
        """Return the method with a number for θ; as it is where it has no θ."""
        options = ALGORITHMS[self.algorithm].Options
        return replace(self, settings=self.settings.carried_to(options, difference_scale=scale))

    def clipped(self, difference_clip: float | None) -> Method:
        """Return the method with another clip of differences."""
        options = ALGORITHMS[self.algorithm].Options
        return replace(self, settings=self.settings.carried_to(options, difference_clip=difference_clip))

    def mechanism(self, batch: float, samples: int) -> Mechanism:
        """Return what one message of a node reveals, without its noise."""
        return ALGORITHMS[self.algorithm].mechanism(self.settings, sigma=0.0, batch=batch, samples=samples, kappa=0.0)


def methods(settings: Settings, accountant: Accountant, difference_clip: float | None = None) -> list[Method]:
    """Return what `algorithm.name = "auto"` chooses from, first among equals first; the published formula knows two.

    `difference_clip` is C beside a θ that is "auto".

    Where rehearsals cannot tell them apart, scaled differences go before SAG: measured, they are ahead at small batches
    and behind by no more than chance at any; of clipped differences too, which are left out (docs/results-accuracy.md).
    """
    clip = None if nominal(accountant) else difference_clip
    formula: dict[str, float | str] = {"privsgp": 1.0, "privsgp-vr": 1.0}
    known = {"privsgp": 1.0, "privsgp-vr": "auto", "privsgp-sag": 1.0}
    return [
        Method(name, settings.carried_to(ALGORITHMS[name].Options, difference_clip=clip, difference_scale=scale))
        for name, scale in (formula if nominal(accountant) else known).items()
    ]


class NoiseNeeded:
    """σ as a method needs it at a batch: of the mean node by K, and of every node at one K."""

    def __init__(self, network: Network, method: Method, batch: float) -> None:
        self.network, self.batch = network, batch
        self.method = method.weighted(1.0) if network.nominal and method.scaled else method
        self._prices: dict[float, Price] = {}
        self._scales: dict[int, float] = {}
        self._costs: dict[tuple[int, Budget], float] = {}

    def common(self, steps: float) -> float:
        """Return σ of a node with J̄ samples and the common budget."""
        n = self.network
        if n.nominal:
            return plugins.formula(n.accountant).sigma(self._mechanism(), round(steps), n.epsilon, n.delta, n.c2)
        return self._more(steps, (n.epsilon, n.delta)) * self._price(n.delta).along(steps, n.epsilon)

    def in_average(self, steps: float) -> float:
        """Return √n times the noise in the average: what `common` would be if noise were independent."""
        return self.network.left * self.common(steps)

    def at(self, steps: int) -> float:
        """Return σ of the same node from values certified at this very K, not from those of the K around it."""
        n = self.network
        return self.common(steps) if n.nominal else self._one(steps, (n.epsilon, n.delta))

    def each(self, steps: int) -> list[float]:
        """Return σ_i of every node; σJ/G depends on nothing but the rate and the budget."""
        n = self.network
        mean = self._mechanism().samples
        return [self._one(steps, budget) * mean / own for budget, own in zip(n.budgets, n.samples, strict=True)]

    def scale(self, steps: int) -> float:
        """Return θ at K: what training will take where it is "auto", a second's search."""
        n = self.network
        if not self.method.scaled:
            return self.method.settings.difference_scale
        if steps not in self._scales:
            bare = self._mechanism().weighted
            assert bare is not None  # noqa: S101
            self._scales[steps] = calibration.largest(bare, n.releases(steps), *max(n.budgets), n.relation, n.left)
        return self._scales[steps]

    def settings(self, steps: int) -> Settings:
        """Return the method's settings with a number for θ."""
        return self.method.weighted(self.scale(steps)).settings if self.method.scaled else self.method.settings

    def _one(self, steps: int, budget: Budget) -> float:
        if self.network.nominal:
            n = self.network
            return plugins.formula(n.accountant).sigma(self._mechanism(), steps, *budget, n.c2)
        return self._more(steps, budget) * self._price(budget[1]).sigma(steps, budget[0])

    def _more(self, steps: float, budget: Budget) -> float:
        """Return what θ costs beside the least σ: 2 % at most, or looked at: in short runs, and where noise is shared.

        There θ may be 1 for less than it is allowed to cost, and it costs other budgets less than the one it is for.
        """
        if (weighted := self._mechanism().weighted) is None or not self.method.scaled:
            return 1.0
        K, n = round(steps), self.network
        if (most := calibration.affordable(weighted, n.releases(K), n.left)) == calibration.MORE:
            return most
        if (K, budget) not in self._costs:
            given = replace(weighted, difference_scale=self.scale(K))
            self._costs[K, budget] = calibration.cost(given, n.releases(K), *budget, n.relation)
        return self._costs[K, budget]

    def _price(self, delta: float) -> Price:
        if delta not in self._prices:
            self._prices[delta] = Price(self._priced(), delta, self.network.relation, self.network.releases)
        return self._prices[delta]

    def _priced(self) -> Mechanism:
        """Return what is certified: of scaled differences SAG, beside whose σ θ was chosen to cost little more."""
        m = self._mechanism()
        if not self.method.scaled:
            return m
        return Sag(sigma=m.sigma, clip=m.clip, batch=m.batch, samples=m.samples, sampling=m.sampling, kappa=m.kappa)

    def _mechanism(self) -> Mechanism:
        return self.method.mechanism(self.batch, round(self.network.mean_samples))


@dataclass(frozen=True)
class Choice:
    """A method with its K, batch and γ, its noise by K, and what a rehearsal made of it."""

    method: Method
    batch: float
    steps: int
    step_size: float
    noise: NoiseNeeded
    score: float
    response: float

    @property
    def distance(self) -> float:
        """T = γK."""
        return self.step_size * self.steps

    @property
    def scale(self) -> float:
        """The weight θ of differences; 1 as well where there are none."""
        return self.noise.scale(self.steps)

    @property
    def evaluations(self) -> float:
        """The gradients that a node of the mean size takes: K b, and J̄ to fill a table."""
        return self.steps * self.batch + (self.noise.network.mean_samples if self.method.fills_a_table else 0)


@dataclass(frozen=True)
class Planner:
    """What is known before choosing; `constants` are those of the stage."""

    network: Network
    rehearsal: Rehearsal
    constants: Constants

    def choose(self, method: Method, batch: float, steps: int | None, step_size: float | None) -> Choice:
        """Fill in what is None."""
        noise = NoiseNeeded(self.network, method, batch)
        if steps is None or step_size is None:
            steps, distance = self._open(noise, steps, step_size)
        else:
            distance = steps * step_size
        spec = self.spec(noise, steps)
        score, left = self.rehearsal.mean_score(spec, distance), response(self.rehearsal, spec, distance)
        return Choice(method, batch, steps, distance / steps, noise, score, left)

    def _open(self, noise: NoiseNeeded, steps: int | None, step_size: float | None) -> tuple[int, float]:
        """Return (K, T) where at most one of K and γ is given."""
        longest = self.spec(noise, steps or LENGTHS[-1])
        distance = self.rehearsal.distance(longest)
        if steps is not None:
            return steps, distance
        if step_size is not None:
            steps = min(max(round(distance / step_size), 1), LENGTHS[-1])
            return steps, steps * step_size
        return self._shortest(noise, distance, longest.noise)

    def _shortest(self, noise: NoiseNeeded, distance: float, kappa: float) -> tuple[int, float]:
        """Return the smallest K with nearly the least noise that scores like the best, each at its own T ∝ 1/κ."""
        specs = {K: self.spec(noise, K) for K in LENGTHS}
        quiet = NEARLY * min(spec.noise for spec in specs.values())
        specs = {K: spec for K, spec in specs.items() if spec.noise <= quiet}
        distances = {K: distance * kappa / spec.noise for K, spec in specs.items()}
        scores = {K: self.rehearsal.mean_score(spec, distances[K]) for K, spec in specs.items()}
        enough = self._nearly(max(scores.values()))
        steps = next(K for K, score in scores.items() if score >= enough)
        T = distances[steps]
        return min(max(steps, math.ceil(SHORT * self.constants.smoothness * T)), LENGTHS[-1]), T

    def batch(self) -> float:
        """Return the smallest power of two, from 8, at which drawing samples costs plain PrivSGP hardly any noise."""
        n, J = self.network, round(self.network.mean_samples)

        def sigma(batch: int) -> float:
            plain = SampledMean(sigma=0.0, clip=1.0, batch=float(batch), samples=J)
            return Price(plain, n.delta, n.relation, n.releases).sigma(LENGTHS[0], n.epsilon)

        candidates = [2**power for power in range(3, J.bit_length()) if 2**power < J]
        enough = CHEAP * sigma(J)
        return float(next((batch for batch in candidates if sigma(batch) < enough), J))

    def _nearly(self, score: float) -> float:
        return score - TIE / 2 * abs(score)

    def published_steps(self, clip: float) -> int:
        """Return Corollary 1's K, for the published accountant."""
        n = self.network
        found = theorems.best_steps(self.constants, self.rehearsal.layout.dim, clip, n.budgets, n.samples, n.c2)
        return max(1, round(found))

    def spec(self, noise: NoiseNeeded, steps: int) -> RehearsalSpec:
        """Return what is rehearsed of a run of so many steps."""
        n = self.network
        kappa = noise.in_average(steps) / math.sqrt(n.nodes * steps)
        visits = steps * noise.batch / n.mean_samples
        fresh = visits >= STEPS  # every coarse step sees all samples: θ, a second's search, changes nothing
        settings = noise.method.settings if fresh else noise.settings(steps)
        return RehearsalSpec(noise.method.algorithm, settings, kappa, visits)


def planner(network: Network, rehearsal: Rehearsal, clip: float, *, skewed: bool = False) -> Planner:
    """Return a planner with its constants estimated on the stage, over about as far as a run will go."""
    shift = gaussian_shift(network.epsilon, network.delta)
    kappa = network.left * clip / (network.mean_samples * shift * math.sqrt(network.nodes))
    found = estimates.constants(rehearsal, clip, rehearsal.guess(kappa), network.mean_samples, skewed=skewed)
    return Planner(network, rehearsal, found)


def best(choices: Sequence[Choice]) -> tuple[Choice, str]:
    """Return the choice that scores best, the simplest among equals, and why."""
    top = max(choice.score for choice in choices)
    chosen = next(choice for choice in choices if choice.score >= top - TIE * abs(top))
    equal = " (as good as the best but for chance, and simpler)" if chosen.score < top else ""
    others = ", ".join(f"{c.method.label} {c.score:.3g}" for c in choices if c is not chosen)
    return chosen, f"{chosen.method.label} scores {chosen.score:.3g} in rehearsal{equal}; the others: {others}"
