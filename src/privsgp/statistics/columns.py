"""Columns of tables before training: shares of values, missing values, histograms, quantiles, means and deviations.

A person adds one block for each column: a cell of weight 1 for the bin or the value, or for a missing value. A number
also adds its place within the bin, of weight at most a quarter. So means are exact but for the noise. Bins divide the
schema's public range, into which values are clipped: no smallest and no largest value is ever computed.

Second moments of rows, and ridge regression from them: the cheapest model there is.

A row v = (x, y) is on the schema's scale and is clipped to the norm R as a whole. A person adds the entries v_i v_j and
R/2 · v. Their norm is at most R² √(5/4). Correlations and ridge regression with its path are post-processing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from privsgp.statistics.estimates import PLACE, Estimate, Z, estimate, one_cell
from privsgp.statistics.survival import Times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_QUANTILES = (0.25, 0.5, 0.75)
_WIDEST = 0.1  # half of an interval that says nothing: of a share, or of a column's public range
_PATH = tuple(10.0**power for power in range(-4, 2))  # of λ, as a share of the mean variance of an input
_FAR = 0.25  # half of an interval of a correlation or of R² that says nothing
PATH = "ridge"


@dataclass(frozen=True)
class Values:
    """A column of listed values: which they are."""

    name: str
    values: tuple[str, ...]
    norm: ClassVar[float] = 1.0  # one cell of weight 1

    @property
    def length(self) -> int:
        """A cell for each value, and one for missing values."""
        return len(self.values) + 1

    def rows(self, codes: NDArray[np.int64], missing: NDArray[np.bool_]) -> Array:
        """Return each row's block, from the number of its value."""
        return one_cell(np.where(missing, len(self.values), codes), self.length)

    def described(self, cells: Array, persons: int, sigma: float) -> dict[str, Any]:
        """Return the share of each value and of missing ones."""
        known = cells + (persons - cells.sum()) / len(cells)
        shares = [_share(name, one, persons, sigma) for name, one in zip(self.values, known[:-1], strict=True)]
        missing = _share("missing", known[-1], persons, sigma)
        return {"shares": [one._asdict() for one in shares], "missing": missing._asdict()}


@dataclass(frozen=True)
class Numbers:
    """A column of numbers in a public range, in bins of equal width."""

    name: str
    low: float
    high: float
    bins: int
    norm: ClassVar[float] = math.hypot(1, PLACE)  # one cell of weight 1, and the place within the bin

    @property
    def length(self) -> int:
        """A cell for each bin, one for missing values, and the places."""
        return self.bins + 2

    @property
    def _width(self) -> float:
        return (self.high - self.low) / self.bins

    @property
    def _bin_starts(self) -> Array:
        return np.asarray(self.low + self._width * np.arange(self.bins))

    def rows(self, values: Array, missing: NDArray[np.bool_]) -> Array:
        """Return each row's block, from its number."""
        scaled = np.where(missing, 0.0, (np.clip(values, self.low, self.high) - self.low) / self._width)
        at = np.minimum(scaled.astype(np.int64), self.bins - 1)
        made = one_cell(np.where(missing, self.bins, at), self.length)
        made[:, -1] = np.where(missing, 0.0, PLACE * (scaled - at))
        return made

    def described(self, cells: Array, persons: int, sigma: float) -> dict[str, Any]:
        """Return mean, deviation, quantiles, the histogram and the share of missing values."""
        known = cells[:-1] + (persons - cells[:-1].sum()) / (self.bins + 1)
        counts, span = known[:-1], self.high - self.low
        there = max(counts.sum(), 1.0)
        mean = (counts @ self._bin_starts + cells[-1] * self._width / PLACE) / there
        away = self._bin_starts + self._width / 2 - mean
        variance = max(float(counts @ away**2 / there) + self._width**2 / 12, self._width**2 / 12)
        noise = (sigma / there) ** 2
        mean_noise = noise * float(np.sum((away - self._width / 2) ** 2) + (self._width / PLACE) ** 2)
        apart = away**2 - variance
        of_sd = [max(float(counts @ apart**2) / there**2, 0.0), noise * float(np.sum(apart**2))]
        limits, widest = (self.low, self.high), _WIDEST * span
        found = [
            estimate("mean", self.name, mean, variance / there, mean_noise, persons, widest=widest, ends=limits),
            estimate("sd", self.name, math.sqrt(variance), of_sd[0] / (4 * variance), of_sd[1] / (4 * variance),
                     persons, widest=widest, ends=(0.0, span)),
            *(self._quantile(q, counts / there, there, persons, sigma) for q in _QUANTILES),
        ]  # fmt: skip
        ends = [f"{a:g} to {a + self._width:g}" for a in self._bin_starts]
        shares = [_share(name, one, persons, sigma) for name, one in zip(ends, counts, strict=True)]
        return {
            "estimates": [one._asdict() for one in found], "shares": [one._asdict() for one in shares],
            "missing": _share("missing", known[-1], persons, sigma)._asdict(),
        }  # fmt: skip

    def _quantile(self, q: float, shares: Array, there: float, persons: int, sigma: float) -> Estimate:
        """Return a quantile; its interval is of whole bins, for values need not spread evenly within one."""
        reached = np.clip(np.maximum.accumulate(np.cumsum(shares)), 0, 1)
        at = int(np.searchsorted(reached, q))
        cells = min(at + 1, self.bins - at)
        half = Z * math.sqrt(q * (1 - q) / there + cells * (sigma / there) ** 2)
        edges = np.append(self._bin_starts, self.high)
        middle = float(np.interp(q, np.append(0.0, reached), edges))
        low = float(edges[np.searchsorted(reached, max(q - half, 0.0))])
        high = float(edges[min(int(np.searchsorted(reached, min(q + half, 1.0), side="right")) + 1, self.bins)])
        if high - low > 2 * _WIDEST * (self.high - self.low):
            return Estimate(f"quantile {q:g}", self.name, None, persons_needed=_needed(half, persons))
        return Estimate(f"quantile {q:g}", self.name, middle, low, high)


def _needed(half: float, persons: int) -> int:
    """Return about how many persons make half an interval of a share a twentieth, if it is mostly noise."""
    return math.ceil(persons * half / 0.05)


def _share(name: str, count: float, persons: int, sigma: float) -> Estimate:
    share = count / persons
    spread = max(share * (1 - share), 0.0) / persons
    return estimate("share", name, share, spread, (sigma / persons) ** 2, persons, widest=_WIDEST)


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
class _Fit:
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


def ridge(c: Array, persons: int, noise: float) -> list[_Fit]:
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
        path.append(_Fit(penalty, weights, 1 - (residual + noise**2 * away + of_sample) / yy))
    return path


Column = Values | Numbers | Moments | Times


def norm(columns: Sequence[Column]) -> float:
    """Return the largest norm of a person's vector of all columns: blocks add up as lengths at right angles do."""
    return math.hypot(*(c.norm for c in columns))


def described(columns: Sequence[Column], cells: Array, persons: int, sigma: float) -> dict[str, dict[str, Any]]:
    """Return what the noised sum says of each column."""
    ends = np.cumsum([c.length for c in columns])
    parts = np.split(cells, ends[:-1])
    return {c.name: c.described(part, persons, sigma) for c, part in zip(columns, parts, strict=True)}
