"""Many simulations at once, a process with one thread and a run folder each; runs with several seeds taken together.

A finished run is not run again and a half-done one continues from its checkpoint, so the same command continues where
it was interrupted. A run that diverged is finished too: it says so in its folder.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import signal
import statistics
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from privsgp.algorithms import ALGORITHMS
from privsgp.audit.audit import silent
from privsgp.engine.folder import Folder, read_metrics
from privsgp.engine.formats import Summary
from privsgp.engine.stopping import Stopping
from privsgp.errors import Diverged, Refused, refuse_below_one
from privsgp.files import read_json, write_json
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs import train as training
from privsgp_research.claims import Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from privsgp.audit.audit import Stage
    from privsgp.runs.config import Config

_PROCESSES = multiprocessing.get_context("forkserver")
# The slow imports of a run happen once.
_PROCESSES.set_forkserver_preload(["privsgp.runs.train", "privsgp.accounting.pld", "sklearn.datasets", "torch._dynamo"])
_PAUSE = 0.5  # seconds between two looks at the progress, and at whether to stop


@dataclass(frozen=True)
class Run:
    """One run that is done; `summary` is None and there are no metrics where it diverged."""

    config: Config
    summary: dict[str, Any] | None
    metrics: list[dict[str, Any]]

    @classmethod
    def read(cls, config: Config, out: Path) -> Run:
        """Read it from its folder."""
        folder = Folder(out)
        if not folder.summary.exists():
            return cls(config, None, [])
        return cls(config, read_json(folder.summary, Summary), read_metrics(folder.metrics))


def run_all(
    tasks: Sequence[tuple[Config, Path]],
    *,
    data_dir: Path | None = None,
    jobs: int | None = None,
    watch: Callable[[int], None] = lambda _done: None,
) -> list[Run]:
    """Run each configuration in its folder, unless that is done, and return all runs in the tasks' order.

    `jobs` run at a time (default: one per core). `watch` is told how many are done. On Ctrl-C or SIGTERM every run in
    hand keeps a checkpoint, and KeyboardInterrupt is raised. A task that is refused ends all of them.
    """
    if any(config.seed is None for config, _ in tasks):  # each would spend the nodes' budgets
        raise Refused("the configuration has no seed", "set one (seed = 0): a comparison runs simulations")
    waiting = [task for task in tasks if not _done(*task)]
    stopping, others = Stopping(), multiprocessing.active_children()
    with stopping, ProcessPoolExecutor(jobs or len(os.sched_getaffinity(0)), _PROCESSES, _begin) as pool:
        left = {pool.submit(_work, config, folder, data_dir) for config, folder in waiting}
        try:
            while left and not stopping.asked:
                done, left = wait(left, _PAUSE, FIRST_EXCEPTION)
                watch(len(tasks) - len(left))
                if not stopping.asked:  # from a terminal, runs get the signal too and end by it
                    for one in done:
                        one.result()
        except BrokenProcessPool as error:
            raise OSError("a run was ended from outside, for lack of memory perhaps") from error
        finally:  # let no run outlive this one: those in hand keep a checkpoint and end
            ended = [one.cancel() or one.done() for one in left]
            for process in [] if all(ended) else set(multiprocessing.active_children()) - set(others):
                process.terminate()
    if stopping.asked:
        raise KeyboardInterrupt
    return [Run.read(*task) for task in tasks]


def _begin() -> None:
    """Prepare a process: the one that started it hears Ctrl-C, and a run itself while it has steps to finish."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _work(config: Config, folder: Path, data_dir: Path | None) -> None:
    """Run a task in a process of its own."""
    try:
        _run(config, folder, data_dir)
    except Diverged as diverged:
        write_json(folder / "diverged.json", {"version": 1, "why": str(diverged)})
    except KeyboardInterrupt:  # the checkpoint is written: take no further task
        os._exit(130)


