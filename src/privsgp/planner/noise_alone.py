"""In the place of rehearsals where a model is too large for them: what noise alone tells.

A rehearsal ends where noise undoes more than is learnt. Where that is can be guessed without learning anything: noise
of standard deviation κT on the weights at x⁰ moves the outputs, and T is taken where it moves them by `MOVED` (root
mean square): within about a factor of two of what rehearsals or tuning find (docs/planner.md). Of methods and lengths
the first is taken whose noise is nearly the least; that tables grow old is not seen here.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import torch
from torch.func import functional_call

from privsgp.planner.rehearsal import SEEDS, Rehearsal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from privsgp.planner.rehearsal import RehearsalSpec

MOVED = 1.0  # by which noise may move outputs
SAMPLES = 16  # that outputs are looked at of
_HALVINGS = 12


class NoiseAlone(Rehearsal):
    """A stage on which nothing is rehearsed; a score is minus the noise κ."""

    tie: ClassVar[float] = 0.05
    rehearsed: ClassVar[bool] = False

    def distance(self, spec: RehearsalSpec) -> float:
        """Return T at which noise moves the outputs by `MOVED`."""
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
        """The standard deviation of noise on the weights that moves the outputs by `MOVED`."""
        low, high = -24.0, 8.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._moved(2.0**middle) < MOVED else (low, middle)
        return math.exp2((low + high) / 2)

    def _moved(self, deviation: float) -> float:
        """Return the root mean square by which such noise moves an output."""
        squares = [(self._outputs(deviation, seed) - self._outputs()).square().mean() for seed in range(SEEDS)]
        return math.sqrt(math.fsum(map(float, squares)) / SEEDS)

    def _outputs(self, deviation: float = 0.0, seed: int = 0) -> Tensor:
        noise = torch.randn(self.x0.shape, generator=torch.Generator().manual_seed(seed)) if deviation else 0.0
        with torch.no_grad():
            views = self.layout.views(self.x0 + deviation * noise)
            outputs: Tensor = functional_call(self.model, views, (self.samples.x[:SAMPLES],))
        return outputs.double()
