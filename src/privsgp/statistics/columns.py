"""Columns of tables before training: shares of values, missing values, histograms, quantiles, means and deviations.

A person adds one block for each column: a cell of weight 1 for the bin or the value, or for a missing value. A number
also adds its place within the bin, of weight at most a quarter. So means are exact but for the noise. Bins divide the
schema's public range, into which values are clipped: no smallest and no largest value is ever computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from privsgp.statistics.estimates import PLACE, Estimate, Z, estimate, one_cell
from privsgp.statistics.moments import Moments
from privsgp.statistics.survival import Times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_QUANTILES = (0.25, 0.5, 0.75)
_WIDEST = 0.1  # half of an interval that says nothing: of a share, or of a column's public range


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


Column = Values | Numbers | Moments | Times


def norm(columns: Sequence[Column]) -> float:
    """Return the largest norm of a person's vector of all columns: blocks add up as lengths at right angles do."""
    return math.hypot(*(c.norm for c in columns))


def described(columns: Sequence[Column], cells: Array, persons: int, sigma: float) -> dict[str, dict[str, Any]]:
    """Return what the noised sum says of each column."""
    ends = np.cumsum([c.length for c in columns])
    parts = np.split(cells, ends[:-1])
    return {c.name: c.described(part, persons, sigma) for c, part in zip(columns, parts, strict=True)}
