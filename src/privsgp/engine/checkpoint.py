"""Checkpoints: everything a run needs to go on where it was, in one safetensors file that is for the site alone.

Its metadata hold the SHA-256 of every array, and one more over these, the version, the run's number and the progress:
no part of a file is taken for a part of another one, and one that has changed since it was written is refused.
"""

from __future__ import annotations

import hashlib
import json
import logging
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open

from privsgp.accounting.chain import Mark
from privsgp.algorithms import State
from privsgp.devices import in_threads
from privsgp.engine.folder import write_tensors
from privsgp.errors import Refused
from privsgp.outside import Whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor

    from privsgp.engine.folder import Folder
    from privsgp.transport.world import World

    Memory = Mapping[str, Sequence[Tensor]]  # arrays by name: the rows of each group of nodes

VERSION = 2
_CHUNK = 1 << 23  # bytes that one thread hashes at a time
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    step: int  # steps completed
    attempt: int  # how often some step had to be computed again with fresh noise
    seconds: float
    bytes_sent: int
    shared: str  # hash of the shared part of the configuration
    ledgers: dict[int, tuple[int, str]] = field(default_factory=dict)  # by node: releases charged, head of the ledger


def save(path: Path, progress: Progress, s: State, memory: Memory, run: str = "") -> None:
    """Write a checkpoint whole or not at all, with its check values."""
    rows = ((name, number, value) for name, values in memory.items() for number, value in enumerate(values))
    tensors = {"x": s.x, "w": s.w} | {_entry(name, number): value for name, number, value in rows}
    tensors = {name: value.contiguous().cpu() for name, value in tensors.items()}
    metadata = {
        "format": "privsgp-checkpoint",
        "version": str(VERSION),
        "run": run,
        "progress": json.dumps(asdict(progress)),
        "arrays": json.dumps({name: _digest(value) for name, value in tensors.items()}),
    }
    write_tensors(path, tensors, metadata | {"check": _check(metadata)})


def _entry(name: str, number: int) -> str:
    """Return what a file calls the rows of an array that the `number`-th group of nodes has."""
    return f"memory.{name}@{number}" if number else f"memory.{name}"


def _digest(value: Tensor) -> str:
    """Return the SHA-256 of an array's type and shape and of the digests of its chunks, which two threads take."""
    chunks = torch.split(value.reshape(-1).view(torch.uint8), _CHUNK)
    parts = in_threads(lambda chunk: hashlib.sha256(chunk.numpy().data).digest(), chunks)
    return hashlib.sha256(f"{value.dtype} {tuple(value.shape)} ".encode() + b"".join(parts)).hexdigest()


