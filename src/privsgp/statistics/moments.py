"""Second moments of rows, and ridge regression from them: the cheapest model there is.

A row v = (x, y) is on the schema's scale and is clipped to the norm R as a whole. A person adds the entries v_i v_j and
R/2 · v. Their norm is at most R² √(5/4). Correlations and ridge regression with its path are post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.statistics.estimates import estimate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_PATH = tuple(10.0**power for power in range(-4, 2))  # of λ, as a share of the mean variance of an input
_FAR = 0.25  # half of an interval of a correlation or of R² that says nothing
PATH = "ridge"


@dataclass(frozen=True)
class Moments:
    """The second moments of named inputs and, last, a target."""

    names: tuple[str, ...]
    bound: float
    name: str = "moments"

    @property
    def norm(self) -> float:
        """R² √(5/4)."""
        return self.bound**2 * math.sqrt(1.25)

    @property
    def length(self) -> int:
        """The upper triangle, and first moments."""
        p = len(self.names)
        return p * (p + 1) // 2 + p

    def rows(self, values: Array) -> Array:
        """Return each row's block; entries beside the diagonal stand for two."""
        norms = np.linalg.norm(values, axis=1, keepdims=True)
        v = values * np.minimum(1, self.bound / np.maximum(norms, 1e-300))
        i, j = np.triu_indices(len(self.names))
        return np.concatenate([v[:, i] * v[:, j] * np.where(i == j, 1, math.sqrt(2)), self.bound / 2 * v], 1)

    def described(self, cells: Array, persons: int, sigma: float) -> dict[str, Any]:
        """Return correlations with the target and a ridge regression, with intervals of sampling error and noise."""
        (mean, c), noise = self._moments(cells, persons), sigma / persons
        path, spread = ridge(c, persons, noise), np.maximum(np.diag(c), noise)
        scale = np.sqrt(spread[:-1] * spread[-1])
        found = []
        for name, r, unit, x in zip(self.names, c[:-1, -1] / scale, scale, spread, strict=False):
            variance = noise**2 * (0.5 / unit**2 + r * r / 4 * (x**-2 + spread[-1] ** -2))
            found.append(estimate("correlation", name, r, 1 / persons, variance, persons, widest=_FAR, ends=(-1, 1)))
        best = max(path, key=lambda one: one.r2)
        weights = best.weights
        # The means that the moments are centred by are noisy too.
        centring = 4 * float(np.append(weights, -1.0) @ mean) * best.length * noise / self.bound
        variance = best.noise * (noise / spread[-1]) ** 2 + (centring / spread[-1]) ** 2
        found.append(
            estimate("R² of ridge regression", self.names[-1], best.r2, 4 * (1 - best.r2) ** 2 / persons, variance,
                     persons, widest=_FAR, ends=(-math.inf, 1.0))
        )  # fmt: skip
        model = {
            "lambda": best.penalty, "weights": dict(zip(self.names[:-1], weights.tolist(), strict=True)),
            "constant": float(mean[-1] - weights @ mean[:-1]),
            "path": [{"lambda": one.penalty, "weights": one.weights.tolist(), "r2": one.r2} for one in path],
        }  # fmt: skip
        return {"estimates": [one._asdict() for one in found], PATH: model}

    def _moments(self, cells: Array, persons: int) -> tuple[Array, Array]:
        p = len(self.names)
        i, j = np.triu_indices(p)
        second, mean = np.zeros((p, p)), cells[-p:] / persons / (self.bound / 2)
        second[i, j] = cells[:-p] / persons / np.where(i == j, 1, math.sqrt(2))
        second[j, i] = second[i, j]
        return mean, second - np.outer(mean, mean)


@dataclass(frozen=True)
class Fit:
    """A ridge regression; R² is what it explains of new persons."""

    penalty: float
    weights: Array
    r2: float

    @property
    def length(self) -> float:
        """The length of (weights, −1): noise N in the moments moves the residual's variance by v'Nv."""
        return math.hypot(*self.weights, 1.0)

    @property
    def noise(self) -> float:
        """The variance of this R², in units of the noise in the target's variance: v'Nv holds that too."""
        missed = 1 - self.r2
        return self.length**4 - 2 * missed + missed**2


def ridge(c: Array, persons: int, noise: float) -> list[Fit]:
    """Return the ridge regressions of the last variable on the others, from a covariance matrix with noise.

    λ is at least the norm of a matrix of such noise: so no direction that is mostly noise gets a large weight. Weights
    w = A⁻¹ b follow the noise in A and b. To first order this lowers the variance of the residual, v'Cv with
    v = (w, −1), by noise² (|v|² tr A⁻¹ + w'A⁻¹w). The sample lowers it too. Both are added back.
    """
    xx, xy, yy = c[:-1, :-1], c[:-1, -1], max(float(c[-1, -1]), noise)
    unit, path = float(np.trace(xx)) / len(xx), []
    values, vectors = np.linalg.eigh(xx)  # noise can make some negative
    for share in _PATH:
        penalty = share * max(unit, noise) + noise * math.sqrt(2 * len(c))
        stretched = np.maximum(values, 0) + penalty
        weights = vectors @ (vectors.T @ xy / stretched)
        residual = yy - float(2 * weights @ xy - weights @ xx @ weights)
        away = float((weights @ weights + 1) * np.sum(1 / stretched) + np.sum((vectors.T @ weights) ** 2 / stretched))
        of_sample = 2 * max(residual, 0.0) * float(np.sum(np.maximum(values, 0) / stretched)) / persons
        path.append(Fit(penalty, weights, 1 - (residual + noise**2 * away + of_sample) / yy))
    return path
