"""Whether samples are the records of a site, in any file, form and order: an exact comparison of one hash per sample.

Two files overlap if they hold the same sample. If columns take few values, different people have equal records.
So the comparison leaves out samples that come several times on one side: such a sample identifies nobody. The rule does
not find samples of which somebody changed a bit. Hashes stay in private/.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from privsgp.data.dataset import Array, Dataset

    Hashes = NDArray[np.uint64]

_AT_ONCE = 2**24  # bytes that are hashed together
_FEWEST = 4  # samples in common that count, where a file holds any sample twice
_MANY = 8  # different samples: two files that agree in all of them are the same


def hashes(x: Array, *, tokens: bool) -> Hashes:
    """Hash samples: images as bytes, of whatever type, and as numbers from 0 to 1 are the same; tokens stay."""
    found, step = np.empty(len(x), np.uint64), max(1, _AT_ONCE // (4 * max(1, math.prod(x.shape[1:]))))
    for at in range(0, len(x), step):
        some = x[at : at + step].astype(np.float32) + np.float32(0)  # −0 is 0
        rows = np.ascontiguousarray(some).reshape(len(some), -1)
        if not tokens:
            rows[_as_bytes(rows)] /= np.float32(255)
        found[at : at + step] = [int.from_bytes(hashlib.sha256(row.data).digest()[:8], "little") for row in rows]
    return found


def _as_bytes(rows: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Tell which rows are bytes: whole numbers up to 255, and not of 0 and 1 alone."""
    whole = (rows >= 0) & (rows <= 255) & (rows == np.floor(rows))
    found: NDArray[np.bool_] = whole.all(axis=1) & (rows > 1).any(axis=1)
    return found


def hashes_of(dataset: Dataset) -> Hashes:
    """Hash the samples of a data set; several inputs lie side by side as real numbers."""
    return hashes(dataset.x, tokens=isinstance(dataset.vocabulary, int))


def is_tested_on_own(dataset: Dataset, parts: Sequence[NDArray[np.int64]] | None = None) -> bool:
    """Tell whether a data set's test samples are those it learns from; `parts` are the rows of owners, if several."""
    if dataset.x_test is None:
        return False
    own, test = hashes_of(dataset), hashes(dataset.x_test, tokens=isinstance(dataset.vocabulary, int))
    return belong_to(test, [own] if parts is None else [own[rows] for rows in parts])


def belong_to(samples: Hashes, owners: Sequence[Hashes]) -> bool:
    """Tell whether half of the samples are an owner's, or half of an owner's are among them; or all owners' together.

    Guarantee: what counts on a side are its samples that come once there and at most once on the other side. If half
    of those of either side are on both sides, this is True. So it is if both sides hold exactly the same samples.
    """
    if not len(samples) or not owners:
        return False
    mine = _Counted(samples)
    return any(mine.overlaps(_Counted(one)) for one in (*owners, np.concatenate(owners)))


class _Counted:
    """Different samples, and which of them come once; in a file that was copied several times over, once a copy."""

    def __init__(self, samples: Hashes) -> None:
        self.values, self.counts = np.unique(samples, return_counts=True)
        usual = int(np.median(self.counts)) if len(samples) else 1
        copied = 2 * int((self.counts == usual).sum()) >= len(self.counts)
        self.once = self.counts <= (usual if copied else 1)

    def overlaps(self, other: _Counted) -> bool:
        """Tell whether half of one side's samples, of those that identify a record, are on the other side."""
        _, here, there = np.intersect1d(self.values, other.values, assume_unique=True, return_indices=True)
        both = int((self.once[here] & other.once[there]).sum())
        mine = int(self.once.sum()) - int((self.once[here] & ~other.once[there]).sum())
        theirs = int(other.once.sum()) - int((other.once[there] & ~self.once[here]).sum())
        fewest = 1 if self.once.all() and other.once.all() else _FEWEST
        equal = np.array_equal(self.values, other.values) and np.array_equal(self.counts, other.counts)
        return (both >= fewest and 2 * both >= min(mine, theirs)) or (equal and len(self.values) >= _MANY)
