"""Whether records are somebody's own: told by a hash of each sample, in whatever file, form and order it stands.

A safety net for those who hold records, not a lock: who changes a bit of every sample gets by. Hashes stay in private/.

Where columns take few values, strangers are alike by chance. How likely a fresh record is like one of some that are
known is estimated from these (Good and Turing): it is the share of them that do not stand there alone.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

import numpy as np

from privsgp.data.mapped import AT_ONCE, scaled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from privsgp.data.dataset import Array, Dataset
    from privsgp.data.mapped import Mapped

    Hashes = NDArray[np.uint64]

_COPIES = 8  # of every record that somebody may have made, and they still count as one
_MANY = 8  # values: with fewer, all of somebody's come as often elsewhere by chance
_SURE = 4.0  # standard deviations beyond chance


def hashes(x: Array | Mapped, *, tokens: bool) -> Hashes:
    """Hash samples as they are learnt from: images as bytes and as numbers from 0 to 1 are the same, tokens stay."""
    found, step = np.empty(len(x), np.uint64), max(1, AT_ONCE // (4 * max(1, math.prod(x.shape[1:]))))
    for at in range(0, len(x), step):
        some = scaled(x[at : at + step], tokens=tokens).astype(np.float32) + np.float32(0)  # −0 is 0
        rows = np.ascontiguousarray(some).reshape(len(some), -1)
        found[at : at + step] = [int.from_bytes(hashlib.sha256(row.data).digest()[:8], "little") for row in rows]
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

    Where chance alone makes some alike, half of the rest; and all of an owner's, in any order.
    """
    if not len(samples) or not owners:
        return False
    mine, each = _Counted.of(samples), [_Counted.of(one) for one in owners]
    everybody = _Counted.merged(each, np.add)
    return (
        any(mine.are_in(one, 1 / 2) or (len(one.values) and one.are_in(mine, 1 / 2)) for one in each)
        or mine.are_in(everybody, 3 / 4)
        or any(mine.digest == one.digest for one in [*each, everybody] if len(one.values) >= _MANY)
    )


def moved(now: Mapping[int, Hashes], before: Mapping[int, Sequence[Hashes]]) -> int | None:
    """Return an owner a tenth of whose samples were others' before, and not its own; or all are another's.

    `before` has what each owner had at one time and another. Where chance makes some alike, a tenth of the rest.
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
        strange = mine.without(held[owner]) if owner in held else mine
        if len(samples) and strange.are_in(everybody, 1 / 10, of=mine):
            return owner
        if len(mine.values) >= _MANY and owner not in whose.get(mine.digest, {owner}):
            return owner
    return None


class _Counted:
    """Values and how often each comes."""

    def __init__(self, values: Hashes, counts: NDArray[np.int64]) -> None:
        self.values, self.counts = values, counts
        # where most values come equally often, somebody made copies of all
        least = int(counts.min()) if len(counts) else 1
        copied = 1 < least <= _COPIES and 2 * int((counts == least).sum()) >= len(counts)
        self.copies = least if copied else 1
        self.size = int(counts.sum()) / self.copies
        alone = int((counts == self.copies).sum())
        self.chance = max(0.0, 1 - alone / self.size) if self.size else 0.0  # that a fresh one is among them

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

    @property
    def digest(self) -> bytes:
        """Tell values and how often they come from others."""
        return hashlib.sha256(self.values.tobytes() + self.counts.tobytes()).digest()

    def without(self, other: _Counted) -> _Counted:
        """Return what another has not."""
        left = ~self._known_to(other)
        return _Counted(self.values[left], self.counts[left])

    def are_in(self, other: _Counted, share: float, of: _Counted | None = None) -> bool:
        """Tell whether so large a share (of all of these, or of `of`) as chance does not explain are another's."""
        whole, hit = of or self, int(self.counts[self._known_to(other)].sum())
        if not other.size:
            return False
        found, chance = hit / int(whole.counts.sum()), other.chance
        spread = math.sqrt(chance * (1 - chance) * (1 / whole.size + 1 / other.size))
        return found > chance and found - chance >= max(share * (1 - chance), _SURE * spread)

    def _known_to(self, other: _Counted) -> NDArray[np.bool_]:
        if not len(other.values):
            return np.zeros(len(self.values), bool)
        at = np.minimum(np.searchsorted(other.values, self.values), len(other.values) - 1)
        found: NDArray[np.bool_] = other.values[at] == self.values
        return found
