"""Which records a private run learns from: their hashes are noted in private/, so that a later look, or run, can tell.

Every process notes its own nodes' records, as they were before features were put in their place.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel

from privsgp.data.known import moved_from
from privsgp.errors import Refused
from privsgp.files import read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from privsgp.data.known import Hashes
    from privsgp.engine.folder import Folder


class Noted(BaseModel):
    """The records of a process's nodes: a SHA-256 of all of a node's, and hashes of its samples in hexadecimal."""

    first: int
    records: list[str]
    samples: list[str]


@dataclass(frozen=True)
class Records:
    """The records of nodes that follow each other: of each a hash of all, with their targets, and one of each sample.

    Records in another order, or with other targets, are others: tables and coins know them by their places.
    """

    first: int
    digests: Sequence[str]
    samples: Sequence[Hashes]

    @classmethod
    def of(cls, hashes: Hashes, y: NDArray[Any], parts: Sequence[NDArray[np.int64]], first: int = 0) -> Records:
        """Note which rows each node has."""
        digests = [hashlib.sha256(hashes[rows].tobytes() + y[rows].tobytes()).hexdigest() for rows in parts]
        return cls(first, digests, [hashes[rows] for rows in parts])

    def by_node(self) -> dict[int, tuple[str, Hashes]]:
        """Return both hashes of each node."""
        return dict(enumerate(zip(self.digests, self.samples, strict=True), self.first))

    def write(self, path: Path) -> None:
        """Write a note."""
        told = Noted(first=self.first, records=[*self.digests], samples=[one.tobytes().hex() for one in self.samples])
        write_json(path, told.model_dump())


def note(folder: Folder, records: Records, earlier: Path | None = None) -> None:
    """Keep what a run begins with in its private/; and beside the ledgers of an earlier run that it goes on with."""
    records.write(folder.path / "private" / f"records{folder.part}.json")
    if earlier is not None and (earlier / "private").is_dir():
        records.write(earlier / "private" / f"later{folder.part}-{folder.run}.json")


def noted(run: Path, names: Sequence[str] = ("records*.json",)) -> list[Records]:
    """Return what the processes of a run have noted."""
    found = sorted(path for name in names for path in (run / "private").glob(name))
    return [_read(path) for path in found]


def refuse_other_records(folder: Folder, records: Records) -> None:
    """Refuse to go on with other records than a run began with, or with a run that has lost its note of them.

    Tables hold what records gave: taken out by other ones, a record's share would not stay within its clip.
    """
    begun = {node: digest for one in noted(folder.path) for node, (digest, _) in one.by_node().items()}
    for node, (digest, _) in records.by_node().items():
        if node not in begun:
            raise Refused(
                f"{folder.path} does not say what records node {node} began with: private/records….json is gone, or "
                "an earlier release began it",
                "put it back from a copy of the folder, or begin a new run with --ledger",
            )
        if begun[node] != digest:
            raise Refused(
                f"{folder.path} goes on with other records of node {node} than it began with, or in another order",
                "put the records back as they were, at the same node, or begin a new run with --ledger",
            )


def refuse_moved_records(records: Records, earlier: Path) -> None:
    """Refuse records that have changed nodes since the run whose ledgers are continued, or since later ones on them.

    What records have spent is in their own node's ledger.
    """
    before: dict[int, list[Hashes]] = {}
    for one in noted(earlier, ("records*.json", "later*.json")):
        for node, (_, samples) in one.by_node().items():
            before.setdefault(node, []).append(samples)
    for node, (_, samples) in records.by_node().items():
        for other in before.keys() - {node}:
            if moved_from(samples, _all(before[other]), _all(before.get(node, []))):
                raise Refused(
                    f"records of node {node} were node {other}'s in {earlier}",
                    "give the nodes their records as before: what they have spent is in their own node's ledger",
                )


def _read(path: Path) -> Records:
    told = Noted.model_validate(read_json(path, Noted))
    return Records(told.first, told.records, [np.frombuffer(bytes.fromhex(one), np.uint64) for one in told.samples])


def _all(parts: Iterable[Hashes]) -> Hashes:
    return np.concatenate([np.empty(0, np.uint64), *parts])
