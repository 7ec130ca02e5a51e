"""Runs side by side: those that differ in nothing but their seed are one group, with a mean and a band."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privsgp.runs import config as configs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.report.reading import Run

MOST_POINTS = 200


@dataclass(frozen=True)
class Series:
    """A curve: a mean over runs, and the lowest and highest of them."""

    name: str
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]

    @property
    def banded(self) -> bool:
        """Whether several runs are behind it."""
        return self.low != self.high


@dataclass(frozen=True)
class Group:
    """Runs of one configuration with different seeds."""

    label: str
    runs: Sequence[Run]

    @property
    def first(self) -> Run:
        """The run that stands for the group where one is enough."""
        return self.runs[0]

    def curve(self, metric: str, name: str | None = None) -> Series | None:
        """Return a metric over the steps at which all runs were evaluated; None if there are none."""
        columns = [dict(run.column(metric)) for run in self.runs]
        steps = _thinned(sorted(set(columns[0]).intersection(*columns[1:])))
        values = [[column[step] for column in columns] for step in steps]
        if not steps:
            return None
        return Series(
            name or self.label,
            [float(step) for step in steps],
            [sum(v) / len(v) for v in values],
            [min(v) for v in values],
            [max(v) for v in values],
        )

    def last(self, key: str) -> list[float]:
        """Return a number of every finished run's summary."""
        found = [run.summary.get(key) for run in self.runs if run.summary is not None]
        return [value for value in found if value is not None]

    def changes(self, other: Group) -> list[str]:
        """Name the keys in which this group differs from another, seeds left out."""
        return [c for c in configs.differences(other.first.config, self.first.config) if not c.startswith("seed:")]


def group(runs: Sequence[Run]) -> list[Group]:
    """Put runs together that differ in nothing but their seed, in the order given."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(_kind(run), []).append(run)
    names = [members[0].config.name for members in found.values()]
    return [
        Group(name if names.count(name) == 1 else members[0].path.resolve().name, members)
        for name, members in zip(names, found.values(), strict=True)
    ]


def _kind(run: Run) -> str:
    shared = run.config.shared() | {"seed": None, "simulation": run.simulation}
    faults = run.faults and dataclasses.replace(run.faults, seed=0)
    return json.dumps([shared, repr(faults)], sort_keys=True)


def _thinned(steps: list[int]) -> list[int]:
    """Keep every so-manieth step, the last one included: a screen has no room for more."""
    stride = -(-len(steps) // MOST_POINTS) or 1
    return steps[::-1][::stride][::-1]
