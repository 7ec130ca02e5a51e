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

import torch

from privsgp.accounting.calibration import gaussian_shift, rough_sigma
from privsgp.accounting.mechanisms import SampledMean
from privsgp.algorithms import ALGORITHMS, Settings
from privsgp.planner.noise import Method, Network, NoiseNeeded
from privsgp.planner.rehearsal import TIE, Rehearsal, RehearsalSpec

LENGTHS = (1024, 2048, 4096)  # K to choose from; on scikit-learn's digits accuracy still rises up to about 500
NEARLY = 1.05  # noise this much above the least is not worth more steps
SHORT = 16  # γ ≤ 1/(16L): short beside the curvature even where real data bends four times as much as the stand-in
MULTIPLES = (1, 1.5, 2)  # of the median gradient norm at x⁰: the clips that "auto" chooses from
CHEAP = 1.02  # what drawing samples may cost in noise
TRAJECTORY, SAMPLES = 16, 256  # steps along which L is looked for, and samples that are looked at


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
    smoothness: float  # L: how fast the gradient turns

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
        return min(max(steps, math.ceil(SHORT * self.smoothness * T)), LENGTHS[-1]), T

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
        p = Planner(network, rehearsal, 1.0)
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
    """Return a planner that knows the smoothness of the loss over about as far as a run will go."""
    shift = gaussian_shift(network.epsilon, network.delta)
    kappa = network.remaining * clip / (network.mean_samples * shift * math.sqrt(network.nodes))
    return Planner(network, rehearsal, smoothness(rehearsal, clip, rehearsal.guess(kappa)))


def smoothness(rehearsal: Rehearsal, clip: float, distance: float) -> float:
    """Estimate L from differences of gradients along gradient descent over γK = `distance`."""
    inputs, targets = rehearsal.runs[0].x[:SAMPLES], rehearsal.runs[0].y[:SAMPLES]
    step, x, everyone = distance / TRAJECTORY, rehearsal.x0.clone(), torch.ones(1, len(targets), dtype=torch.bool)
    means = []
    for _ in range(TRAJECTORY + 1):
        g = rehearsal.gradient(x[None], inputs[None], targets[None])
        g.clip_(clip, everyone)
        mean = g.sum()[0] / len(targets)
        means.append(mean)
        x = x - step * mean
    return max(1e-6, *(float((b - a).norm() / (step * a).norm().clamp(min=1e-12)) for a, b in pairwise(means)))