def _check(metadata: dict[str, str]) -> str:
    fields = {key: value for key, value in metadata.items() if key != "check"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def read_progress(path: Path) -> Progress:
    """Read how far a checkpoint has come, without its tensors."""
    with _opened(path) as (_, metadata):
        return Progress(**json.loads(metadata["progress"]))


def known_ledgers(folder: Folder) -> dict[int, list[Mark]]:
    """Return what the checkpoints of a run know of each node's ledger."""
    known: dict[int, list[Mark]] = {}
    for path in (folder.checkpoint_before, folder.checkpoint):
        for node, (charged, head) in read_progress(path).ledgers.items() if path.exists() else ():
            known.setdefault(int(node), []).append(Mark(charged, head, "the checkpoint"))
    return known


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, str]]]:
    """Open a checkpoint whose metadata are what was written; whatever damage leads to is refused by the file's name."""
    if not path.is_file():  # a pipe would be waited for
        raise _damaged(path, "it is no regular file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != "privsgp-checkpoint" or metadata.get("version") != str(VERSION):
                what = f"{path} has format {metadata.get('format')!r} version {metadata.get('version')!r}"
                raise Refused(what, f"resume with the release that wrote it: this one reads version {VERSION}")
            if metadata.get("check") != _check(metadata):
                raise _damaged(path, "its check value does not fit what it says of itself")
            yield file, metadata
    except (SafetensorError, OSError, TypeError, KeyError) as error:
        raise _damaged(path, f"it cannot be read: {error}") from error


def _damaged(path: Path, how: str) -> Refused:
    remedy = "put a copy of it back, or begin again with another {out}: the budget book adds both runs up"
    return Refused(f"the checkpoint {path} is damaged: {how}", remedy, out=None)


def verified(path: Path, run: str = "") -> Progress:
    """Return how far a checkpoint of this run has come, if all its arrays are what was written; refuse it else."""
    with _opened(path) as (file, metadata):
        digests = json.loads(metadata["arrays"])
        if set(digests) != set(file.keys()):
            raise _damaged(path, f"it has the arrays {sorted(set(digests) ^ set(file.keys()))} too many or too few")
        for name, digest in digests.items():
            if _digest(file.get_tensor(name)) != digest:
                raise _damaged(path, f"the check value of {name} does not fit")
        if metadata["run"] != run:
            raise Refused(f"{path} belongs to another run", "put this run's own checkpoint back")
        return Progress(**json.loads(metadata["progress"]))


def last_common(folder: Folder, world: World, shared: str) -> tuple[Path, Progress] | None:
    """Find the last checkpoint that every process has: one may have died before it wrote what others have."""
    mine = world.all_or_none(lambda: _whole(folder, shared))
    everybody = world.all_gather(list(mine), Annotated[list[Whole], Field(max_length=2)])
    common = set(everybody[0]).intersection(*everybody[1:])
    if not common and all(everybody):
        what = f"the processes' checkpoints are of the steps {everybody}: no step is in all of them"
        raise Refused(what, "put copies of one step back in all folders, or begin again with another {out}", out=None)
    return mine[max(common)] if common else None


def _whole(folder: Folder, shared: str) -> dict[int, tuple[Path, Progress]]:
    """Return this process's checkpoints by their steps, without a damaged one where the other is whole.

    The run then goes back further than it would have: steps made again have fresh noise and are paid for.
    """
    found: dict[int, tuple[Path, Progress]] = {}
    refused: list[Refused] = []
    for path in (folder.checkpoint_before, folder.checkpoint):
        if path.exists():
            try:
                progress = verified(path, folder.run or "")
            except Refused as error:
                refused.append(error)
                continue
            if progress.shared != shared:
                raise Refused(f"{path} belongs to another configuration", "resume with the configuration that wrote it")
            found[progress.step] = path, progress
    if refused and not found:
        raise refused[-1]
    for passed_over in refused:
        _LOG.warning("%s: the run goes on from another one", passed_over.what)
    return found


def load_into(path: Path, s: State, memory: Memory) -> State:
    """Return the checkpoint's state and copy the algorithm's memory into the tensors that wait for it.

    Assumes: the file was `verified`.
    """
    load_arrays(path, memory)
    with _opened(path) as (file, _):
        x, w = file.get_tensor("x"), file.get_tensor("w")
    return State.debiased(x.to(s.x.device), w.to(s.w.device))


def load_arrays(path: Path, memory: Memory) -> None:
    """Copy what a checkpoint holds besides x and w into the tensors that wait for it.

    A file may hold the rows of other groups of nodes than there are now: it depends on how many cores wrote it.

    Assumes: the file was `verified`.
    """
    with _opened(path) as (file, _):
        there = file.keys()
        for name, values in memory.items():
            more = [_entry(name, number) for number in range(1, len(there)) if _entry(name, number) in there]
            rows = [file.get_tensor(entry) for entry in (_entry(name, 0), *more)]
            kept = torch.cat(rows) if more else rows[0]
            like, many = values[0], len(values) > 1
            shape = (sum(map(len, values)), *like.shape[1:]) if many else like.shape
            if kept.dtype != like.dtype or kept.shape != shape:
                what = f"{path} has {name} as {kept.dtype} {tuple(kept.shape)}, and not as {like.dtype} {tuple(shape)}"
                raise Refused(what, "continue with the version that wrote it, or begin a new run")
            for value, own in zip(values, torch.split(kept, [*map(len, values)]) if many else [kept], strict=True):
                value.copy_(own)
