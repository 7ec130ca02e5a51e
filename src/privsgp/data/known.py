"""Whether records are somebody's own: told by a hash of each sample, in whatever file, form and order it stands.

A safety net for those who hold records, not a lock: who changes a bit of every sample gets by. Hashes stay in private/.

Where columns take few values, strangers are alike by chance, and what tells are records that stand alone on both sides.
Of values that come twice in all, chance puts at most half one here and one there, whatever the two sides are drawn
from: a value with rates a and b does so with weight ab, and comes twice on one side with (a² + b²)/2, which is no less.
So those that come twice on one side, and not on the other, are set against those that are alone on both.
"""

from __future__ import annotations

import functools
import hashlib
import math
from typing import TYPE_CHECKING

import numpy as np

from privsgp.data.mapped import AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from privsgp.data.dataset import Array, Dataset
    from privsgp.data.mapped import Mapped

    Hashes = NDArray[np.uint64]

_COPIES = 8  # of every record that somebody may have made, and they still count as one
_MANY = 8  # values: with fewer, all of somebody's come as often elsewhere by chance
_SURE = 4.0  # standard deviations beyond chance; and where any value comes again, so many records at least


def hashes(x: Array | Mapped, *, tokens: bool) -> Hashes:
    """Hash samples: images as bytes, of whatever type, and as numbers from 0 to 1 are the same; tokens stay."""
    found, step = np.empty(len(x), np.uint64), max(1, AT_ONCE // (4 * max(1, math.prod(x.shape[1:]))))
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
    """Tell whether samples are an owner's: half of them, or half of an owner's among them; or ¾ several owners'.

    Half of those that can tell (`are_in`); and all of an owner's, in any order.
    """
    if not len(samples) or not owners:
        return False
    mine, each = _Counted.of(samples), [_Counted.of(one) for one in owners]
    everybody = each[0] if len(each) == 1 else _Counted.merged(each, np.add)
    # where no two are alike anywhere, one that is says enough
    sure = _SURE + math.log(len(each)) if any(one.sizes[2] for one in (mine, everybody, *each)) else 0.0
    return (
        any(mine.are_in(one, 1 / 2, sure) or one.are_in(mine, 1 / 2, sure) for one in each)
        or mine.are_in(everybody, 3 / 4, sure)
        or any(mine.digest == one.digest for one in [*each, everybody] if len(one.values) >= _MANY)
    )


def moved(now: Mapping[int, Hashes], before: Mapping[int, Sequence[Hashes]]) -> int | None:
    """Return an owner a tenth of whose samples were others' before, and not its own; or all are another's.

    `before` has what each owner had at one time and another. A tenth of those that can tell (`are_in`), and four.
    """
    earlier = {owner: [_Counted.of(one) for one in some] for owner, some in before.items() if some}
    if not earlier:
        return None
    held = {owner: _Counted.merged(some, np.maximum) for owner, some in earlier.items()}
    everybody = _Counted.merged(held.values(), np.add)
    whose: dict[bytes, set[int]] = {}
    for owner, some in earlier.items():
        for one in some:
            whose.setdefault(one.digest, set()).add(owner)
    for owner, samples in now.items():
        mine = _Counted.of(samples)
        if mine.are_in(everybody, 1 / 10, _SURE, held.get(owner)):
            return owner
        if len(mine.values) >= _MANY and owner not in whose.get(mine.digest, {owner}):
            return owner
    return None


class _Counted:
    """Values and how often each comes: alone, twice, or again."""

    def __init__(self, values: Hashes, counts: NDArray[np.int64]) -> None:
        self.values, self.counts = values, counts
        # where most values come equally often, somebody made copies of all
        usual = int(np.median(counts)) if len(counts) else 1
        copies = usual if usual <= _COPIES and 2 * int((counts == usual).sum()) >= len(counts) else 1
        self.alone, self.again = counts <= copies, counts > copies
        self.twice = self.again & (counts <= 2 * copies)

    @classmethod
    def of(cls, samples: Hashes) -> _Counted:
        """Count samples."""
        return cls(*np.unique(samples, return_counts=True))

    @classmethod
    def merged(cls, some: Iterable[_Counted], how: np.ufunc) -> _Counted:
        """Return the values of several: their counts added up, or the largest."""
        parts = list(some)
        values, place = np.unique(np.concatenate([one.values for one in parts]), return_inverse=True)
        counts = np.zeros(len(values), np.int64)
        how.at(counts, place, np.concatenate([one.counts for one in parts]))
        return cls(values, counts)

    @functools.cached_property
    def digest(self) -> bytes:
        """Tell values and how often they come from others."""
        return hashlib.sha256(self.values.tobytes() + self.counts.tobytes()).digest()

    @functools.cached_property
    def sizes(self) -> tuple[int, int, int]:
        """How many values are there alone, twice, and again."""
        return int(self.alone.sum()), int(self.twice.sum()), int(self.again.sum())

    def are_in(self, other: _Counted, share: float, least: float, but: _Counted | None = None) -> bool:
        """Tell whether so large a share of those that can tell as chance does not explain, and so many, are there.

        Those can that stand here alone, and not again there; `but` has some that may be there.
        """
        (alone, twice, _), (_, twice_there, _) = self.sizes, other.sizes
        here, there = self.shared(other)
        single = self.alone[here]
        can_tell = alone - int((single & other.again[there]).sum())
        both = single & other.alone[there]
        if but is not None:
            kept = np.zeros(len(self.values), bool)
            kept[self.shared(but)[0]] = True
            both &= ~kept[here]
        chance = twice - int(self.twice[here].sum()) + twice_there - int(other.twice[there].sum())
        found = int(both.sum())
        beyond = max(share * (can_tell - chance), least + _SURE * (math.sqrt(chance + 1) - 1))
        return found > 0 and found - chance >= beyond

    def shared(self, other: _Counted) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where the values lie that both have: here, and there."""
        if len(self.values) < len(other.values):
            there, here = other.shared(self)
            return here, there
        if not len(other.values):
            return (np.empty(0, np.int64),) * 2
        at = np.minimum(np.searchsorted(self.values, other.values), len(self.values) - 1)
        there = np.flatnonzero(self.values[at] == other.values)
        return at[there], there