def _run(config: Config, out: Path, data_dir: Path | None) -> None:
    problem = problems.load_problem(config, data_dir)
    training.run(config, problem, out, resume=True)
    # Steps that crashes undid may leave no budget for the last ones. A simulation has released nothing: it begins anew.
    if read_json(Folder(out).summary, Summary)["ended"] is not None:
        shutil.rmtree(out)
        training.run(config, problem, out, resume=True)
    for name in ("private", "nodes"):  # gigabytes, for large models, that nobody will ask for
        shutil.rmtree(out / name)


def _done(config: Config, out: Path) -> bool:
    """Tell whether nothing is left to do; refuse a folder that holds another configuration's run."""
    folder = Folder(out)
    if folder.config.exists() and (changed := configs.changes(folder.config, config)):
        raise Refused(
            f"{out} holds a run of another configuration: {'; '.join(changed)}",
            "choose another folder with {out}",
            out=None,
        )
    return folder.summary.exists() or (out / "diverged.json").exists()


@dataclass(frozen=True)
class Bench:
    """Settings of many runs: folder, number at a time, and progress."""

    out: Path
    data_dir: Path | None = None
    jobs: int | None = None  # one per core
    stage: Stage = silent

    def __post_init__(self) -> None:
        refuse_below_one(jobs=self.jobs)

    def several(self, configs: Mapping[str, Config], seeds: Sequence[int], words: str) -> dict[str, Several]:
        """Run each configuration with each seed, in the folder under `out` that its key names."""
        tasks = [
            (config.model_copy(update={"seed": seed}), self.out / "runs" / key / f"seed-{seed}")
            for seed in seeds  # one after the other: the first run of a configuration calibrates for all
            for key, config in configs.items()
        ]
        with self.stage(f"{words}: runs", len(tasks)) as watch:
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
        """The accuracy of the average model; if nodes learn alone, the mean of theirs.

        The two are one where all data are pooled on one node.
        """
        alone = ALGORITHMS[self.config.algorithm.name].network == "alone"
        return "mean_node_accuracy" if alone else "test_accuracy"

    @property
    def accuracy(self) -> Spread | None:
        """Final test accuracy; a run that diverged counts as 0. None for regression."""
        return self.of(self.accuracy_key, 0.0)

    def of(self, key: str, diverged: float | None = None) -> Spread | None:
        """Return a number of the summaries, None unless every run has it; `diverged` counts for runs without one."""
        each: list[Any] = [diverged if run.summary is None else run.summary.get(key) for run in self.runs]
        return None if None in each else Spread(tuple(each))

    def spreads(self, *keys: str) -> dict[str, dict[str, Any] | None]:
        """Return numbers of the summaries for JSON."""
        found = {key: self.accuracy if key == "accuracy" else self.of(key) for key in keys}
        return {key: None if spread is None else spread.as_json() for key, spread in found.items()}

    @property
    def epsilon(self) -> float | None:
        """The certified ε of the worst node of all runs; None without noise, and where there is no finite bound."""
        spent = [run.summary["epsilon_spent"] for run in self.runs if run.summary is not None]
        if not spent or any(nodes is None or None in nodes for nodes in spent):
            return None
        return float(max(max(nodes) for nodes in spent))

    @property
    def score(self) -> tuple[float, float]:
        """The score for choosing step sizes: accuracy, then test loss; larger is better."""
        loss, accuracy = self.of("test_loss"), self.accuracy
        return (-math.inf if accuracy is None else accuracy.mean, -math.inf if loss is None else -loss.mean)

    def curve(self, key: str, against: str = "step") -> list[dict[str, float]]:
        """Return x, mean and sd of a metric at every evaluation that all runs have, runs that diverged left out."""
        found = [run.metrics for run in self.runs if run.metrics]
        points = [[[row.get(name) for row in rows] for name in (against, key)] for rows in zip(*found, strict=False)]
        known = [(statistics.fmean(x), Spread(tuple(y))) for x, y in points if None not in (*x, *y)]
        return [{"x": x, "mean": y.mean, "sd": y.sd} for x, y in known]
