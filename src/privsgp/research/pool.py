"""Many simulations at once: a process, one thread and a run folder each.

What is finished is not run again and what is half done goes on from its checkpoint, so the same command continues where
it was interrupted. A run that diverged is finished too: it says so in its folder.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import shutil
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import torch

from privsgp.engine.folder import Folder, read_metrics
from privsgp.engine.formats import Summary
from privsgp.engine.stops import Stopping
from privsgp.errors import Diverged, Refused
from privsgp.files import read_json, write_json
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs import train as training

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.context import ForkServerProcess
    from pathlib import Path

    from privsgp.runs.config import Config

_PROCESSES = multiprocessing.get_context("forkserver")
# What a run imports on its way, seconds of it, is imported once.
_PROCESSES.set_forkserver_preload(
    ["privsgp.research.pool", "privsgp.accounting.pld", "sklearn.datasets", "torch._dynamo"]
)
_PAUSE = 0.5  # seconds between two words of a run about its progress, and between two looks at whether to stop


@dataclass(frozen=True)
class Task:
    """One run to be done."""

    config: Config
    folder: Path


@dataclass(frozen=True)
class Run:
    """One run that is done; `summary` is None and there are no metrics where it diverged."""

    config: Config
    summary: dict[str, Any] | None
    metrics: list[dict[str, Any]]


def run_all(
    tasks: Sequence[Task],
    *,
    data_dir: Path | None = None,
    jobs: int | None = None,
    watch: Callable[[int], None] | None = None,
) -> list[Run]:
    """Run what is not yet done, `jobs` at a time (default: one per core), and return all runs in the tasks' order.

    `watch` is told how many steps are done, of all tasks together. On Ctrl-C or SIGTERM every run in hand keeps a
    checkpoint, and KeyboardInterrupt is raised. A task that is refused ends all of them.
    """
    if any(task.config.seed is None for task in tasks):  # each would spend the nodes' budgets
        raise Refused("several runs without a seed", "they are simulations: give the config a seed (seed = 0)")
    waiting = [task for task in tasks if not _done(task)]
    steps = {task.folder: 0 if task in waiting else task.config.algorithm.steps for task in tasks}
    active: dict[Connection, tuple[Task, ForkServerProcess]] = {}
    stopping = Stopping()
    with stopping, _ending(active):
        while waiting or active:
            while waiting and len(active) < (jobs or cores()) and not stopping.asked:
                active.update([_started(waiting.pop(0), data_dir)])
            ready = wait(list(active), _PAUSE)
            if stopping.asked:  # asked before they are heard: from a terminal, runs get the signal too and end by it
                raise KeyboardInterrupt
            for pipe in [pipe for pipe in active if pipe in ready]:
                task, process = active[pipe]
                step = _heard(pipe, task, process)
                if step is None:
                    del active[pipe]
                steps[task.folder] = task.config.algorithm.steps if step is None else step
            if watch is not None:
                watch(sum(steps.values()))
    if stopping.asked:
        raise KeyboardInterrupt
    return [_read(task) for task in tasks]


@contextlib.contextmanager
def alone_in(place: Path) -> Iterator[None]:
    """Hold the folder of many runs: a second command there is refused. What is refused first leaves no folder behind.

    Their own locks are not enough: between two runs one command would clear away what the other is about to.
    """
    new = [path for path in (place, *place.parents) if not path.exists()]
    with Folder(place).locked() as folder:
        try:
            yield
        except Refused:
            if new and list(place.iterdir()) == [folder.lock]:
                folder.lock.unlink()
                with contextlib.suppress(OSError):  # somebody else has a use for it by now
                    for path in new:
                        path.rmdir()
            raise


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _started(task: Task, data_dir: Path | None) -> tuple[Connection, tuple[Task, ForkServerProcess]]:
    hears, speaks = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_work, args=(task, data_dir, speaks))
    process.start()
    speaks.close()  # the run has its own end: when it is closed, the run is over
    return hears, (task, process)


def _heard(pipe: Connection, task: Task, process: ForkServerProcess) -> int | None:
    """Return the step a run is at, None when it is over; raise what it was refused for."""
    try:
        said = pipe.recv()
    except EOFError:
        process.join()
        pipe.close()
        if process.exitcode:
            raise OSError(f"the run in {task.folder} ended with status {process.exitcode}") from None
        return None
    if isinstance(said, tuple):
        raise Refused(*said)
    return int(said)


@contextlib.contextmanager
def _ending(active: dict[Connection, tuple[Task, ForkServerProcess]]) -> Iterator[None]:
    """Let no run outlive this one: whatever happens here, those in hand keep a checkpoint and end."""
    try:
        yield
    finally:
        for _, process in active.values():
            process.terminate()
        for _, process in active.values():
            process.join()


def _work(task: Task, data_dir: Path | None, pipe: Connection) -> None:
    """Run a task in a process of its own."""
    torch.set_num_threads(1)
    try:
        _run(task, data_dir, functools.partial(_tell, pipe, [0.0]))
    except Refused as refused:
        pipe.send((refused.what, refused.remedy))
    except Diverged as diverged:
        write_json(_diverged(task), {"version": 1, "why": str(diverged)})
    except (KeyboardInterrupt, BrokenPipeError):  # the last: nobody is there any more to be told
        raise SystemExit(130) from None


def _run(task: Task, data_dir: Path | None, tell: Callable[[int, dict[str, Any] | None], None]) -> None:
    problem = problems.load_problem(task.config, data_dir)
    training.run(task.config, problem, task.folder, resume=True, watch=tell)
    # Steps that crashes undid may leave no budget for the last ones. A simulation has released nothing: it begins anew.
    if read_json(Folder(task.folder).summary, Summary)["ended"] is not None:
        shutil.rmtree(task.folder)
        training.run(task.config, problem, task.folder, resume=True, watch=tell)
    for name in ("private", "nodes"):  # gigabytes, for large models, that nobody will ask for
        shutil.rmtree(task.folder / name)


def _tell(pipe: Connection, last: list[float], step: int, _row: dict[str, Any] | None) -> None:
    if time.monotonic() - last[0] > _PAUSE:
        last[0] = time.monotonic()
        pipe.send(step)


def _diverged(task: Task) -> Path:
    return task.folder / "diverged.json"


def _done(task: Task) -> bool:
    """Tell whether nothing is left to do; refuse a folder that holds another configuration's run."""
    folder = Folder(task.folder)
    if folder.config.exists() and (changed := configs.changes(folder.config, task.config)):
        raise Refused(
            f"{task.folder} holds a run of another configuration: {'; '.join(changed)}",
            "choose another folder with {out}",
            out=None,
        )
    return folder.summary.exists() or _diverged(task).exists()


def _read(task: Task) -> Run:
    folder = Folder(task.folder)
    if not folder.summary.exists():
        return Run(task.config, None, [])
    return Run(task.config, read_json(folder.summary, Summary), read_metrics(folder.metrics))
