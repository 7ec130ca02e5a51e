"""Metrics from a noised sum, with 95 % intervals that include the sampling error and the noise.

All of it is post-processing. A metric is a function of the cells. Its variance is that of the persons, who are a
sample, and that of the noise, both by its gradient. If an interval is too wide to say anything, the estimate has no
value, and the number of persons that would be needed instead.

The number of persons is public, so the cells are shifted to add up to it before anything is computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    Array = NDArray[np.float64]
    Metric = Callable[[Tensor], Tensor]

Z = 1.959963984540054  # 95 %
PLACE = 0.25  # the weight of a person's place within the bin: it costs 3 % more noise, and gives the mean exactly
# Half-widths from which on an interval says nothing.
MOST_CLIPPED = 0.01  # of residuals, for an R²
WIDEST = {
    "auc": 0.1, "accuracy": 0.1, "sensitivity": 0.15, "specificity": 0.15, "brier": 0.05, "recall": 0.15,
    "calibration_in_the_large": 0.1, "r2": 0.25, "mae": 0.1, "clipped": 0.1, "observed": 0.15, "precision": 0.15,
    "net_benefit": 0.1, "net_benefit_of_all": 0.1,
}  # fmt: skip
_CROWDED = 0.05
_MOST = 1e9  # persons: if a metric needs more, the noise hides even how many
_REACH = 2.5  # of the log-odds around the share of class 1: an AUC of 0.8 has nine tenths of its scores there
_SIGNED = ("calibration_in_the_large", "net_benefit", "net_benefit_of_all")  # from −1 to 1


class Estimate(NamedTuple):
    """A metric of a group of persons; without a value, about how many persons would be needed (None: unknown)."""

    metric: str
    group: str
    value: float | None
    low: float | None = None
    high: float | None = None
    persons_needed: int | None = None


def estimate(
    metric: str, group: str, value: float, sampling: float, noise: float, persons: int, *, widest: float,
    ends: tuple[float, float] = (0.0, 1.0), off: float = 0.0,
) -> Estimate:  # fmt: skip
    """Return the interval of a value with these two variances, and `off` by some bound; no value if it is too wide."""
    half = off + Z * math.sqrt(max(sampling, 0.0) + noise)
    if not math.isfinite(half + value):
        return Estimate(metric, group, None)
    if half > widest and off >= widest:
        return Estimate(metric, group, None)
    if half > widest:
        widest -= off
        a, b = Z * Z * max(sampling, 0.0) * persons, Z * Z * noise * persons**2  # a/m + b/m² = widest²
        needed = (a + math.sqrt(a * a + 4 * widest**2 * b)) / (2 * widest**2)
        if needed > _MOST:
            return Estimate(metric, group, None)
        digits = 10 ** max(0, math.floor(math.log10(needed)) - 1)
        return Estimate(metric, group, None, persons_needed=math.ceil(needed / digits) * digits)
    low, high = (min(max(end, ends[0]), ends[1]) for end in (value - half, value + half))
    return Estimate(metric, group, min(max(value, ends[0]), ends[1]), low, high)


@dataclass(frozen=True)
class Groups:
    """Public subgroups, all crossed: of each column its name and values; without columns there is one cell."""

    names: tuple[str, ...] = ()
    values: tuple[tuple[str, ...], ...] = ()

    @property
    def count(self) -> int:
        """The number of cells."""
        return math.prod(map(len, self.values))

    def chosen(self) -> list[tuple[str, list[int]]]:
        """Return everybody, then each value of each column, with the cells that belong to it."""
        shape = [len(values) for values in self.values]
        numbers = np.arange(self.count).reshape(shape or [1])
        found = [("all", numbers.ravel().tolist())]
        for axis, (name, values) in enumerate(zip(self.names, self.values, strict=True)):
            found += [(f"{name} = {one}", numbers.take(i, axis).ravel().tolist()) for i, one in enumerate(values)]
        return found


NONE = Groups()


@dataclass(frozen=True)
class Scores:
    """Two classes: bins of the probability of class 1 × label × group, and the place within the bin."""

    edges: tuple[float, ...]
    threshold: float
    groups: Groups = NONE
    repeated: bool = False  # whether scores may repeat
    norm: ClassVar[float] = math.hypot(1, PLACE)  # one cell of weight 1, and the place within the bin

    @classmethod
    def of(
        cls, bins: int | Sequence[float], threshold: float = 0.5, groups: Groups = NONE, *, repeated: bool = False,
        share: float | None = None,
    ) -> Scores:  # fmt: skip
        """Return bins with these edges, or so many; the threshold is always an edge.

        Bins have equal widths, or with a public `share` of class 1 equal steps of the log-odds around it.
        """
        inner = np.linspace(0, 1, bins + 1)[1:-1] if isinstance(bins, int) else np.asarray(bins, float)
        if isinstance(bins, int) and share is not None:
            inner = 1 / (1 + (1 / share - 1) * np.exp(-np.linspace(-_REACH, _REACH, bins - 1)))
        kept = [float(e) for e in inner if 0 < e < 1 and abs(e - threshold) > 1e-9]
        inside = [threshold] if 0 < threshold < 1 else []
        return cls((0.0, *sorted({*kept, *inside}), 1.0), threshold, groups, repeated)

    @property
    def length(self) -> int:
        """A cell for each bin, label and group, and the places."""
        return self.groups.count * 2 * (self._bins + 1)

    @property
    def _bins(self) -> int:
        return len(self.edges) - 1

    def rows(self, p: Array, y: NDArray[np.int64], group: NDArray[np.int64]) -> Array:
        """Return each row's vector, from the probability of class 1 [N], the label and the group."""
        edges, p = np.array(self.edges), np.clip(np.nan_to_num(p, nan=0.5), 0, 1)
        bin_ = np.clip(np.searchsorted(edges, p, side="right") - 1, 0, self._bins - 1)
        made, each = np.zeros((len(p), self.groups.count, 2, self._bins + 1)), np.arange(len(p))
        made[each, group, y, bin_] = 1
        made[each, group, y, -1] = PLACE * (p - edges[bin_]) / np.diff(edges).max()
        return made.reshape(len(p), -1)

    def estimates(self, cells: Array, persons: int, sigma: float) -> list[Estimate]:
        """Return all metrics of all groups; `sigma` is the noise of each cell."""
        metrics: dict[str, Metric] = {
            "auc": _auc,
            "accuracy": self._accuracy,
            "sensitivity": lambda h: h[1, :-1][self._positive].sum() / h[1, :-1].sum(),
            "specificity": lambda h: h[0, :-1][~self._positive].sum() / h[0, :-1].sum(),
            "calibration_in_the_large": self._in_the_large,
            "brier": self._brier,
        }
        return [
            self._estimate(name, group, chosen, metric, cells, persons, sigma)
            for group, chosen in self.groups.chosen()
            for name, metric in metrics.items()
        ]

    def curves(self, cells: Array, persons: int, sigma: float) -> dict[str, list[dict[str, Any]]]:
        """Return the calibration of each bin, and of each threshold ROC, precision and recall, and net benefit."""
        chosen = self.groups.chosen()[0][1]

        def estimated(name: str, metric: Metric) -> dict[str, Any]:
            return self._estimate(name, "all", chosen, metric, cells, persons, sigma)._asdict()

        def observed(b: int) -> Metric:
            return lambda h: h[1, b] / h[:, b].sum()

        def metrics(b: int, t: float) -> dict[str, Metric]:
            odds = t / (1 - t)
            return {
                "sensitivity": lambda h: h[1, b:-1].sum() / h[1, :-1].sum(),
                "specificity": lambda h: h[0, :b].sum() / h[0, :-1].sum(),
                "precision": lambda h: h[1, b:-1].sum() / h[:, b:-1].sum(),
                "net_benefit": lambda h: (h[1, b:-1].sum() - odds * h[0, b:-1].sum()) / h[:, :-1].sum(),
                "net_benefit_of_all": lambda h: (h[1, :-1].sum() - odds * h[0, :-1].sum()) / h[:, :-1].sum(),
            }

        inner = list(enumerate(self.edges))[1:-1]
        return {
            "calibration": [
                {"from": low, "to": high} | estimated("observed", observed(b))
                for b, (low, high) in enumerate(pairwise(self.edges))
            ],
            "thresholds": [
                {"threshold": t} | {name: estimated(name, metric) for name, metric in metrics(b, t).items()}
                for b, t in inner
            ],
        }  # fmt: skip

    def counts(self, cells: Array) -> Array:
        """Return the noised counts of all groups together: labels × bins."""
        counts: Array = cells.reshape(self.groups.count, 2, self._bins + 1)[..., :-1].sum(0)
        return counts

    def _estimate(
        self, name: str, group: str, chosen: list[int], metric: Metric, cells: Array, persons: int, sigma: float
    ) -> Estimate:
        shape = (self.groups.count, 2, self._bins + 1)
        made, value, sampling, noise = by_slope(metric, cells.reshape(shape), chosen, persons, sigma)
        ends = (-1.0, 1.0) if name in _SIGNED else (0.0, 1.0)
        within = 0.0
        if name == "auc":
            no, yes = made[:, :-1].clamp(min=0)
            pairs = yes * no / (yes.sum() * no.sum())
            within = unordered(pairs, _within(made), repeated=self.repeated)
        return estimate(name, group, value, sampling, noise, persons, widest=WIDEST[name], ends=ends, off=within)

    @property
    def _ends(self) -> tuple[Tensor, Tensor]:
        """Return the bins' left ends and widths."""
        edges = torch.tensor(self.edges, dtype=torch.float64)
        return edges[:-1], torch.diff(edges)

    @property
    def _positive(self) -> Tensor:
        """Of which bins class 1 is said."""
        return self._ends[0] >= self.threshold - 1e-12

    def _accuracy(self, h: Tensor) -> Tensor:
        return (h[1, :-1][self._positive].sum() + h[0, :-1][~self._positive].sum()) / h[:, :-1].sum()

    def _expected(self, h: Tensor) -> Tensor:
        """Return the sum of the probabilities of each label: the bins' left ends, and the places within the bins."""
        left, width = self._ends
        return (h[:, :-1] * left).sum(1) + h[:, -1] * (width.max() / PLACE)

    def _in_the_large(self, h: Tensor) -> Tensor:
        return (h[1, :-1].sum() - self._expected(h).sum()) / h[:, :-1].sum()

    def _brier(self, h: Tensor) -> Tensor:
        """Return the mean of p² − 2 p y + y."""
        (left, width), counts = self._ends, h[:, :-1].sum(0)
        sums, squares = powers(counts, left, width)
        squares += 2 * (counts * (left + width / 2)).sum() / counts.sum() * (self._expected(h).sum() - sums)
        return (squares - 2 * self._expected(h)[1] + h[1, :-1].sum()) / counts.sum()


