"""One noised sum of the sites' vectors: a run of one step, so a sum has all that a run has.

The model is θ = 0 and the loss −⟨θ, v⟩, so a sample's gradient is its vector, clipped to a public norm. Every sample is
drawn. One step of length 1, with weights by J_i, makes the average model the mean over all samples of all sites, with
the noise of one release of each site. Calibration, persons, shared noise, ledgers, budget book, agreements and restarts
are those of training.
"""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.accounting.shown import up
from privsgp.errors import Refused
from privsgp.runs import config as configs
from privsgp.runs.problem import Problem, assembled
from privsgp.runs.train import release

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from privsgp.accounting.book import Records
    from privsgp.data.dataset import Dataset
    from privsgp.engine.spec import RunSpec
    from privsgp.runs.config import Config

    Array = NDArray[np.float64]


COMMANDS = {"description": "describe", "evaluation": "evaluate"}


@dataclass(frozen=True)
class Total:
    """A sum over all samples of all sites, the noise of each entry, and what it cost."""

    cells: Array
    samples: list[int]
    sigma: float
    facts: dict[str, Any]  # what descriptions and evaluations say of their release

    @property
    def count(self) -> int:
        """How many samples there are in all, which is public."""
        return sum(self.samples)


def study(config: Config, sizes: Sequence[int], norm: float, epsilon: float, delta: float) -> Config:
    """Return the configuration of a noised sum of vectors up to `norm`; `config` has its [sum]."""
    values = config.model_dump()
    values["algorithm"] = {"name": "privsgp", "batch": sum(sizes) / len(sizes), "steps": 1, "step_size": 1.0}
    values["algorithm"] |= {"weights": "samples"}
    kept = {key: value for key, value in values["privacy"].items() if key != "accountant"}
    kept |= {"epsilon": epsilon, "delta": delta, "sigma": None, "clip": norm, "spare": 0.0}
    values["privacy"] = kept | {"noise": "pairwise" if config.pairwise else "independent"}
    if not config.pairwise:
        values["privacy"] = {k: v for k, v in values["privacy"].items() if k in configs.Privacy.model_fields}
    values |= {"graph": {"name": "complete"}, "transport": {}, "clock": {}, "features": {}, "plan": {}}
    values["engine"] = {"device": "cpu", "dtype": "float64"}
    return configs.parse(values, base=config.base)


def vectors(dataset: Dataset, rows: Array) -> Dataset:
    """Put the vector of each row in the place of its inputs and its target."""
    return dataclasses.replace(
        dataset, x=rows.astype(np.float32), y=np.zeros(len(rows), np.float32), x_test=None, y_test=None, classes=None,
        counted="", vocabulary=None,
    )  # fmt: skip


def released(
    config: Config, problem: Problem, rows: Array, folder: Path,
    also: Sequence[tuple[str, bool, Sequence[Records]]] = (), say: Callable[[str], None] = lambda _line: None,
) -> Total:  # fmt: skip
    """Release the sum of `rows`, the vectors of a problem's rows, in one process; `config` is a `study`.

    `say` gets what error to expect, before the release.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise Refused(
            "private evaluation and description run in one process: they take seconds, so torchrun would save nothing",
            "run it without torchrun; for tables on several machines use `agree propose --evaluate` or `--describe`",
        )
    made = assembled(config, vectors(problem.dataset, rows), problem.parts, problem.block, problem.sizes)
    made, command = dataclasses.replace(made, known=problem.hashes), COMMANDS[config.sum.kind or ""]
    spec, outcome = release(
        config, made, folder, command, also=also, look=lambda spec: announce(spec, made.samples, say)
    )
    if outcome.average is None:
        raise RuntimeError("a sum without an average")
    return total(spec, outcome.average.double().numpy(), made.samples)


def announce(spec: RunSpec, samples: Sequence[int], say: Callable[[str], None]) -> None:
    """Say what error to expect, and whether δ is too large, before anything is released."""
    count, (delta, largest) = sum(samples), (max(spec.protection.deltas), max(samples))
    points = 196 * noise(spec, samples) / count
    say(f"{count:,} {_unit(spec)}s: the noise moves a share by {points:.2g} percentage points or less, 19 times of 20")
    if delta * largest >= 1:
        say(f"WARNING: δ = {up(delta)} is not below 1/J of a site with {largest:,}: take a smaller one")


def noise(spec: RunSpec, samples: Sequence[int]) -> float:
    """Return the standard deviation of each entry's noise in the sum over all sites."""
    p = spec.protection
    own = [m.sigma for m in p.mechanisms] if p.covariance is None else p.covariance.own_sigma
    return math.hypot(*(J * one for J, one in zip(samples, own, strict=True)))


def _unit(spec: RunSpec) -> str:
    return "record" if spec.protection.mechanisms[0].person is None else "person"


def total(spec: RunSpec, mean: Array, samples: Sequence[int]) -> Total:
    """Return the sum that a run's average model stands for."""
    p = spec.protection
    person, shared = p.mechanisms[0].person, p.mechanisms[0].shared
    sigma = noise(spec, samples)
    facts = {
        "version": 1, "simulation": spec.simulation, "epsilon": max(p.epsilon(i, 1) for i in spec.here),
        "delta": max(p.deltas), "relation": p.relation, "noise": spec.noise.name, "records": list(samples),
        "unit": _unit(spec), "sites_per_person": 1 if person is None else person.sites, "sigma": sigma,
        "honest": None if shared is None else shared.honest,
    }  # fmt: skip
    return Total(mean * sum(samples), list(samples), sigma, facts)


def next_folder(folder: Path, name: str) -> Path:
    """Return the first folder `name`-1, `name`-2, … that is not there."""
    number = 1
    while (folder / f"{name}-{number}").exists():
        number += 1
    return folder / f"{name}-{number}"
