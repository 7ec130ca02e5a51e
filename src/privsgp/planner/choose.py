"""From a budget to a run one can act on: how many steps, which batch, clip and step size.

The distance T = γK is found in a rehearsal. With σ growing like √K, noise at a given T hardly depends on K: more steps
gain a little (shorter ones follow the curvature better, tables are fresher, sampling costs less) and cost time and
messages. K is the smallest of a few lengths whose rehearsal is as good as the longest one's.

θ of scaled differences is what training will take for that batch and K.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from privsgp.accounting.calibration import C2, gaussian_shift, rough_sigma
from privsgp.accounting.mechanisms import SampledMean
from privsgp.algorithms import ALGORITHMS, Settings
from privsgp.planner.noise import Budget, Method, Network, NoiseNeeded
from privsgp.planner.rehearsal import TIE, Rehearsal, RehearsalSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

LENGTHS = (1024, 2048, 4096)  # K to choose from; on scikit-learn's digits accuracy still rises up to about 500
NEARLY = 1.05  # noise this much above the least is not worth more steps
SHORT = 16  # γ ≤ 1/(16L): short beside the curvature even where real data bends four times as much as the stand-in
MULTIPLES = (1, 1.5, 2)  # of the median gradient norm at x⁰: the clips that "auto" chooses from
CHEAP = 1.02  # what drawing samples may cost in noise
TRAJECTORY, SAMPLES = 16, 256  # steps along which L and b² are looked for, and samples that are looked at


@dataclass(frozen=True)
class Choice:
    """A method with its K, batch and γ, its noise by K, and what a rehearsal made of it."""

    method: Method
    batch: float
    steps: int
    step_size: float
    noise: NoiseNeeded
    score: float

    @property
    def distance(self) -> float:
        """T = γK."""
        return self.step_size * self.steps

    @property
    def scale(self) -> float:
        """The weight θ of differences; 1 as well where there are none."""
        return self.noise.scale(self.steps)


@dataclass(frozen=True)
class Planner:
    """What is known before choosing."""

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
        every = method.settings.local_steps
        whole = max(steps - steps % every, every)  # K is a multiple of the steps of a message
        steps, distance = whole, distance * (whole / steps)
        spec = self.spec(noise, steps)
        return Choice(method, batch, steps, distance / steps, noise, self.rehearsal.mean_score(spec, distance))

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
        top = max(scores.values())
        steps = next(K for K, score in scores.items() if score >= top - TIE / 2 * abs(top))
        T = distances[steps]
        return min(max(steps, math.ceil(SHORT * self.constants.smoothness * T)), LENGTHS[-1]), T

    def published_steps(self, clip: float) -> int:
        """Return Corollary 1's K, for the published accountant."""
        n = self.network
        found = best_steps(self.constants, self.rehearsal.layout.dim, clip, n.budgets, n.samples, C2)
        return max(1, round(found))

    def spec(self, noise: NoiseNeeded, steps: int) -> RehearsalSpec:
        """Return what is rehearsed of a run of so many steps."""
        n, method = self.network, noise.scaled_method(steps)
        kappa = noise.in_average(steps) / math.sqrt(n.nodes * steps)
        return RehearsalSpec(method.algorithm, method.settings, kappa, steps * noise.batch / n.mean_samples)


def best_clip(network: Network, rehearsal: Rehearsal, settings: Settings, batch: float) -> float:
    """Return the clip G with which a rehearsal of plain PrivSGP ends best.

    G is one to two times the median gradient norm of the rehearsed samples at x⁰, rounded to two digits.

    Guarantee: it depends on the configuration, sizes, budgets and rehearsed samples alone, all of them public.
    """
    median = float(rehearsal.norms().median())

    def score(clip: float) -> float:
        method = Method("privsgp", replace(settings.carried_to(ALGORITHMS["privsgp"].Options), clip=clip))
        p = Planner(network, rehearsal, Constants(1.0, 1.0, 0.0, 0.0))
        spec = p.spec(NoiseNeeded(network, method, batch), LENGTHS[0])
        return rehearsal.mean_score(spec, rehearsal.distance(spec))

    return max((float(f"{times * max(median, 1e-6):.2g}") for times in MULTIPLES), key=score)


