"""Whether public data hold the records of a site, in any file, format and order.

There is one rule, for arrays, images, texts and tables. It compares how often each different record comes. A record is
in common if it comes equally often on both sides. privsgp refuses public data if the records in common are at least
half of the different records of either side. It compares with each site, and with all sites together.

If columns take few values, different people have equal records. But a record comes exactly c times among other people
with a probability of at most 1/e (Poisson), whatever c is and however frequent the record is. So large tables of
different people do not reach one half. Small ones can by chance, and privsgp then refuses data that are public.
The rule does not find records of which somebody changed a bit.

A schema shows everybody what it was drafted from, so it carries digests of its table, and training refuses a site whose
own table has them. A row's own hash decides which of up to 16 parts it is in, and each part has a digest. So a row that
is new or changed leaves the digests of most parts as they were. A digest confirms no guess about one row to anyone who
does not know all other rows of its part: about 8 or more, or 64 different ones if many repeat.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.data.hashes import cells, hashes, hashes_of, plain, summed, texts

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from privsgp.data.dataset import Array, Dataset
    from privsgp.data.hashes import Hashes


_KINDS = 8  # different records: if there are fewer, and some repeat, they identify nobody
_PARTS, _PART_ROWS = 16, 64  # parts at most, and different rows of a part, on average at least
_FEWEST_ROWS_OF_DIFFERENT, _FEW = 8, 4  # the same if hardly a row repeats; rows that a part has at least to be compared
_MOST_OMITTED = 6  # columns that may name rows and are left out one by one


def in_common(public: Array, owners: Sequence[Array]) -> bool:
    """Tell whether half of the different records of either side are in common; an owner is a site, or all of them.

    Guarantee: True if the public data are all records of an owner, or hold all of them, if no record repeats.
    """
    known = [own for own in owners if len(own)]
    if not len(public) or not known:
        return False
    found = _counted(public)
    sides = ((found, _counted(own), len(own)) for own in (*known, np.concatenate(known)))
    return any(_half(one, other, records) for mine, own, records in sides for one, other in zip(mine, own, strict=True))


def _half(public: set[tuple[Any, float]], own: set[tuple[Any, float]], records: int) -> bool:
    identify = len(own) >= _KINDS or len(own) == records
    return identify and 2 * len(public & own) >= min(len(public), len(own))


def _counted(records: Array) -> list[set[tuple[Any, float]]]:
    """Return each different record and how often it comes.

    A file that was repeated as a whole counts once. So counts are divided by their common divisor, and for a second
    comparison by the most frequent count, if there is one.
    """
    values, counts = np.unique(records, return_counts=True)
    common, usual = np.gcd.reduce(counts), np.sort(counts)[(len(counts) - 1) // 2]
    units = common, usual if 2 * int((counts == usual).sum()) >= len(counts) else common
    return [set(zip(values.tolist(), (counts / unit).tolist(), strict=True)) for unit in units]


def is_tested_on_own(dataset: Dataset, parts: Sequence[NDArray[np.int64]] | None = None) -> bool:
    """Tell whether a data set's test samples are those it learns from; `parts` are the rows of owners, if several."""
    if dataset.x_test is None:
        return False
    own, test = hashes_of(dataset), hashes(dataset.x_test, tokens=dataset.vocabulary is not None)
    return in_common(test, [own] if parts is None else [own[rows] for rows in parts])


def same_rows(public: Any, own: Sequence[Any]) -> bool:  # noqa: ANN401 - Arrow's
    """Tell whether a public Arrow table has the rows of one of these tables, or of all of them together.

    It compares the common columns without running numbers: all of them, and without those that may only name rows.
    """
    if len(own) > 1 and any(same_rows(public, [one]) for one in own):
        return True
    tables, naming = [cells(table) for table in (public, *own)], _naming(public)
    common = [name for name in tables[0] if all(name in table for table in tables)]
    common = [name for name in common if not naming.get(name, False)] or common
    telling = [name for name in common if name not in naming]
    sums = [[summed(table, names) for table in tables] for names in (common, telling) if names]
    return any(in_common(found, others) for found, *others in sums)


def digests(table: Any, ignored: Collection[str]) -> list[str]:  # noqa: ANN401 - Arrow's
    """Return digests of an Arrow table that the order of rows and columns and the file format do not change.

    One text is of all columns but those `ignored`. Others leave out a column that may only name rows, or all of them.
    """
    found, codes, ignored_names = cells(table), _naming(table), {plain(name) for name in ignored}
    used = [name for name in found if name not in ignored_names] or list(found)
    naming = [name for name in used if name in codes]
    sets = [used, [name for name in used if name not in codes]]
    sets += [[name for name in used if name != omitted] for omitted in naming[:_MOST_OMITTED] if len(naming) > 1]
    sums = [summed(found, names) for names in sets if names]
    return [_digest(rows) for i, rows in enumerate(sums) if not i or len(np.unique(rows)) >= _KINDS]


def _digest(rows: Hashes) -> str:
    different = len(np.unique(rows))
    least = _FEWEST_ROWS_OF_DIFFERENT if 10 * different >= 9 * len(rows) else _PART_ROWS
    return "-".join(_parts(rows, max(1, min(_PARTS, different // least))))


def drafted_from(drafted: Sequence[str], table: Any, used: Collection[str]) -> bool:  # noqa: ANN401 - Arrow's
    """Tell whether a digest is of a part of this table, or of all of it where there is one digest.

    Looked at are the columns that are `used`, without any one of them, and with one or all of the others.
    """
    found, wanted = cells(table), {plain(name) for name in used}
    names = [name for name in found if name in wanted] or list(found)
    if not names:
        return False
    base, others = summed(found, names), list(found.keys() - names)
    tried = [base, summed(found, list(found)), *(base + found[name] for name in others)]
    tried += [base - found[name] for name in names]
    known = [one.split("-") for one in drafted]
    return any(
        one and one == other
        for rows in tried
        for count in {len(one) for one in known}
        for own in [_parts(rows, count)]
        for parts in known
        if len(parts) == count
        for one, other in zip(own, parts, strict=True)
    )


def _parts(rows: Hashes, count: int) -> list[str]:
    """Return the digest of each part; if there are several, none of a part with few rows, as another table may."""
    parts = [np.sort(rows[rows % np.uint64(count) == i]) for i in range(count)]
    return [
        hashlib.sha256(some.tobytes()).hexdigest()[:16] if count == 1 or len(some) >= _FEW else "" for some in parts
    ]


def _naming(table: Any) -> dict[str, bool]:  # noqa: ANN401 - Arrow's
    """Return columns that may be codes of rows, and whether these end in running numbers: P1, P2, P3, …

    Running numbers are the same in tables of different people. Of few rows nobody can tell.
    """
    found = {}
    for name in table.column_names:
        values = texts(table.column(name)).to_pylist()
        if len(set(values)) == len(values) and not any("." in value for value in values):
            numbers = [int(ends[-1]) for value in values if (ends := re.findall(r"\d{1,18}$", value))]
            dense = len(numbers) == len(values) >= _KINDS and max(numbers) - min(numbers) < 2 * len(values)
            found[plain(name)] = dense
    return found
