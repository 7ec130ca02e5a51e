"""Second moments of rows, and ridge regression from them: the cheapest model there is.

A row v = (x, y) is on the schema's scale and is clipped to the norm R as a whole. A person adds the entries v_i v_j and
R/2 · v. Their norm is at most R² √(5/4). Correlations and ridge regression with its path are post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.statistics.estimates import Estimate

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_DRAWS = 300  # of the sampling error and the noise
_PATH = tuple(10.0**power for power in range(-4, 2))  # of λ, as a share of the mean variance of an input
_FAR = 0.5  # half of an interval of a correlation or of R² that says nothing
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
        rng = np.random.default_rng(0)  # of the intervals, not of the release
        mean, covariance = self._moments(cells, persons)
        draws = [ridge(self._noised(covariance, persons, sigma, rng)) | {"noise": 0.0} for _ in range(_DRAWS)]
        fitted = ridge(covariance)
        found = [
            self._estimate("correlation", name, fitted["correlation"][i], [d["correlation"][i] for d in draws])
            for i, name in enumerate(self.names[:-1])
        ]
        found.append(self._estimate("R² of ridge regression", self.names[-1], fitted["r2"], [d["r2"] for d in draws]))
        weights = dict(zip(self.names[:-1], fitted["weights"].tolist(), strict=True))
        constant = float(mean[-1] - fitted["weights"] @ mean[:-1])
        model = {"lambda": fitted["lambda"], "weights": weights, "constant": constant, "path": fitted["path"]}
        return {"estimates": [one.to_json() for one in found], PATH: model}

    def _moments(self, cells: Array, persons: int) -> tuple[Array, Array]:
        p = len(self.names)
        i, j = np.triu_indices(p)
        second, mean = np.zeros((p, p)), cells[-p:] / persons / (self.bound / 2)
        second[i, j] = cells[:-p] / persons / np.where(i == j, 1, math.sqrt(2))
        second[j, i] = second[i, j]
        return mean, _positive(second - np.outer(mean, mean))

    def _noised(self, covariance: Array, persons: int, sigma: float, rng: np.random.Generator) -> Array:
        """Draw what other persons and other noise would have given."""
        p = len(covariance)
        rows = rng.standard_normal((p, p))  # Bartlett's decomposition of a Wishart matrix
        lower = np.tril(rows, -1) + np.diag(np.sqrt(rng.chisquare(np.maximum(persons - np.arange(p), 1.0))))
        root = np.linalg.cholesky(covariance)
        drawn = root @ lower @ lower.T @ root.T / persons
        noise = np.triu(rng.standard_normal((p, p)) * sigma / persons, 1) / math.sqrt(2)
        return _positive(drawn + noise + noise.T + np.diag(rng.standard_normal(p) * sigma / persons))

    @staticmethod
    def _estimate(metric: str, group: str, value: float, draws: list[float]) -> Estimate:
        """Return the interval that reflects the draws around the value."""
        low, high = (float(2 * value - end) for end in np.quantile(draws, (0.975, 0.025)))
        if high - low > 2 * _FAR:
            return Estimate(metric, group, None)
        return Estimate(metric, group, value, max(low, -1.0), min(high, 1.0))


def ridge(covariance: Array) -> dict[str, Any]:
    """Return the ridge regression of the last variable on the others with the λ that explains most, and its path.

    Noise is worst where the inputs' smallest variances are. So λ is at least that of an inverse that is stable.
    """
    xx, xy, yy = covariance[:-1, :-1], covariance[:-1, -1], covariance[-1, -1]
    unit, path = float(np.trace(xx)) / len(xx), []
    for share in _PATH:
        weights = np.linalg.solve(xx + share * unit * np.eye(len(xx)), xy)
        path.append((share, weights, float((2 * weights @ xy - weights @ xx @ weights) / yy)))
    share, weights, r2 = max(path, key=lambda one: one[2])
    return {
        "lambda": share * unit, "weights": weights, "r2": r2, "correlation": xy / np.sqrt(np.diag(xx) * yy),
        "path": [{"lambda": a * unit, "weights": w.tolist(), "r2": r} for a, w, r in path],
    }  # fmt: skip


def _positive(matrix: Array) -> Array:
    """Return the matrix with eigenvalues of at least a thousandth of their mean: noise can make some negative."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, max(float(values.mean()), 1e-12) * 1e-3)) @ vectors.T)
