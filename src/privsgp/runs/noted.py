"""Which records a private run learns from: their hashes are noted in private/, so that a later look, or run, can tell.

Every process notes its own nodes' records, as they were before features were put in their place.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from privsgp.data.known import moved
from privsgp.errors import Refused
from privsgp.files import opened, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from privsgp.data.known import Hashes
    from privsgp.engine.folder import Folder

ANEW = "begin a new run with --ledger"
_END = ".safetensors"


@dataclass(frozen=True)
class Records:
    """The records of nodes that follow each other: of each a SHA-256 of all, targets too, and hashes of its samples.

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

    @classmethod
    def read(cls, path: Path) -> Records:
        """Read a note; refuse one that is damaged."""
        try:
            opened(path).close()
            with safe_open(path, "np") as file:
                told, samples, lengths = file.metadata() or {}, file.get_tensor("samples"), file.get_tensor("lengths")
        except (OSError, SafetensorError, TypeError, AttributeError) as error:  # the last two: types numpy has not
            raise _damaged(path, str(error)) from error
        digests, first = told.get("records", "").split(), told.get("first", "")
        if (
            not re.fullmatch("[0-9]{1,18}", first)
            or (samples.dtype, samples.ndim) != (np.uint64, 1)
            or (lengths.dtype, lengths.ndim) != (np.int64, 1)
            or not len(digests) == len(lengths)
            or not all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
            or lengths.min(initial=0) < 0
            or lengths.sum() != len(samples)
        ):
            raise _damaged(path, "its parts do not fit")
        return cls(int(first), digests, np.split(samples, np.cumsum(lengths)[:-1]) if len(lengths) else [])

    def write(self, path: Path) -> None:
        """Write a note."""
        lengths = np.array([len(one) for one in self.samples], np.int64)
        told = {"samples": np.concatenate(self.samples), "lengths": lengths}
        metadata = {"first": str(self.first), "records": " ".join(self.digests)}

        def save(temporary: Path) -> None:
            try:
                save_file(told, temporary, metadata)
            except SafetensorError as error:  # what safetensors makes of a full disk
                raise OSError(f"{path}: {error}") from error

        replace(path, save)

    @property
    def nodes(self) -> range:
        """Whose they are."""
        return range(self.first, self.first + len(self.digests))


def note(folder: Folder, records: Records, earlier: Path | None = None) -> None:
    """Keep what a run begins with in its private/; and beside the ledgers of an earlier run that it goes on with."""
    records.write(folder.path / "private" / f"records{folder.part}{_END}")
    if earlier is not None and (earlier / "private").is_dir():
        records.write(earlier / "private" / f"later{folder.part}-{folder.run}{_END}")


def noted(run: Path, later: Collection[str] = ()) -> list[Records]:
    """Return what the processes of a run have noted of its records, and of those of `later` runs on its ledgers."""
    kinds = ["records*", *(f"later*-{number}" for number in sorted(later))]
    return [Records.read(path) for kind in kinds for path in sorted((run / "private").glob(kind + _END))]


def refuse_other_records(folder: Folder, records: Records, or_else: str = ANEW) -> None:
    """Refuse to go on with other records than a run began with, or with a run that has lost its note of them.

    Tables hold what records gave: taken out by other ones, a record's share would not stay within its clip.
    """
    begun = {node: digest for one in noted(folder.path) for node, digest in zip(one.nodes, one.digests, strict=True)}
    for node, digest in zip(records.nodes, records.digests, strict=True):
        if node not in begun:
            raise Refused(
                f"{folder.path} does not say what records node {node} began with: private/records…{_END} is gone, or "
                "an earlier release began it",
                f"put it back from a copy of the folder, or {or_else}",
            )
        if begun[node] != digest:
            raise Refused(
                f"{folder.path} goes on with other records of node {node} than it began with, or in another order",
                f"put the records back as they were, at the same node, or {or_else}",
            )


def refuse_moved_records(records: Records, earlier: Path, later: Collection[str] = ()) -> None:
    """Refuse records that have changed nodes since the run whose ledgers are continued, or since `later` ones on them.

    What records have spent is in their own node's ledger. A run that has spent nothing is no later one.
    """
    before: dict[int, list[Hashes]] = {}
    for one in noted(earlier, later):
        for node, samples in zip(one.nodes, one.samples, strict=True):
            before.setdefault(node, []).append(samples)
    stranger = moved(dict(zip(records.nodes, records.samples, strict=True)), before)
    if stranger is not None:
        raise Refused(
            f"records of node {stranger} were other nodes' in {earlier}",
            "give the nodes their records as before: what they have spent is in their own node's ledger",
        )


def _damaged(path: Path, how: str) -> Refused:
    return Refused(f"{path}: {how}", "put it back from a copy of the folder")
