"""A run in miniature: the network's average model, learning from stand-in data under the noise it will have.

The average of all nodes moves by the average of their directions, so a rehearsal is one node with the whole network's
noise, σ/√n. The distance travelled, T = γK, decides. With σ = κ√(nK), the noise in the average model has the standard
deviation κT per coordinate for any number of steps, and a sample is drawn qK times. So a few coarse steps with the same
T, κ and number of visits tell how a long run will end.

A rehearsal has several runs, each with samples and a seed of its own: weak to strong signals of made-up data, or
several divisions of public data. They run stacked, as the nodes of one block. Rehearsals that would hardly differ
are made once (`RehearsalSpec.equivalent`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.func import functional_call
from torch.nn.utils.rnn import pad_sequence

from privsgp.algorithms import ALGORITHMS, Block, Drawn, Randomness, Settings, State, UpdateRule
from privsgp.engine.averaging import Averaging, FinalModel
from privsgp.engine.drive import drive, rehearsed
from privsgp.gradients import Layout, stack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor, nn

    from privsgp.planner.stand_in import Samples

    PerSampleFunction = Callable[[Tensor, Tensor], Tensor]

STEPS = 64  # coarse steps of a rehearsal
FARTHEST = 12  # doublings of a first guess
TIE = 0.01  # of a score: rehearsals differ by as much from chance
NOISES, DISTANCES = 24, 16  # κ and T that are rehearsed, to an octave: within 1.5 and 2.2 % of what is asked


@dataclass(frozen=True)
class RehearsalSpec:
    """What is rehearsed: an algorithm with its settings, κ, and how often a sample is seen in the whole run."""

    algorithm: str
    settings: Settings
    noise: float
    visits: float

    @property
    def rate(self) -> float:
        """The share of the samples that a coarse step sees."""
        return min(1.0, self.visits / STEPS)

    @property
    def equivalent(self) -> RehearsalSpec:
        """Return what is rehearsed in its place: κ rounded, and the simplest method that takes the same coarse steps.

        If a step sees all samples, no entry of a table is old. If θ ≤ q, the estimate is SAG's.
        """
        name, C = self.algorithm, self.settings.difference_clip
        weighed = name == "privsgp-vr" and (C is None or self.settings.clip <= C)  # which a difference hardly exceeds
        if self.rate == 1 and (weighed or name == "privsgp-sag"):
            name = "privsgp"
        elif weighed and self.settings.difference_scale <= self.rate:
            name = "privsgp-sag"
        settings = self.settings if name == self.algorithm else self.settings.carried_to(ALGORITHMS[name].Options)
        return RehearsalSpec(name, settings, _near(self.noise, NOISES), min(self.visits, STEPS))


def _near(value: float, octave: int) -> float:
    return math.exp2(round(math.log2(value) * octave) / octave) if value > 0 else value


class Rehearsal:
    """The setting of a rehearsal: a model at x⁰, its loss, and public samples for each run."""

    def __init__(
        self, model: nn.Module, loss: PerSampleFunction, runs: Sequence[Samples], final_model: FinalModel | None = None
    ) -> None:
        self.model, self.loss, self.runs, self.final_model = model, loss, runs, final_model or FinalModel()
        self.layout = Layout.of(model)
        self.x0 = self.layout.flatten(model).float()
        self.gradient = stack(model, loss, (runs[0].x[:4], runs[0].y[:4]))
        self._losses: dict[str, list[float]] = {}

    def norms(self) -> Tensor:
        """Return the gradient norm at x⁰ of every sample to learn from."""
        z = self.x0.expand(len(self.runs), -1)
        return self.gradient(z, *(torch.stack(t) for t in zip(*((r.x, r.y) for r in self.runs), strict=True))).norm()

    def ends(
        self, spec: RehearsalSpec, distance: float, steps: int = STEPS, seeds: Sequence[int] | None = None
    ) -> Tensor:
        """Return the models that runs of γK = `distance` with these seeds release, [seeds, d]; default: all runs."""
        seeds = range(len(self.runs)) if seeds is None else seeds
        state = State.start(self.x0, len(seeds))
        averaging = Averaging(self.final_model, steps, state)
        for k, state in enumerate(self.states(spec, distance, steps, seeds)):
            averaging.add(k, state)
        return averaging.released(state).z

    def states(self, spec: RehearsalSpec, distance: float, steps: int, seeds: Sequence[int]) -> Iterator[State]:
        """Go through the steps of a run; each overwrites the state before."""
        state = State.start(self.x0, len(seeds))
        rule = UpdateRule(state.x, momentum=0.0)
        algorithm = ALGORITHMS[spec.algorithm](self._block(spec, distance, steps, seeds, rule), spec.settings)
        try:
            algorithm.begin(state.z)
            for k in range(steps):
                state = drive(algorithm.step(k, state), k, rehearsed)
                yield state
        finally:
            algorithm.close()

    def test_loss(self, x: Tensor, run: int = 0) -> float:
        """Return the mean loss of a model on samples that the run has not seen: of classes the log loss."""
        samples = self.runs[run % len(self.runs)]
        with torch.no_grad():
            outputs = functional_call(self.model, self.layout.views(x), (samples.x_test,))
        return float(self.loss(outputs, samples.y_test).double().mean())

    def losses(self, spec: RehearsalSpec, distance: float) -> list[float]:
        """Return the test loss of every run, of a rehearsal of nearly this."""
        spec, distance = spec.equivalent, _near(distance, DISTANCES)
        key = f"{spec!r} {distance!r}"
        if key not in self._losses:
            self._losses[key] = [self.test_loss(x, run) for run, x in enumerate(self.ends(spec, distance))]
        return self._losses[key]

    def mean_score(self, spec: RehearsalSpec, distance: float) -> float:
        """Return minus the mean test loss of all runs, of a rehearsal of nearly this."""
        losses = self.losses(spec, distance)
        return -math.fsum(losses) / len(losses)

    def guess(self, noise: float) -> float:
        """Return the distance T at which noise moves a pre-activation by about one: 1 / (κ ‖x‖)."""
        x = self.runs[0].x.flatten(1)
        length = float(x.square().sum(1).mean().sqrt()) if x.is_floating_point() else x.shape[1] ** 0.5
        return min(max(1 / (max(noise, 1e-12) * max(length, 1e-12)), 1e-3), 1e6)

    def distance(self, spec: RehearsalSpec, guess: float | None = None) -> float:
        """Return a good T = γK: doubling from a guess until the score falls, then the top of a parabola."""
        first = self.guess(spec.noise) if guess is None else guess

        def score(power: int) -> float:
            return self.mean_score(spec, first * 2.0**power)

        top = 0
        while abs(top) < FARTHEST and (better := max((top, top - 1, top + 1), key=score)) != top:
            top = better
        return first * math.exp2(top + _top(score(top - 1), score(top), score(top + 1)))

    def _block(self, spec: RehearsalSpec, distance: float, steps: int, seeds: Sequence[int], rule: UpdateRule) -> Block:
        samples = [self.runs[i % len(self.runs)] for i in range(len(seeds))]
        rows, runs = len(samples[0].y), len(seeds)
        rate = min(1.0, spec.visits / steps)
        settings = spec.settings
        if settings.difference_scale < rate:  # a coarse step renews more of the table: SAG's weight is the least
            settings = settings.carried_to(ALGORITHMS[spec.algorithm].Options, difference_scale=rate)
        mechanism = ALGORITHMS[spec.algorithm].mechanism(
            settings, sigma=0.0, batch=rate * rows, samples=rows, kappa=0.0
        )
        return Block(
            mechanisms=[mechanism] * runs,
            data=(_with_padding([one.x for one in samples]), _with_padding([one.y for one in samples])),
            gradient=self.gradient,
            random=_SeededRandomness(seeds, rows, rate, spec.noise * math.sqrt(steps)),
            step_size=lambda _k: distance / steps,
            update_rule=rule,
        )


class _SeededRandomness(Randomness):
    """Coins and noise of stacked runs."""

    def __init__(self, seeds: Sequence[int], rows: int, rate: float, sigma: float) -> None:
        self.rows, self.rate, self.sigma = rows, rate, sigma
        self.sources = [torch.Generator().manual_seed(seed) for seed in seeds]

    def sample(self, k: int) -> list[Drawn]:
        """Return each run's samples."""
        del k
        nobody = torch.tensor([self.rows])
        drawn = [(torch.rand(self.rows, generator=source) < self.rate).nonzero()[:, 0] for source in self.sources]
        # The row that is nobody's comes last: a batch is never empty, and all are as long as the longest.
        padded = pad_sequence([torch.cat([one, nobody]) for one in drawn], batch_first=True, padding_value=self.rows)
        return [Drawn(padded, padded < self.rows)]

    def noise(self, k: int, g: Tensor, node: int | None = None) -> None:
        """Add each run's noise."""
        del k, node
        for row, source in zip(g, self.sources, strict=True):
            row.add_(torch.randn(g.shape[1], generator=source), alpha=self.sigma)


def _with_padding(each: Sequence[Tensor]) -> Tensor:
    return torch.stack([torch.cat([t, torch.zeros_like(t[:1])]) for t in each])


def _top(left: float, middle: float, right: float) -> float:
    """Return where the parabola through (−1, left), (0, middle), (1, right) is highest."""
    bend = (left - 2 * middle + right) / 2
    return 0.0 if bend >= 0 else min(max((left - right) / (4 * bend), -0.5), 0.5)
