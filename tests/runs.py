"""Small runs for tests: the command line in this process or in one that dies, and what lies in a run folder after."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import torch

from privsgp import cli
from privsgp.accounting import ledger

if TYPE_CHECKING:
    from pathlib import Path

torch.set_num_threads(1)  # these models are too small for more

SMALL = """
name = "small"
seed = 7
[data]
nodes = 4
sizes = [300, 300, 300, 300]
[model]
name = "logistic"
[privacy]
sigma = 0.05
[algorithm]
name = "privsgp"
steps = 30
step_size = 0.5
[engine]
device = "cpu"
evaluate_every = 6
checkpoint_every = 7
"""

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["privsgp.runs.train", "sklearn.datasets"])  # torch is imported once


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def command(*arguments: object) -> Ran:
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    argv = mock.patch.object(sys, "argv", ["privsgp", *map(str, arguments)])
    with argv, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as end:
            return Ran(int(end.code or 0), out.getvalue(), err.getvalue())
    raise AssertionError("a command line ends with a status")


def unwrapped(table: str) -> str:
    """Return the text of a table's cells, however narrow it was printed."""
    return " ".join(table.replace("│", " ").split())


def changes(**values: Any) -> list[str]:
    """Return --set options: `algorithm__steps=3` for algorithm.steps = 3."""
    return [f"--set={key.replace('__', '.')}={json.dumps(value)}" for key, value in values.items()]


def small(folder: Path, text: str = SMALL) -> Path:
    """Write the small configuration and return its path."""
    path = folder / "run.toml"
    path.write_text(text)
    return path


def train(config: Path, out: Path, *options: str) -> dict[str, Any]:
    """Train in this process and return the summary."""
    ran = command("train", config, "--out", out, "--json", *options)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def again(out: Path) -> list[str]:
    """Return what a command needs to go on with what is in a folder: nothing where no run has begun."""
    return ["--resume"] if (out / "config.toml").exists() else []


def killed(*arguments: object, steps: int | None = None, moments: int | None = None) -> bool:
    """Run a command in a process that SIGKILLs itself after so many steps, or at any moment: writes count too.

    False if the run ended before.
    """
    process = FORKS.Process(
        target=_dying, args=(list(map(str, arguments)), steps, moments, os.environ["PRIVSGP_STATE"])
    )
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def _dying(arguments: list[str], steps: int | None, moments: int | None, state: str) -> None:
    os.environ["PRIVSGP_STATE"] = state  # the fork server began before the test
    left = iter(range(steps if moments is None else moments))

    def dying(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    from privsgp.engine.budget_guard import BudgetGuard

    writes = () if moments is None else ((os, "write"), (os, "fsync"), (os, "replace"))
    for holder, name in ((BudgetGuard, "record"), *writes):
        setattr(holder, name, dying(getattr(holder, name)))
    sys.exit(command(*arguments).code)


def charged(out: Path) -> list[int]:
    """Return what each node's ledger counts."""
    paths = sorted((out / "ledger").iterdir(), key=lambda path: int(path.stem.split("-")[1]))
    return [
        sum(run.charged for run in ledger.read(path)[-1:]) for path in paths
    ]  # none yet: killed before its first line


def sent(out: Path, node: int = 0) -> list[tuple[int, int, str]]:
    """Return (step, attempt, digest) of each message that a node's ledger notes."""
    found: list[tuple[int, int, str]] = []
    for text in (out / "ledger" / f"node-{node}.jsonl").read_text().splitlines():
        line = json.loads(text)
        if isinstance(line, str):  # the one after the last
            step, attempt, _ = found[-1] if found else (-1, 0, "")
            found.append((step + 1, attempt, line[:-6]))
        elif line["kind"] == "sent" and "count" in line:
            steps = range(line["first"], line["first"] + line["count"])
            found += [(step, line["attempt"], "") for step in steps]
        elif line["kind"] == "sent":
            found.append((line["step"], line["attempt"], line["digest"]))
    return found


def evaluated(out: Path) -> list[int]:
    """Return the steps in metrics.jsonl, header left out."""
    return [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()[1:]]


def contents(out: Path) -> dict[str, tuple[int, bytes]]:
    """Return modification time and bytes of every file below a folder."""
    files = (path for path in sorted(out.rglob("*")) if path.is_file())
    return {str(path.relative_to(out)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
