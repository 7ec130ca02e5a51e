"""Our side: the engine's own steps, in a run folder of its own, with the ledger on."""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from privsgp.accounting.book import Book, Entry
from privsgp.engine.budget_guard import BudgetGuard
from privsgp.engine.drive import drive
from privsgp.engine.folder import Folder
from privsgp.engine.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workloads import Workload


class OneGroup(Trainer):
    """Takes all nodes at once."""

    def _split(self, gradient: object) -> list[slice]:
        del gradient
        return [slice(0, len(self.spec.here))]


@contextmanager
def engine(
    work: Workload, algorithm: str = "privsgp-vr", *, seed: int | None = 0, kind: type[Trainer] = Trainer
) -> Iterator[Trainer]:
    """A run that is ready for its first step, with secret noise where there is no seed; its folder is thrown away."""
    with tempfile.TemporaryDirectory() as place:
        folder = Folder(Path(place))
        folder.prepare()
        folder.identify({}, None)
        training = kind(work.spec(algorithm, seed=seed), folder)
        if seed is None:
            _enter(training, place)
        training._begin()
        with training.budget_guard:
            yield training
        training.close()


def _enter(training: Trainer, place: str) -> None:
    """Enter the nodes in a budget book of this benchmark's own, as `train` does."""
    os.environ["PRIVSGP_STATE"], run = place, training.folder.run or ""
    entries = [
        Entry(
            run=run, node=node, ledger=run, command="train", name="benchmark", data="random", folder=place,
            simulation=False, relation="zero-out", trust="per-node", epsilon=None, delta=1e-5,
        )
        for node in training.spec.here
    ]  # fmt: skip
    Book().enter(entries, [None] * len(entries))
    training.budget_guard = BudgetGuard(training.spec, training.folder, training.world)


def stepper(training: Trainer) -> Callable[[], None]:
    """Return a function that takes the next step, and pays for it."""
    k = 0

    def step() -> None:
        nonlocal k
        if not training.budget_guard.reserve(k):
            raise RuntimeError(f"step {k} was not granted")
        training.state = drive(training.step(k, training.state), k, training.driver)
        k += 1

    return step


def parts(training: Trainer, steps: int = 30) -> dict[str, float]:
    """Return the milliseconds of each line of the loop; the device is waited for after each, so the sum is larger."""
    spent: dict[str, list[float]] = {}
    algorithm, randomness = training.algorithm, training.randomness
    _watch(randomness, "sample", spent, "5 sample")
    _watch(algorithm, "recorded", spent, "6-7 direction")
    _watch(randomness, "noise", spent, "8 noise")
    _watch(training.budget_guard, "record", spent, "ledger and hashes")
    _watch(training.transport, "mix", spent, "10-13 mix")
    training.step = algorithm.step
    lines = SimpleNamespace(step=stepper(training))
    _watch(lines, "step", spent, "whole step")
    for _ in range(steps):
        lines.step()
    return {name: 1e3 * sorted(times)[len(times) // 2] for name, times in spent.items()}


def _watch(owner: Any, name: str, spent: dict[str, list[float]], label: str) -> None:  # noqa: ANN401
    inner = getattr(owner, name)

    class Watched:
        def __call__(self, *args: Any) -> Any:  # noqa: ANN401
            started = time.perf_counter()
            out = inner(*args)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            spent.setdefault(label, []).append(time.perf_counter() - started)
            return out

        def __getattr__(self, attribute: str) -> Any:  # noqa: ANN401
            return getattr(inner, attribute)

    setattr(owner, name, Watched())
