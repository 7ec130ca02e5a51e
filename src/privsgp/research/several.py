"""Runs that differ in their seed alone, taken together: means, spreads, and curves with a band."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privsgp.algorithms import ALGORITHMS
from privsgp.audit.audit import silent
from privsgp.errors import refuse_below_one
from privsgp.research.pool import Run, Task, run_all
from privsgp.research.spread import Spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from privsgp.audit.audit import Stage
    from privsgp.runs.config import Config


@dataclass(frozen=True)
class Bench:
    """Where many runs are made, how many at a time, and who watches."""

    out: Path
    data_dir: Path | None = None
    jobs: int | None = None  # one per core
    stage: Stage = silent

    def __post_init__(self) -> None:
        refuse_below_one(jobs=self.jobs)

    def several(self, configs: Mapping[str, Config], seeds: Sequence[int], words: str) -> dict[str, Several]:
        """Run each configuration with each seed, in the folder under `out` that its key names."""
        tasks = [
            Task(config.model_copy(update={"seed": seed}), self.out / "runs" / key / f"seed-{seed}")
            for seed in seeds  # one after the other: the first run of a configuration calibrates for all
            for key, config in configs.items()
        ]
        with self.stage(words, sum(task.config.algorithm.steps for task in tasks)) as watch:
            runs = run_all(tasks, data_dir=self.data_dir, jobs=self.jobs, watch=watch)
        return {key: Several(runs[i :: len(configs)]) for i, key in enumerate(configs)}


@dataclass(frozen=True)
class Several:
    """Runs of one configuration with several seeds; at least one."""

    runs: Sequence[Run]

    @property
    def config(self) -> Config:
        """The first run's configuration."""
        return self.runs[0].config

    @property
    def diverged(self) -> int:
        """How many runs ended in numbers that are not finite."""
        return sum(run.summary is None for run in self.runs)

    @property
    def summary(self) -> dict[str, Any]:
        """The first summary there is, for what does not depend on the seed."""
        return next((run.summary for run in self.runs if run.summary is not None), {})

    @property
    def accuracy_key(self) -> str:
        """What accuracy is: the average model's; where nodes learn alone there is no such model, and theirs on average.

        The two are one where all data are pooled on one node.
        """
        alone = ALGORITHMS[self.config.algorithm.name].network == "alone"
        return "mean_node_accuracy" if alone else "test_accuracy"

    @property
    def accuracy(self) -> Spread | None:
        """Final test accuracy; a run that diverged counts as 0. None for regression."""
        return _spread([0.0 if run.summary is None else run.summary.get(self.accuracy_key) for run in self.runs])

    def of(self, key: str) -> Spread | None:
        """Return a number of the summaries, None unless every run has it."""
        return _spread([None if run.summary is None else run.summary.get(key) for run in self.runs])

    @property
    def epsilon(self) -> float | None:
        """The certified ε of the worst node of all runs; None without noise, and where there is no finite bound."""
        spent = [run.summary["epsilon_spent"] for run in self.runs if run.summary is not None]
        if not spent or any(nodes is None or None in nodes for nodes in spent):
            return None
        return float(max(max(nodes) for nodes in spent))

    @property
    def score(self) -> tuple[float, float]:
        """What step sizes are chosen by: accuracy, then test loss; larger is better."""
        loss, accuracy = self.of("test_loss"), self.accuracy
        return (-math.inf if accuracy is None else accuracy.mean, -math.inf if loss is None else -loss.mean)

    def curve(self, key: str, against: str = "step") -> list[dict[str, float]]:
        """Return x, mean and sd of a metric at every evaluation that all runs have, runs that diverged left out."""
        found = [run.metrics for run in self.runs if run.metrics]
        points = [[[row.get(name) for row in rows] for name in (against, key)] for rows in zip(*found, strict=False)]
        known = [(statistics.fmean(x), Spread(tuple(y))) for x, y in points if None not in (*x, *y)]
        return [{"x": x, "mean": y.mean, "sd": y.sd} for x, y in known]


def _spread(found: Sequence[float | None]) -> Spread | None:
    each = tuple(value for value in found if value is not None)
    return Spread(each) if len(each) == len(found) else None
