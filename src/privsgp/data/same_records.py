"""Whether public data hold the records of a site, in any file, format and order.

There is one rule, for arrays, images, texts and tables. It compares how often each different record comes. A record is
in common if it comes equally often on both sides. privsgp refuses public data if the records in common are at least
half of the different records of either side. It compares with each site, and with all sites together.

If columns take few values, different people have equal records. But a record comes exactly c times among other people
with a probability of at most 1/e (Poisson), whatever c is and however frequent the record is. So large tables of
different people do not reach one half. Small ones can by chance, and privsgp then refuses data that are public.
The rule does not find records of which somebody changed a bit.

A schema shows everybody what it was drafted from, so it carries digests of its table, and training refuses a site whose
own table has them. A large table has a digest for each of up to 16 parts of its rows. A row's own hash decides its
part, so a row that is new or changed leaves the digests of most parts as they were. A part has about 64 different rows
or more. So a digest confirms no guess about one row to anyone who does not know all other rows of its part.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.data.schema import MISSING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from privsgp.data.dataset import Array, Dataset

    Hashes = NDArray[np.uint64]

_AT_ONCE = 2**24  # bytes that are hashed together
_KINDS = 8  # different records: if there are fewer, and some repeat, they identify nobody
_PART, _PARTS = 64, 16  # different rows of a part, on average at least; parts at most
_NUMBER = r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$"


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

    A file that was repeated as a whole counts as one, also beside other records: so counts are divided by what they
    have in common, and for a second comparison by the count of most records, if there is one.
    """
    values, counts = np.unique(records, return_counts=True)
    common, usual = np.gcd.reduce(counts), np.sort(counts)[(len(counts) - 1) // 2]
    units = common, usual if 2 * int((counts == usual).sum()) >= len(counts) else common
    return [set(zip(values.tolist(), (counts / unit).tolist(), strict=True)) for unit in units]


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
    return in_common(test, [own] if parts is None else [own[rows] for rows in parts])


def same_rows(public: Any, own: Sequence[Any]) -> bool:  # noqa: ANN401 - Arrow's
    """Tell whether a public Arrow table has the rows of one of these tables, or of all of them together."""
    common = [name for name in public.column_names if all(name in table.column_names for table in own)]
    names = _identifying(public, common)
    return bool(names) and in_common(_rows(public, names), [_rows(table, names) for table in own])


def digests(table: Any) -> str:  # noqa: ANN401 - Arrow's
    """Return digests of an Arrow table that the order of rows and columns and the file format do not change."""
    different = len(set(_rows(table, _identifying(table, table.column_names))))
    return "-".join(_digests(table, max(1, min(_PARTS, different // _PART))))


def drafted_from(drafted: str, table: Any) -> bool:  # noqa: ANN401 - Arrow's
    """Tell whether one of these digests is of a part of this table, or of all of it where there is one digest."""
    known = drafted.split("-")
    return any(one == other for one, other in zip(known, _digests(table, len(known)), strict=True))


def _digests(table: Any, count: int) -> list[str]:  # noqa: ANN401 - Arrow's
    """Return the digest of each part; in parts, columns that may only name rows do not count."""
    names = sorted(table.column_names if count == 1 else _identifying(table, table.column_names))
    parts: list[list[str]] = [[] for _ in range(count)]
    for row in sorted(_rows(table, names)):
        parts[hashlib.sha256(row.encode()).digest()[0] % count].append(row)
    return [hashlib.sha256(repr([names, part]).encode()).hexdigest()[:16] for part in parts]


def _identifying(table: Any, names: Sequence[str]) -> list[str]:  # noqa: ANN401 - Arrow's
    """Leave out columns that may be running numbers or codes, the same in tables of different people: 1, 2, 3, …"""
    return [name for name in names if not _names_rows(_rows(table, [name]).tolist())] or list(names)


def _names_rows(values: list[str]) -> bool:
    return len(set(values)) == len(values) and not any("." in value for value in values)


def _rows(table: Any, names: Sequence[str]) -> NDArray[np.object_]:  # noqa: ANN401 - Arrow's
    """Return each row as one text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    between = pa.scalar("\x1f", "large_string")
    joined = pc.binary_join_element_wise(*(_texts(table.column(name)) for name in names), between)
    return np.array(joined.to_pylist(), object)


def _texts(column: Any) -> Any:  # noqa: ANN401 - Arrow's
    """Write values as any file format would: numbers as float32, other texts without blanks and capital letters."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        texts = column.cast("large_string")
    except pa.ArrowException:  # views of texts, lists, …
        texts = pa.array([None if value is None else str(value) for value in column.to_pylist()], "large_string")
    texts = pc.fill_null(pc.utf8_lower(pc.utf8_trim_whitespace(texts)), "")
    gaps = pc.is_in(texts, pa.array([word.lower() for word in MISSING], "large_string"))
    numbers = pc.if_else(pc.match_substring_regex(texts, _NUMBER), texts, None).cast("float32")
    numbers = pc.add(numbers, pa.scalar(0, "float32"))  # −0 is 0
    return pc.if_else(gaps, "", pc.coalesce(numbers.cast("large_string"), texts))
