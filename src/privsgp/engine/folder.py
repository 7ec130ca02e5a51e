"""A run's folder: what is kept, where, and how nothing is ever half-written.

    run.json   config.toml   plan.json   metrics.jsonl   summary.json   ledger/node-<i>.jsonl
    model.safetensors   nodes/<i>.safetensors   report.html
    private/      mode 0700, files 0600: checkpoint.safetensors, which holds tables and anything else that depends on
                  the data, and metrics.jsonl, where metrics on test data are not to be shared (`data.test`)

Files are written in a folder beside their place and renamed into it. A folder in use is locked; the lock dies with its
process.
Several processes of one run may share a folder: each has a part of its own, the checkpoint and lock of its nodes.
Processes on other machines have other folders, with config, ledgers, nodes and checkpoints of what they own.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field
from safetensors import SafetensorError

from privsgp.engine.formats import Evaluation, Kept
from privsgp.errors import Refused
from privsgp.files import UNFINISHED, parsed, read_bytes, read_json, replace, write, write_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


class _Identity(Kept):
    """run.json."""

    version: Literal[1] = 1
    run: str
    started: str = ""
    ledgers: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    command: list[str] = Field(default_factory=list)
    circumstances: dict[str, Any] | None = None


class Folder:
    """One run's folder, locked for as long as it is open."""

    def __init__(self, path: Path, suffix: str = "") -> None:
        self.path = path
        self.suffix = suffix  # one process's share of the folder, named after its nodes; "" for a process that is alone
        self.config = path / "config.toml"  # the configuration as it was resolved
        self.plan = path / "plan.json"  # what the planner chose, where something was "auto"
        self.summary = path / "summary.json"  # what came out; its presence marks a finished run
        self.metrics = path / "metrics.jsonl"  # one line per evaluation
        self.model = path / "model.safetensors"  # the average model
        self.lock = path / ".lock"  # what is locked while the folder is in use
        self.checkpoint = path / "private" / f"checkpoint{suffix}.safetensors"  # the last; never to leave the site
        # the one before: others may not have come further when a process dies
        self.checkpoint_before = path / "private" / f"checkpoint{suffix}-before.safetensors"

    def node(self, i: int) -> Path:
        """Node i's own model z_i."""
        return self.path / "nodes" / f"{i}.safetensors"

    @property
    def ledgers(self) -> Path | None:
        """The ledgers of an older run whose budget a run of 1.0.0rc1 continues to spend; None for its own."""
        where = self.identity.get("ledgers")
        return None if where is None else Path(where)

    def ledger(self, i: int) -> Path:
        """Node i's ledger."""
        return (self.ledgers or self.path / "ledger") / f"node-{i}.jsonl"

    def refuse_unless_writable(self) -> None:
        """Refuse early a place where no folder can be made."""
        there = self.path
        while not there.exists() and there != there.parent:
            there = there.parent
        if not there.is_dir() or not os.access(there, os.W_OK):
            why = "is not a folder" if not there.is_dir() else "is not writable"
            what = f"cannot make the run folder {self.path}: {there} {why}"
            raise Refused(what, "choose another one with {out}", out=None)

    @contextlib.contextmanager
    def locked(self) -> Iterator[Folder]:
        """Create the folder where needed and hold its lock; a process with a part of its own shares the folder's."""
        with contextlib.ExitStack() as locks:
            if self.suffix:
                locks.enter_context(self._locked(self.lock, fcntl.LOCK_SH))
            locks.enter_context(self._locked(self.path / f".lock{self.suffix}", fcntl.LOCK_EX))
            yield self

    @contextlib.contextmanager
    def _locked(self, path: Path, kind: int) -> Iterator[None]:
        if path.exists() and not path.is_file():  # a pipe would be waited for
            raise Refused(f"{path} is no regular file", "remove it, or choose another {out}", out=None)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = path.open("a")
        except OSError as error:
            what = f"cannot write to the run folder {self.path}: {error.strerror}"
            raise Refused(what, "choose another one with {out}", out=None) from error
        with lock:
            try:
                fcntl.flock(lock, kind | fcntl.LOCK_NB)
            except OSError as error:
                what = f"the run folder {self.path} is in use by another process"
                remedy = "wait until that process ends, or stop it; a new run needs another {out}"
                raise Refused(what, remedy, out=None) from error
            yield

    def prepare(self) -> None:
        """Make the sub-folders, `private/` for its owner alone, and clear away what a killed process half wrote."""
        for name in ("nodes", "ledger", "private"):
            (self.path / name).mkdir(exist_ok=True)
        (self.path / "private").chmod(0o700)
        for folder in (self.path, self.path / "nodes", self.path / "private"):
            for stray in folder.glob(f".*{UNFINISHED}/"):  # what is not a folder is somebody else's
                shutil.rmtree(stray, ignore_errors=True)

    @property
    def run(self) -> str | None:
        """The run's own number; a resumed run keeps it."""
        return self.identity.get("run")

    @property
    def identity(self) -> dict[str, Any]:
        """The content of run.json; empty before the run has begun."""
        path = self.path / "run.json"
        return read_json(path, _Identity) if path.exists() else {}

    def identify(
        self,
        versions: dict[str, str],
        run: str | None = None,
        circumstances: dict[str, Any] | None = None,
    ) -> None:
        """Give the run a number, once, and note what it was made with, how and where, and what it pays from."""
        if not (self.path / "run.json").exists():
            started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            identity = {"format": "privsgp-run", "version": 1, "run": run or uuid.uuid4().hex, "started": started}
            rest = {"versions": versions, "command": sys.argv, "circumstances": circumstances}
            write_json(self.path / "run.json", identity | rest)

    def append_metrics(self, row: dict[str, Any]) -> None:
        """Add one evaluation."""
        _append(self.metrics, row)

    def keep_metrics(self, row: dict[str, Any]) -> None:
        """Add one evaluation on test data that nobody else may see; a step taken again has several."""
        path = self.path / "private" / f"metrics{self.suffix}.jsonl"
        path.touch(0o600)
        _append(path, row)

    def start_metrics(self, *, simulation: bool, up_to: int) -> list[dict[str, Any]]:
        """Begin the metrics, or keep those of an earlier attempt up to a step; return the rows kept."""
        rows = [row for row in read_metrics(self.metrics) if row["step"] <= up_to]
        self.write_metrics(rows, simulation=simulation)
        return rows

    def write_metrics(self, rows: list[dict[str, Any]], *, simulation: bool) -> None:
        """Write all evaluations anew; the header warns of a simulation."""
        header = {"format": "privsgp-metrics", "version": 1, "simulation": simulation}
        write(self.metrics, "".join(json.dumps(line) + "\n" for line in [header, *rows]))


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the evaluations in a metrics file; a last line without an end (a crash) is passed over."""
    lines = read_bytes(path).split(b"\n")[:-1] if path.exists() else []
    rows = [parsed(line, Evaluation, f"{path}, line {number}") for number, line in enumerate(lines, 1)]
    return [row for row in rows if row.get("step") is not None]


def refuse_used(out: Path, *, resume: bool, secret: bool = False, restarted: bool = False) -> None:
    """Refuse a folder that holds a run already, and to resume a secret run where there is none.

    To be asked before anything is computed. A process that torchrun restarts continues by itself. Without a folder it
    begins: nothing was spent before.
    """
    there = Folder(out).config.exists()
    if there and not resume and not restarted:
        remedy = "add {resume} to continue it, or choose another {out}"
        raise Refused(f"{out} already holds a run", remedy, resume=True, out=None)
    if secret and resume and not there:
        what = "{resume} with {out}: there is no run to resume, and a new one would spend its budget again"
        remedy = "name the run's folder in {out}; to begin a run, start it without {resume}"
        raise Refused(what, remedy, resume=True, out=out)


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write safetensors whole or not at all."""
    from safetensors.torch import save_file  # imports torch

    def save(temporary: Path) -> None:
        try:
            save_file(tensors, temporary, metadata)
        except SafetensorError as error:  # what safetensors makes of a full disk
            if number := re.search(r"os error (\d+)", str(error)):
                raise OSError(code := int(number[1]), os.strerror(code), str(path)) from error
            raise OSError(f"{path}: {error}") from error

    replace(path, save)
