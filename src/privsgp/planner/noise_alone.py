"""In the place of rehearsals where a model is too large for them: what noise alone tells.

A rehearsal ends where noise undoes more than is learnt. Where that is can be guessed without learning anything, from
what noise of standard deviation κT on the weights at x⁰ does: what the last layer is given no longer tells samples
apart. T is `TIMES` that at which its correlation has fallen to `LEFT`; without hidden layers, that at which noise moves
the outputs by `MOVED`. These numbers are about where rehearsals of small models and a tuned ResNet-18 end, within a
factor of 2.5 (docs/planner.md). Of methods and lengths the first is taken whose noise is nearly the least; that tables
grow old is not seen here.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from torch.func import functional_call

from privsgp.planner.rehearsal import SEEDS, Rehearsal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor, nn

    from privsgp.planner.rehearsal import RehearsalSpec

LEFT, TIMES = 0.3, 1.6  # of the correlation; the noise that can be borne, over that which leaves as much
MOVED = 1.6  # by which noise may move outputs of a model without hidden layers, root mean square
SAMPLES = 16  # that are looked at
_BOTH = range(SEEDS)
_HALVINGS = 12


class NoiseAlone(Rehearsal):
    """A stage on which nothing is rehearsed; a score is minus the noise κ."""

    tie: ClassVar[float] = 0.05
    rehearsed: ClassVar[bool] = False

    def distance(self, spec: RehearsalSpec) -> float:
        """Return T at which noise is as much as can be borne."""
        return self._bearable / max(spec.noise, 1e-12)

    def mean_scores(self, spec: RehearsalSpec, distances: Sequence[float]) -> list[float]:
        """Return minus κ, whatever T is."""
        return [-spec.noise] * len(distances)

    def moved(self, spec: RehearsalSpec, distance: float) -> float:
        """Return 1: nothing is known of how gradients answer to noise."""
        del spec, distance
        return 1.0

    @cached_property
    def _bearable(self) -> float:
        """The standard deviation of noise on the weights that can be borne."""
        outputs, features = self._seen()
        if torch.equal(features, self.samples.x[:SAMPLES]):
            return _least(lambda s: _mean(_distance(self._seen(s, seed)[0], outputs) for seed in _BOTH) >= MOVED)
        return TIMES * _least(lambda s: _mean(_alike(self._seen(s, seed)[1], features) for seed in _BOTH) <= LEFT)

    def _seen(self, deviation: float = 0.0, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Return the outputs with noise on the weights at x⁰, and what the last layer with weights was given."""
        noise = torch.randn(self.x0.shape, generator=torch.Generator().manual_seed(seed)) if deviation else 0.0
        given = [x := self.samples.x[:SAMPLES]]

        def keep(_layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            given.append(inputs[0])

        layers = [m for m in self.model.modules() if any(True for _ in m.parameters(recurse=False))]
        hooks = [layer.register_forward_pre_hook(keep) for layer in layers]
        try:
            with torch.no_grad():
                outputs: Tensor = functional_call(self.model, self.layout.views(self.x0 + deviation * noise), (x,))
        finally:
            for hook in hooks:
                hook.remove()
        return outputs.double(), given[-1]


def _least(enough: Callable[[float], bool]) -> float:
    """Return the least noise that is `enough`, by halving its logarithm."""
    low, high = -24.0, 8.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(2.0**middle) else (middle, high)
    return math.exp2((low + high) / 2)


def _mean(values: Iterable[float]) -> float:
    return math.fsum(values) / SEEDS


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).square().mean().sqrt())


def _alike(one: Tensor, other: Tensor) -> float:
    """Return the correlation of how samples differ."""
    a, b = (t.double().flatten(1) - t.double().flatten(1).mean(0) for t in (one, other))
    return float((a * b).sum() / (a.norm() * b.norm()).clamp(min=1e-300))