def powers(counts: Tensor, left: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of p and p²: within a bin, the density changes as it does from bin to bin."""
    slope = torch.gradient(counts)[0] / 12
    first, second = counts / 2 + slope, counts / 3 + slope  # of the place from 0 to 1, and of its square
    sums = counts * left + first * width
    return sums.sum(), (counts * left**2 + 2 * left * width * first + width**2 * second).sum()


def by_slope(
    metric: Metric, cells: Array, chosen: list[int], persons: int, sigma: float
) -> tuple[Tensor, float, float, float]:
    """Return the sum of chosen groups, a metric of it, and the metric's variances: of the sample, and of the noise.

    `cells` has a group in each row. The last entries are no counts but places within bins. The counts are shifted to
    add up to the public number of persons.
    """
    h = torch.tensor(cells, dtype=torch.float64, requires_grad=True)
    counts = h[..., :-1]
    made = torch.cat([counts + (persons - counts.sum()) / counts.numel(), h[..., -1:]], -1)
    value = metric(made[chosen].sum(0))
    (noise,) = torch.autograd.grad(value, h, retain_graph=True)
    (slope,) = torch.autograd.grad(value, made)
    made = made.detach()
    counts, places = made[..., :-1], made[..., -1:]
    # Of a person's place within the bin, the mean of the persons with the same label and group.
    influence = slope[..., :-1] + slope[..., -1:] * (places / counts.sum(-1, keepdim=True)).nan_to_num().clamp(0, PLACE)
    spread = (counts * influence**2).sum() - (counts * influence).sum() ** 2 / persons
    return made[chosen].sum(0), value.item(), spread.item(), noise.square().sum().item() * sigma**2


def unordered(pairs: Tensor, within: Tensor, *, repeated: bool) -> float:
    """Bound what an AUC may be wrong by, as bins do not show the order within them.

    Densities that change as they do from bin to bin are right in all but crowded bins: of the pairs of both classes
    that a bin holds beyond a twentieth of all, any order is possible. Scores that repeat may also be ties.
    """
    return float((pairs - _CROWDED).clamp(min=0).sum()) / 2 + (abs(float(within)) if repeated else 0.0)


def _within(h: Tensor) -> Tensor:
    """Return what the order within bins adds to the AUC, if densities change there as they do from bin to bin."""
    no, yes = h[0, :-1], h[1, :-1]
    return (yes[1:] * no[:-1] - yes[:-1] * no[1:]).sum() / (12 * yes.sum() * no.sum())


def _auc(h: Tensor) -> Tensor:
    """Return the AUC of bins [2, B + 1]."""
    no, yes = h[0, :-1], h[1, :-1]
    return (yes * (no.cumsum(0) - no / 2)).sum() / (yes.sum() * no.sum()) + _within(h)


def one_cell(at: NDArray[np.int64], cells: int) -> Array:
    """Return vectors of so many cells: a 1 at one place of each."""
    made = np.zeros((len(at), cells))
    made[np.arange(len(at)), at] = 1
    return made


@dataclass(frozen=True)
class Confusion:
    """Several classes: the true class × the class that is said × group."""

    classes: int
    groups: Groups = NONE
    norm: ClassVar[float] = 1.0  # one cell of weight 1

    @property
    def length(self) -> int:
        """A cell for each pair of classes, and group."""
        return self.groups.count * self.classes**2

    def rows(self, predicted: NDArray[np.int64], y: NDArray[np.int64], group: NDArray[np.int64]) -> Array:
        """Return each row's vector."""
        return one_cell((group * self.classes + y) * self.classes + predicted, self.length)

    def estimates(self, cells: Array, persons: int, sigma: float) -> list[Estimate]:
        """Return the accuracy of each group, and how many of each class are recognised."""
        padded = np.pad(cells.reshape(self.groups.count, -1), ((0, 0), (0, 1)))  # there are no places within bins

        def recall(c: int) -> Metric:
            return lambda h: self._said(h)[c, c] / self._said(h)[c].sum()

        metrics = [("recall", f", class {c}", recall(c)) for c in range(self.classes)]
        metrics.insert(0, ("accuracy", "", lambda h: self._said(h).diag().sum() / h[:-1].sum()))
        found = []
        for group, chosen in self.groups.chosen():
            for name, of, metric in metrics:
                each = by_slope(metric, padded, chosen, persons, sigma)[1:]
                found.append(estimate(name, group + of, *each, persons, widest=WIDEST[name]))
        return found

    def _said(self, h: Tensor) -> Tensor:
        return h[:-1].reshape(self.classes, self.classes)


@dataclass(frozen=True)
class Residuals:
    """Numbers: moments of clipped residuals, and of targets on their public scale.

    Entries are |e|, e², e⁴, u, u² and whether the residual was clipped, with e = residual / clip and u = (y − centre) /
    scale, both clipped to −1 … 1.
    """

    clip: float
    centre: float
    scale: float
    length: ClassVar[int] = 6
    norm: ClassVar[float] = math.sqrt(6)  # each entry is at most 1

    def rows(self, predicted: Array, y: Array) -> Array:
        """Return each row's vector, from predictions and targets in the unit of the table."""
        raw = np.abs(np.nan_to_num(predicted, nan=np.inf) - y) / self.clip
        e, u = np.minimum(raw, 1), np.clip((y - self.centre) / self.scale, -1, 1)
        return np.stack([e, e**2, e**4, u, u**2, (raw > 1).astype(float)], 1)

    def estimates(self, cells: Array, persons: int, sigma: float) -> list[Estimate]:
        """Return R², MAE and the share of clipped residuals. The interval of R² is too wide rather than too narrow."""
        e, e2, e4, u, u2, clipped = cells / persons
        noise, variance = (sigma / persons) ** 2, max(u2 - u * u, 1e-12)
        ratio = (self.clip / self.scale) ** 2
        r2 = 1 - ratio * e2 / variance
        first = ratio * math.sqrt(max(e4 - e2 * e2, 0.0)) / variance
        second = (1 - r2) * math.sqrt(max(variance * (1 + abs(u)) ** 2 - variance**2, 0.0)) / variance
        r2_noise = noise * (ratio**2 + (1 - r2) ** 2 * (1 + 4 * u * u)) / variance**2
        mae = self.clip * e
        found = [
            estimate("r2", "all", r2, (first + second) ** 2 / persons, r2_noise, persons, widest=WIDEST["r2"],
                     ends=(-math.inf, 1.0)),
            estimate("mae", "all", mae, self.clip**2 * max(e2 - e * e, 0.0) / persons, self.clip**2 * noise, persons,
                     widest=WIDEST["mae"] * self.scale, ends=(0.0, self.clip)),
            estimate("clipped", "all", clipped, max(clipped * (1 - clipped), 0.0) / persons, noise, persons,
                     widest=WIDEST["clipped"]),
        ]  # fmt: skip
        # Clipped residuals make R² too good: it is left out if the noise does not explain that many are clipped.
        return found[1:] if clipped - 2 * math.sqrt(noise) > MOST_CLIPPED else found
