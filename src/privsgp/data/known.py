"""Whether records are somebody's own: told by a hash of each sample, in whatever file, form and order it stands.

A safety net for those who hold records, not a lock: who changes a bit of every sample gets by. Hashes stay in private/.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from privsgp.data.mapped import scaled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from privsgp.data.dataset import Array, Dataset
    from privsgp.data.mapped import Mapped

    Hashes = NDArray[np.uint64]

_ROWS = 4096  # that are read at a time
_SEVERAL = 8  # times that a record may stand in a file and tell whose it is


def hashes(x: Array | Mapped, *, tokens: bool) -> Hashes:
    """Hash samples as they are learnt from: images as bytes and as numbers from 0 to 1 are the same, tokens stay."""
    found = np.empty(len(x), np.uint64)
    for at in range(0, len(x), _ROWS):
        some = scaled(x[at : at + _ROWS], tokens=tokens).astype(np.float32) + np.float32(0)  # −0 is 0
        rows = np.ascontiguousarray(some).reshape(len(some), -1)
        found[at : at + _ROWS] = [int.from_bytes(hashlib.sha256(row.data).digest()[:8], "little") for row in rows]
    return found


def hashes_of(dataset: Dataset) -> Hashes:
    """Hash the samples of a data set."""
    return hashes(dataset.x, tokens=dataset.vocabulary is not None)


def is_tested_on_own(dataset: Dataset, parts: Sequence[NDArray[np.int64]] | None = None) -> bool:
    """Tell whether a data set's test samples are those it learns from; `parts` are the rows of owners, if several."""
    if dataset.x_test is None:
        return False
    own, test = hashes_of(dataset), hashes(dataset.x_test, tokens=dataset.vocabulary is not None)
    return belong_to(test, [own] if parts is None else [own[rows] for rows in parts])


def belong_to(samples: Hashes, owners: Sequence[Hashes]) -> bool:
    """Tell whether samples are an owner's: half of them, or half of an owner's among them; or ¾ several owners'.

    Where columns take few values, records are alike by chance: only values that are rarest on both sides count, once in
    the ordinary case. Of J uniform draws from so many values that others hit once, no more than 1/e are expected.
    """
    if not len(samples) or not owners:
        return False
    together = np.concatenate(owners)
    mine, everybody = _Rare(samples), [_Rare(one) for one in owners]
    if any(2 * mine.common(one) >= min(mine.distinct, one.distinct) > 0 for one in everybody):
        return True
    if any(len(samples) == len(one) and np.array_equal(np.sort(samples), np.sort(one)) for one in [*owners, together]):
        return True
    return 4 * mine.common(_Rare(together)) >= 3 * mine.distinct


def moved_from(samples: Hashes, other: Hashes, before: Hashes) -> bool:
    """Tell whether a tenth of an owner's samples were another's, and none of its own before."""
    mine, theirs = _Rare(samples), _Rare(other)
    strangers = np.setdiff1d(np.intersect1d(mine.values, theirs.values, assume_unique=True), before)
    return 10 * len(strangers) >= mine.distinct > 0


class _Rare:
    """The values that come least often, none where even these come often, and how many there are of all."""

    def __init__(self, samples: Hashes) -> None:
        values, counts = np.unique(samples, return_counts=True)
        self.distinct = len(values)
        least = min(counts, default=0)
        self.values = values[counts == (least if least <= _SEVERAL else 0)]

    def common(self, other: _Rare) -> int:
        """Count those that are both's."""
        return len(np.intersect1d(self.values, other.values, assume_unique=True))
