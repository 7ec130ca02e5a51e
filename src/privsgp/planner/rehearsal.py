"""A run in miniature: the network's average model, learning from stand-in data under the noise it will have.

The average of all nodes moves by the average of their directions, so a rehearsal is one node with the whole network's
noise, σ/√n. What counts is the distance travelled, T = γK: with σ = κ√(nK), what privacy adds to the average model has
the standard deviation κT per coordinate however many steps T is divided into, and a sample is seen qK times. So a few
coarse steps with the same T, κ and number of visits tell how a long run will end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch.func import functional_call

from privsgp.algorithms import ALGORITHMS, Block, Drawn, State, UpdateRule
from privsgp.gradients import Layout, stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

    from privsgp.algorithms import Settings
    from privsgp.planner.stand_in import Samples

    PerSampleFunction = Callable[[Tensor, Tensor], Tensor]

STEPS = 64  # coarse steps of a rehearsal
SEEDS = 2  # rehearsals that a score is the mean of
FARTHEST = 12  # doublings of a first guess
GIVEN_UP = 0.005


@dataclass(frozen=True)
class RehearsalSpec:
    """What is rehearsed: an algorithm with its settings, κ, and how often a sample is seen in the whole run."""

    algorithm: str
    settings: Settings
    noise: float
    visits: float


class Rehearsal:
    """Where rehearsals take place: a model at x⁰, its loss, and samples that are nobody's secret."""

    def __init__(
        self, model: nn.Module, loss: PerSampleFunction, correct: PerSampleFunction | None, samples: Samples
    ) -> None:
        self.model, self.loss, self.correct, self.samples = model, loss, correct, samples
        self.layout = Layout.of(model)
        self.x0 = self.layout.flatten(model).float()
        self.gradient = stack(model, loss, (samples.x[:4], samples.y[:4]))

    def end(self, spec: RehearsalSpec, distance: float, steps: int = STEPS, seed: int = 0) -> Tensor:
        """Return the average model after a run of γK = `distance`."""
        *_, last = self.states(spec, distance, steps, seed)
        return last.z[0]

    def states(
        self, spec: RehearsalSpec, distance: float, steps: int = STEPS, seed: int = 0, *, momentum: float = 0.0
    ) -> Iterator[State]:
        """Go through the steps of a run; each overwrites the state before."""
        generator = torch.Generator().manual_seed(seed)
        block = self._block(spec, distance, steps, generator)
        if momentum:
            block.update_rule = UpdateRule(self.x0[None], momentum=momentum)
        algorithm, state = ALGORITHMS[spec.algorithm](block, spec.settings), State.start(self.x0, 1)
        algorithm.begin(state.z)
        for k in range(steps):
            state = algorithm.step(k, state)
            yield state

    def score(self, x: Tensor) -> float:
        """Return how good a model is: its accuracy on samples it has not seen, or minus its loss in a regression."""
        outputs = self.outputs(x)
        if self.correct is not None:
            return float(self.correct(outputs, self.samples.y_test).double().mean())
        return -float(self.loss(outputs, self.samples.y_test).double().mean())

    def outputs(self, x: Tensor) -> Tensor:
        """Return what a model makes of samples it has not seen."""
        with torch.no_grad():
            outputs: Tensor = functional_call(self.model, self.layout.views(x), (self.samples.x_test,))
        return outputs

    def mean_score(self, spec: RehearsalSpec, distance: float) -> float:
        """Return the mean score of a few rehearsals."""
        return sum(self.score(self.end(spec, distance, seed=seed)) for seed in range(SEEDS)) / SEEDS

    def guess(self, noise: float) -> float:
        """Return the distance T at which noise moves a pre-activation by about one: 1 / (κ ‖x‖)."""
        x = self.samples.x.flatten(1)
        length = float(x.square().sum(1).mean().sqrt()) if x.is_floating_point() else x.shape[1] ** 0.5
        return min(max(1 / (max(noise, 1e-12) * max(length, 1e-12)), 1e-3), 1e6)

    def _block(self, spec: RehearsalSpec, distance: float, steps: int, generator: torch.Generator) -> Block:
        rows = len(self.samples.y)
        rate = min(1.0, spec.visits / steps)

        def sample(_k: int) -> list[Drawn]:
            drawn = (torch.rand(rows, generator=generator) < rate).nonzero()[:, 0]
            padded = torch.cat([drawn, torch.tensor([rows])])  # the row that is nobody's: a batch is never empty
            return [Drawn(padded[None], padded[None] < rows)]

        def noise(_k: int, g: Tensor) -> None:
            g.add_(torch.randn(g.shape, generator=generator), alpha=spec.noise * math.sqrt(steps))

        settings = replace(spec.settings, sampling="poisson")
        if settings.difference_scale < rate:  # a coarse step renews more of the table: SAG's weight is the least
            settings = settings.carried_to(ALGORITHMS[spec.algorithm].Options, difference_scale=rate)
        mechanism = ALGORITHMS[spec.algorithm].mechanism(
            settings, sigma=0.0, batch=rate * rows, samples=rows, kappa=0.0
        )
        return Block(
            mechanisms=[mechanism],
            inputs=_with_padding(self.samples.x),
            targets=_with_padding(self.samples.y),
            gradient=self.gradient,
            sample=sample,
            noise=noise,
            mix=lambda _k, x, w: (x, w),
            release=lambda _k, _x: None,
            step_size=lambda _k: distance / steps,
        )


def _with_padding(t: Tensor) -> Tensor:
    return torch.cat([t, torch.zeros_like(t[:1])])[None]


def far_enough(rehearsal: Rehearsal, spec: RehearsalSpec, guess: float) -> float:
    """Return a good T = γK: doubling from a guess until the score falls, then a parabola through the top.

    Real data mostly wants to be followed farther than stand-in data, and too far costs less than not far enough, so the
    answer lies beyond the top, where `GIVEN_UP` of the score is lost.
    """
    scores: dict[int, float] = {}

    def score(power: int) -> float:
        if power not in scores:
            scores[power] = rehearsal.mean_score(spec, guess * 2.0**power)
        return scores[power]

    top = 0
    while abs(top) < FARTHEST and (better := max((top, top - 1, top + 1), key=score)) != top:
        top = better
    return guess * math.exp2(top + _beyond(score(top - 1), score(top), score(top + 1)))


def _beyond(left: float, middle: float, right: float) -> float:
    """Return where the parabola through (−1, left), (0, middle), (1, right) has lost `GIVEN_UP` of its top."""
    bend = (left - 2 * middle + right) / 2
    if bend >= 0:
        return 0.0
    peak = min(max((left - right) / (4 * bend), -0.5), 0.5)
    return peak + min(math.sqrt(GIVEN_UP * abs(middle) / -bend), 1.0)
