"""Methods side by side: same data, partition, x⁰, network and certified budget, each at the step size it likes best.

The rule is the same for all. Each step size of a common grid is run with tuning seeds. The best by final test accuracy
is used. If it is an edge, the grid grows beyond it, a few times at most. What is reported are runs with fresh seeds. So
step sizes are chosen on the test set of simulations, as is the habit of the field: no claim about privacy covers the
choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privsgp import metrics
from privsgp.algorithms import ALGORITHMS
from privsgp.errors import Refused
from privsgp_research.provenance import provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.runs.config import Config
    from privsgp_research.bench import Bench, Several

VERSION = 1
FACTORS = (1 / 4, 1 / 2, 1.0, 2.0, 4.0)  # of the configuration's step size
WIDER = 3  # times that a grid may grow
CAVEAT = (
    "step sizes were chosen on the test set of simulations, with other seeds than those reported: "
    "the choice is not covered by any ε"
)
_BOTH_WAYS = ("ring", "complete", "torus")  # networks whose links go both ways with the same shares


@dataclass(frozen=True)
class Row:
    """One method: what was tried, and what came out with the best of it."""

    algorithm: str
    step_size: float
    tried: dict[float, Several]
    runs: Several

    def as_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        r, summary = self.runs, self.runs.summary
        trust = summary.get("trust", ALGORITHMS[self.algorithm].trust)
        return {
            "algorithm": self.algorithm, "trust": trust, "graph": summary.get("graph"),
            "step_size": self.step_size,
            "tried": [{"step_size": g} | tried.spreads("accuracy", "test_loss") for g, tried in self.tried.items()],
            "seeds": [run.config.seed for run in r.runs], "diverged": r.diverged,
            **r.spreads("accuracy", "test_loss", "train_loss", "virtual_seconds"),
            "metrics": {name: spread for name, spread in r.spreads(*metrics.NAMES).items() if spread is not None},
            "epsilon": r.epsilon, "sigma": summary.get("sigma"), "steps": r.config.algorithm.steps,
            "bytes_sent": summary.get("bytes_sent"),
            "accuracy_of": r.accuracy_key,
            "against_steps": r.curve(r.accuracy_key), "against_time": r.curve(r.accuracy_key, "virtual_seconds"),
        }  # fmt: skip


def compare(
    config: Config,
    algorithms: Sequence[str],
    bench: Bench,
    *,
    seeds: int = 3,
    tuning_seeds: int = 1,
    step_sizes: Sequence[float] = (),
) -> dict[str, Any]:
    """Compare methods at one budget, and return what comparison.json holds.

    Every run has a folder on the bench, and the same call goes on with what is there.

    Seeds from `config.seed` on tune the step size, the `seeds` after them are reported. `step_sizes` is the common
    grid, by default around the configuration's own. `local` is always among the rows: it tells whether joining pays.

    Guarantee: every row's ε is certified, for runs whose parameters were fixed ahead.
    Assumes: simulation. The choice of the step size looks at results and is not counted.
    """
    _refuse_impossible(config, algorithms, step_sizes)
    names = dict.fromkeys([*algorithms, *(["local"] if "local" in ALGORITHMS else [])])
    grid = sorted(set(step_sizes)) or [factor * config.algorithm.step_size for factor in FACTORS]
    methods = {name: method(config, name) for name in names}
    about = provenance(config.engine.device)  # refuses a device that is not there, before anything runs
    found = rows(methods, grid, bench, seeds=seeds, tuning_seeds=tuning_seeds)
    return {
        "format": "privsgp-comparison", "version": VERSION, "simulation": True, "note": CAVEAT,
        **about, "config": config.model_dump(mode="json"),
        "rows": [row.as_json() for row in found],
    }  # fmt: skip


def rows(
    methods: dict[str, Config], grid: list[float], bench: Bench, *, seeds: int, tuning_seeds: int = 1
) -> list[Row]:
    """Tune every method's step size, then run it with fresh seeds."""
    first = min(config.seed or 0 for config in methods.values())
    fresh = first + tuning_seeds
    tried = _tune(methods, grid, bench, range(first, fresh))
    best = {name: _best(tried[name]) for name in methods}
    runs = bench.several(
        {_key(name, best[name]): methods[name].with_section("algorithm", step_size=best[name]) for name in methods},
        range(fresh, fresh + seeds), "fresh seeds",
    )  # fmt: skip
    return [Row(name, best[name], tried[name], runs[_key(name, best[name])]) for name in methods]


def _tune(methods: dict[str, Config], grid: list[float], bench: Bench, seeds: range) -> dict[str, dict[float, Several]]:
    """Try the grid with every method, and more where a method is best at an edge of it."""
    tried: dict[str, dict[float, Several]] = {name: {} for name in methods}
    asked = [(name, step_size) for step_size in grid for name in methods]
    for words in ("step sizes", *["step sizes, wider"] * WIDER):
        configs = {
            _key(name, step_size): methods[name].with_section("algorithm", step_size=step_size)
            for name, step_size in asked
        }
        found = bench.several(configs, seeds, words)
        for name, step_size in asked:
            tried[name][step_size] = found[_key(name, step_size)]
        asked = [(name, beyond) for name in methods if (beyond := _beyond(tried[name])) is not None]
        if not asked:
            break
    return tried


def _key(name: str, step_size: float) -> str:
    return f"{name}/step-{step_size:.6g}"


def method(config: Config, name: str) -> Config:
    """Return the configuration for another method, on another network where it cannot use the configuration's own."""
    changed = config.with_section("graph", name="ring") if moved(config, [name]) else config
    if config.privacy.noise == "pairwise":  # those that cannot share noise add their own
        changed = changed.with_section("privacy", noise="auto")
    return changed.model_copy(update={"name": f"{config.name}-{name}"}).with_section("algorithm", name=name)


def moved(config: Config, algorithms: Sequence[str]) -> list[str]:
    """Return the methods that run on a ring, because they cannot use the configuration's own network."""
    found = [name for name in algorithms if name in ALGORITHMS and ALGORITHMS[name].network == "undirected"]
    return [] if config.graph.name in _BOTH_WAYS else found


def _refuse_impossible(config: Config, algorithms: Sequence[str], step_sizes: Sequence[float]) -> None:
    unknown = [name for name in algorithms if name not in ALGORITHMS]
    if unknown or not algorithms:
        raise Refused(f"--algorithms {', '.join(unknown)}", f"take some of {', '.join(ALGORITHMS)}")
    if config.auto:
        raise Refused(
            f"{config.auto[0]} = 'auto' in a comparison",
            "write the number that `privsgp plan` gives: it is the same for all methods",
        )
    if config.privacy.nominal:
        raise Refused(
            f"privacy.accountant = {config.privacy.accountant!r} in a comparison",
            "take 'certified': formulas of different papers are no common budget",
        )
    if config.privacy.epsilon is None:
        raise Refused(f"privacy.sigma = {config.privacy.sigma} in a comparison", "give the budget all share: epsilon")
    if len(set(step_sizes)) == 1:
        raise Refused(f"--step-sizes {step_sizes[0]}", "give at least two, or none for a grid around the config's own")


def _best(tried: dict[float, Several]) -> float:
    return max(sorted(tried), key=lambda step_size: tried[step_size].score)


def _beyond(tried: dict[float, Several]) -> float | None:
    """Return the next step size beyond the best, if that is an edge of the grid, at the grid's own ratio there."""
    grid, best = sorted(tried), _best(tried)
    if best == grid[0]:
        return grid[0] ** 2 / grid[1]
    return grid[-1] ** 2 / grid[-2] if best == grid[-1] else None
