"""Checkpoints: everything a run needs to go on where it was, in one safetensors file that is for the site alone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from privsgp.algorithms import State
from privsgp.engine import told
from privsgp.engine.folder import write_tensors
from privsgp.errors import Refused

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from privsgp.engine.folder import Folder
    from privsgp.engine.rendezvous import World

VERSION = 1


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    step: int  # steps completed
    attempt: int  # how often some step had to be computed again with fresh noise
    seconds: float
    bytes_sent: int
    shared: str  # hash of the shared part of the configuration


def save(path: Path, progress: Progress, s: State, memory: dict[str, Tensor]) -> None:
    """Write a checkpoint whole or not at all."""
    tensors = {"x": s.x, "w": s.w} | {f"memory.{name}": value for name, value in memory.items()}
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    metadata = {"format": "privsgp-checkpoint", "version": str(VERSION), "progress": json.dumps(asdict(progress))}
    write_tensors(path, tensors, metadata)


def read_progress(path: Path) -> Progress:
    """Read how far a checkpoint has come, without its tensors."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise Refused(
            f"the checkpoint {path} cannot be read: {error}", "start the run again in a new folder"
        ) from error
    if metadata.get("format") != "privsgp-checkpoint" or metadata.get("version") != str(VERSION):
        raise Refused(
            f"{path} has format {metadata.get('format')!r} version {metadata.get('version')!r}",
            f"this release reads privsgp-checkpoint version {VERSION}; resume with the release that wrote it",
        )
    return Progress(**json.loads(metadata["progress"]))


def last_common(folder: Folder, world: World, shared: str) -> tuple[Path, Progress] | None:
    """Find the last checkpoint that every process has: one may have died before it wrote what others have."""
    mine: dict[int, tuple[Path, Progress]] = {}
    for path in (folder.checkpoint_before, folder.checkpoint):
        if path.exists():
            progress = read_progress(path)
            mine[progress.step] = path, progress
            if progress.shared != shared:
                raise Refused(f"{path} belongs to another configuration", "resume with the configuration that wrote it")
    everybody = world.exchange(list(mine), told.each(told.whole(), 0, 1, 2))
    common = set(everybody[0]).intersection(*everybody[1:])
    return mine[max(common)] if common else None


def load_into(path: Path, s: State, memory: dict[str, Tensor]) -> State:
    """Return the checkpoint's state and copy the algorithm's memory into the tensors that wait for it."""
    with safe_open(path, framework="pt") as file:
        for name, value in memory.items():
            kept = file.get_tensor(f"memory.{name}")
            if kept.dtype != value.dtype:
                raise Refused(
                    f"{path} has {name} as {kept.dtype}, and this version keeps it as {value.dtype}",
                    "go on with the version that wrote it, or begin a new run",
                )
            value.copy_(kept)
        x = file.get_tensor("x").to(s.x.device)
        w = file.get_tensor("w").to(s.w.device)
    return State.debiased(x, w)