def best_batch(n: Network) -> float:
    """Return the smallest power of two, from 8, at which drawing samples costs plain PrivSGP hardly any noise."""
    J = round(n.mean_samples)

    def sigma(batch: int) -> float:
        plain = SampledMean(sigma=0.0, clip=1.0, batch=float(batch), samples=J)
        return rough_sigma(plain, n.releases(LENGTHS[0]), n.epsilon, n.delta, n.relation)

    candidates = [2**power for power in range(3, J.bit_length()) if 2**power < J]
    enough = CHEAP * sigma(J)
    return float(next((batch for batch in candidates if sigma(batch) < enough), J))


def planner(network: Network, rehearsal: Rehearsal, clip: float) -> Planner:
    """Return a planner with its constants estimated on the stage, over about as far as a run will go."""
    shift = gaussian_shift(network.epsilon, network.delta)
    kappa = network.remaining * clip / (network.mean_samples * shift * math.sqrt(network.nodes))
    return Planner(network, rehearsal, constants(rehearsal, clip, rehearsal.guess(kappa), network.mean_samples))


def constants(rehearsal: Rehearsal, clip: float, distance: float, samples: float) -> Constants:
    """Estimate L, F⁰, b² and ‖x⁰‖² for nodes of `samples` samples each, along gradient descent over γK = `distance`.

    As the methods the paper cites do: L from differences of gradients along a trajectory, b² from how far chance takes
    a node's gradient from the mean, F⁰ from the initial loss (f* ≥ 0).
    """
    inputs, targets = rehearsal.runs[0].x[:SAMPLES], rehearsal.runs[0].y[:SAMPLES]
    step, x, everyone = distance / TRAJECTORY, rehearsal.x0.clone(), torch.ones(1, len(targets), dtype=torch.bool)
    means, heterogeneity = [], 0.0
    for _ in range(TRAJECTORY + 1):
        g = rehearsal.gradient(x[None], inputs[None], targets[None])
        g.clip_(clip, everyone)
        mean = g.sum()[0] / len(targets)
        heterogeneity = max(heterogeneity, float(g.norm().square().mean() - mean.square().sum()) / samples)
        means.append(mean)
        x = x - step * mean
    bends = [float((b - a).norm() / (step * a).norm().clamp(min=1e-12)) for a, b in pairwise(means)]
    outputs = rehearsal.outputs(rehearsal.x0, rehearsal.runs[0].x)
    loss = float(rehearsal.loss(outputs, rehearsal.runs[0].y).double().mean())
    return Constants(max(1e-6, *bends), loss, heterogeneity, float(rehearsal.x0.double().square().sum()))


# Corollary 1 of the paper, in its letters: n nodes with J samples each, d parameters, K steps, and G, a bound on one
# sample's gradient.


@dataclass(frozen=True)
class Constants:
    """The constants of the bound: L, F⁰ = f(x⁰) − f*, and the *squared* b² (Assumption 5) and ‖x⁰‖²."""

    smoothness: float
    gap: float
    heterogeneity: float
    norm: float

    @property
    def start(self) -> float:
        """13F⁰ + 6L‖x⁰‖² + 18Lb²: what the bound would be made of without noise."""
        return 13 * self.gap + 6 * self.smoothness * self.norm + 18 * self.smoothness * self.heterogeneity


def hardness(budgets: Sequence[Budget], J: Sequence[float]) -> float:
    """Σ_i ln(1/δ_i) / (ε_i J_i)²: what all budgets together ask for. The paper has one J and takes it out."""
    return math.fsum(math.log(1 / delta) / (epsilon * j) ** 2 for (epsilon, delta), j in zip(budgets, J, strict=True))


def best_steps(
    constants: Constants, d: int, G: float, budgets: Sequence[Budget], J: Sequence[float], c2: float
) -> float:
    """Corollary 1: K = (13F⁰ + 6L‖x⁰‖² + 18Lb²) J² n / (216 L d c₂² G² Σ ln(1/δ_i)/ε_i²)."""
    return constants.start * len(budgets) / (216 * constants.smoothness * d * (c2 * G) ** 2 * hardness(budgets, J))
