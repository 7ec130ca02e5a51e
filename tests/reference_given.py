"""What the plain loops of the methods beside push-sum are given, and the sums over samples that they share.

As in reference.py: float64, one node at a time, one sample at a time, nothing from the package, nothing random.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from reference import averaged, clipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reference import Array, Gradient


@dataclass(frozen=True)
class Given:
    """n nodes for K = len(step_size) rounds.

    `gradient(x, i, j)` is ∇f_i(x; j); node i holds `samples[i]` samples and divides by `batch[i]`, never by the drawn
    size; `draws[k][i]` are the distinct samples of node i in round k; `noise[k][i]` is standard normal, `sigma[i]` its
    factor; `clip` is G, None for no clip (a non-finite gradient counts as 0 all the same).
    """

    gradient: Gradient
    x0: Array
    samples: Sequence[int]
    batch: Sequence[float]
    draws: Sequence[Sequence[Iterable[int]]]
    step_size: Sequence[float]
    noise: Sequence[Sequence[Array]]
    sigma: Sequence[float]
    clip: float | None

    @property
    def nodes(self) -> range:
        return range(len(self.samples))

    def without_privacy(self) -> Given:
        """The same with neither clip nor noise."""
        silence = [np.zeros_like(self.x0)] * len(self.samples)
        return replace(self, noise=[silence] * len(self.step_size), sigma=[0.0] * len(self.samples), clip=None)

    def drawn(self, x: Array, k: int, i: int) -> dict[int, Array]:
        """clip_G(∇f_i(x; j)) of every j that node i draws in round k."""
        return {j: clipped(self.gradient(x, i, j), self.clip) for j in self.draws[k][i]}

    def mean(self, x: Array, k: int, i: int) -> Array:
        """(1/b_i) Σ_S clip_G(∇f_i(x; j))."""
        return averaged(self.drawn(x, k, i), self.batch[i], x.shape)

    def differences(self, x: Array, y: Array, k: int, i: int, R: float | None) -> Array:
        """(1/b_i) Σ_S clip_R(clip_G(∇f_i(x; j)) − clip_G(∇f_i(y; j))): the same samples at both points."""
        here, there = self.drawn(x, k, i), self.drawn(y, k, i)
        return averaged({j: clipped(here[j] - there[j], R) for j in here}, self.batch[i], x.shape)

    def full(self, x: Array, i: int) -> Array:
        """(1/J_i) Σ_j clip_G(∇f_i(x; j)) over all samples of node i."""
        J = self.samples[i]
        return averaged({j: clipped(self.gradient(x, i, j), self.clip) for j in range(J)}, J, x.shape)

    def noised(self, v: Array, k: int, i: int, factor: float = 1.0) -> Array:
        """`v` + factor σ_i n_i^k: what node i releases in round k."""
        return v + factor * self.sigma[i] * self.noise[k][i]
