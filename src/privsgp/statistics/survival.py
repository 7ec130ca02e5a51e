"""Survival from noised counts: Kaplan–Meier curves by group, and metrics of a model that predicts survival.

A person is in one cell: the bin of the event, or the bin in which it was last seen, or the end. Bins are the schema's.
A person last seen in a bin counts as half of a person at risk there, as in a life table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from privsgp.data.survival import decoded
from privsgp.statistics.estimates import NONE, PLACE, Groups, Scores, by_slope, estimate, one_cell, powers, unordered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from privsgp.statistics.estimates import Array, Estimate, Metric

_FAR, _BIN = 0.1, 0.15  # half of an interval that says nothing: of all persons, or of one bin
_END = 1e-12


def codes(y: NDArray[Any]) -> NDArray[np.int64]:
    """Return each person's cell, of B bins: of an event 0 … B − 1, last seen in a bin B … 2B − 1, at the end 2B."""
    (time, event), bins = decoded(y), y.shape[1]
    return np.where(event, np.ceil(time) - 1, bins + np.floor(time)).astype(np.int64)


def _split(cells: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return events, persons last seen, and persons at risk, of each bin."""
    bins = cells.shape[-1] // 2
    events, last = cells[..., :bins], cells[..., bins : 2 * bins]
    leaving = events + last
    return events, last, cells.sum(-1, keepdim=True) - leaving.cumsum(-1) + leaving


def _later(cells: Tensor) -> Tensor:
    """Return the persons who are there after each bin."""
    return torch.cat([_split(cells)[2][..., 1:], cells[..., -1:]], -1)


def survival(cells: Tensor) -> Tensor:
    """Return the share that survives each bin, by Kaplan and Meier."""
    events, last, there = _split(cells)
    return torch.cumprod(1 - events / (there - last / 2).clamp(min=1), -1)


def _uncensored(cells: Tensor) -> Tensor:
    """Return the share that is still seen after each bin, events aside."""
    events, last, there = _split(cells)
    return torch.cumprod(1 - last / (there - events / 2).clamp(min=1), -1).clamp(min=_END)


@dataclass(frozen=True)
class Times:
    """A time until an event, for a description: which cell, by group."""

    name: str
    edges: tuple[float, ...]
    groups: Groups = NONE
    norm: ClassVar[float] = 1.0  # one cell of weight 1

    @property
    def _each(self) -> int:
        return 2 * len(self.edges) + 1

    @property
    def length(self) -> int:
        """A cell for each way to leave, and group."""
        return self.groups.count * self._each

    def rows(self, cells: NDArray[np.int64], group: NDArray[np.int64]) -> Array:
        """Return each row's block."""
        return one_cell(group * self._each + cells, self.length)

    def described(self, cells: Array, persons: int, sigma: float) -> dict[str, Any]:
        """Return the Kaplan–Meier curve of each group."""
        padded = np.pad(cells.reshape(-1, self._each), ((0, 0), (0, 1)))  # there are no places within bins
        each = self.groups.chosen()
        found = [
            one for group, chosen in (each[1:] or each)
            for one in kaplan_meier(self.edges, group if each[1:] else self.name, padded, chosen, persons, sigma)
        ]  # fmt: skip
        return {"estimates": [one._asdict() for one in found], "times": list(self.edges)}


def kaplan_meier(
    edges: Sequence[float], group: str, cells: Array, chosen: list[int], persons: int, sigma: float
) -> list[Estimate]:
    """Return the share of chosen groups that survives each edge; after the cells comes an entry that is no count."""
    found = []
    for k, time in enumerate(edges):
        value = by_slope(lambda h, k=k: survival(h[:-1])[k], cells, chosen, persons, sigma)[1:]  # type: ignore[misc]
        found.append(estimate(f"survival at {time:g}", group, *value, persons, widest=_FAR))
    return found


@dataclass(frozen=True)
class Risks:
    """Survival that a model predicts: bins of the risk of an event until one edge × cells of `codes` × group.

    The last entry of a group is the place of the risks within their bins.
    """

    risks: tuple[float, ...]
    edges: tuple[float, ...]
    at: int
    groups: Groups = NONE
    repeated: bool = False
    norm: ClassVar[float] = math.hypot(1, PLACE)  # one cell of weight 1, and the place within the bin

    @classmethod
    def of(
        cls, bins: int | Sequence[float], edges: Sequence[float], time: float, groups: Groups = NONE, *,
        repeated: bool = False,
    ) -> Risks:  # fmt: skip
        """Return the bins of the risk of an event until `time`, one of the edges."""
        return cls(Scores.of(bins, 0.0).edges, tuple(edges), list(edges).index(time), groups, repeated)

    @property
    def length(self) -> int:
        """A cell for each bin of the risk and way to leave, and the places, of each group."""
        return math.prod(self._shape)

    @property
    def _shape(self) -> tuple[int, int]:
        return self.groups.count, (len(self.risks) - 1) * self._each + 1

    @property
    def _each(self) -> int:
        return 2 * len(self.edges) + 1

    def rows(self, curves: Array, y: NDArray[Any], group: NDArray[np.int64]) -> Array:
        """Return each row's vector, from predicted curves [N, bins], the target and the group."""
        edges, risk = np.array(self.risks), np.clip(np.nan_to_num(1 - curves[:, self.at], nan=0.5), 0, 1)
        bin_ = np.clip(np.searchsorted(edges, risk, side="right") - 1, 0, len(edges) - 2)
        made, each = np.zeros((len(risk), *self._shape)), np.arange(len(risk))
        made[each, group, bin_ * self._each + codes(y)] = 1
        made[each, group, -1] = PLACE * (risk - edges[bin_]) / np.diff(edges).max()
        return made.reshape(len(risk), -1)

    def estimates(self, cells: Array, persons: int, sigma: float) -> list[Estimate]:
        """Return all metrics of all groups; `sigma` is the noise of each cell."""
        at, found = f"{self.edges[self.at]:g}", []
        metrics: dict[str, tuple[Metric, float, float]] = {  # least value, and half of an interval that says nothing
            "c_index": (lambda h: self._concordance(h)[0], 0.0, _FAR),
            f"survival at {at}": (lambda h: survival(self._cells(h).sum(0))[self.at], 0.0, _FAR),
            f"predicted survival at {at}": (lambda h: 1 - self._risk(h), 0.0, _FAR),
            f"calibration in the large at {at}": (self._in_the_large, -1.0, _FAR),
            f"brier at {at}": (self._brier, 0.0, _FAR / 2),
        }
        for group, chosen in self.groups.chosen():
            for name, (metric, least, widest) in metrics.items():
                made, value, each, noise = by_slope(metric, cells.reshape(self._shape), chosen, persons, sigma)
                off = 0.0
                if name == "c_index":
                    _, pairs, within = self._concordance(made)
                    off = unordered(pairs.clamp(min=0), within, repeated=self.repeated)
                found.append(
                    estimate(name, group, value, each, noise, persons, widest=widest, ends=(least, 1.0), off=off)
                )
        return found

    def curves(self, cells: Array, persons: int, sigma: float) -> dict[str, list[dict[str, Any]]]:
        """Return the Kaplan–Meier curve, and of each bin of the predicted risk the one that is observed."""
        made, chosen, calibrated = cells.reshape(self._shape), list(range(self.groups.count)), []
        km = kaplan_meier(self.edges, "all", made, chosen, persons, sigma)
        for b, ends in enumerate(pairwise(self.risks)):
            observed = lambda h, b=b: 1 - survival(self._cells(h)[b])[self.at]  # noqa: E731
            one = estimate(
                "observed", "all", *by_slope(observed, made, chosen, persons, sigma)[1:], persons, widest=_BIN
            )
            calibrated.append(one._asdict() | {"from": ends[0], "to": ends[1]})
        curve = [one._asdict() | {"time": time} for one, time in zip(km, self.edges, strict=True)]
        return {"survival": curve, "calibration": calibrated}

    def _cells(self, h: Tensor) -> Tensor:
        return h[:-1].reshape(-1, self._each)

    def _risk(self, h: Tensor) -> Tensor:
        """Return the mean predicted risk."""
        edges, counts = torch.tensor(self.risks, dtype=torch.float64), self._cells(h).sum(1)
        return ((counts * edges[:-1]).sum() + h[-1] * (edges.diff().max() / PLACE)) / counts.sum()

    def _in_the_large(self, h: Tensor) -> Tensor:
        return 1 - survival(self._cells(h).sum(0))[self.at] - self._risk(h)

    def _concordance(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return Harrell's C, the share of pairs in each bin of the risk, and what the order within bins adds to C.

        Of two events in one bin of time the order is not known: such a pair counts half. Of an event and a person last
        seen in the same bin, the event was first in half of the cases.
        """
        cells = self._cells(h)
        events, last, _ = _split(cells)
        later, ties = _later(cells) + last / 2, events.sum(0).square().sum() / 2
        total = (events.sum(0) * later.sum(0)).sum() + ties
        within = (events[1:] * later[:-1] - events[:-1] * later[1:]).sum() / (12 * total)
        right = (events * (later.cumsum(0) - later / 2)).sum() + ties / 2
        return right / total + within, (events * later).sum(1) / total, within

    def _brier(self, h: Tensor) -> Tensor:
        """Return the Brier score at the edge, weighted by the inverse probability to be seen until then (Graf 1999)."""
        events, _, _ = _split(self._cells(h))
        edges, uncensored = torch.tensor(self.risks, dtype=torch.float64), _uncensored(self._cells(h).sum(0))
        until = slice(self.at + 1)
        middle = (
            torch.cat([torch.ones(1, dtype=torch.float64), uncensored[:-1]]) + uncensored
        ) / 2  # events spread over a bin
        died = (events / middle)[:, until].sum(1)
        alive = _later(self._cells(h))[:, self.at] / uncensored[self.at]
        (first, squares), (_, others) = (powers(one, edges[:-1], edges.diff()) for one in (died, alive))
        return (died.sum() - 2 * first + squares + others) / self._cells(h).sum()
