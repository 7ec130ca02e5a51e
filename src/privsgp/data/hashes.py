"""Hashes of records, by which the budget book knows them and by which public data are compared with private ones.

Rows of tables have hashes by the values in their file, which no schema changes: a row's hash is the sum of the hashes
of its values with their columns' names. So columns can be left out, in any order.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.data.schema import MISSING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from privsgp.data.dataset import Array, Dataset

    Hashes = NDArray[np.uint64]

_AT_ONCE = 2**24  # bytes that are hashed together
_NUMBER = r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$"


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
    """Hash the samples of a data set."""
    return hashes(dataset.x, tokens=dataset.vocabulary is not None)


def row_hashes(table: Any, inputs: Collection[str]) -> Hashes:  # noqa: ANN401 - Arrow's
    """Return two hashes of each row [N, 2], by the values in the file: of all its columns, and of the `inputs`."""
    found = cells(table)
    return np.column_stack([summed(found, list(found)), summed(found, [plain(name) for name in inputs])])


def cells(table: Any) -> dict[str, Hashes]:  # noqa: ANN401 - Arrow's
    """Return a hash of each value, by column; sums of them are hashes of rows, in whatever order columns are."""
    found: dict[str, Hashes] = {}
    for column in table.column_names:
        name = plain(column)
        values = texts(table.column(column)).combine_chunks().dictionary_encode()
        known = [hashlib.sha256(f"{name}\x1f{text}".encode()).digest()[:8] for text in values.dictionary.to_pylist()]
        hashed = np.frombuffer(b"".join(known), np.uint64)[values.indices.to_numpy(zero_copy_only=False)]
        found[name] = found[name] + hashed if name in found else hashed
    return found


def plain(name: str) -> str:
    """Return the name of a column without blanks around it and capital letters."""
    return name.strip().lower()


def summed(columns: dict[str, Hashes], names: Sequence[str]) -> Hashes:
    """Return the hashes of rows, of these columns."""
    total: Hashes = np.sum([columns[name] for name in names], axis=0, dtype=np.uint64)
    return total


def texts(column: Any) -> Any:  # noqa: ANN401 - Arrow's
    """Write values as any file format would: numbers as float32, other texts without blanks and capital letters."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        written = column.cast("large_string")
    except pa.ArrowException:  # views of texts, lists, …
        words = [None if value is None else str(value) for value in column.to_pylist()]
        written = pa.chunked_array([pa.array(words, "large_string")])
    written = pc.fill_null(pc.utf8_lower(pc.utf8_trim_whitespace(written)), "")
    gaps = pc.is_in(written, pa.array([word.lower() for word in MISSING], "large_string"))
    numbers = pc.if_else(pc.match_substring_regex(written, _NUMBER), written, None).cast("float32")
    numbers = pc.add(numbers, pa.scalar(0, "float32"))  # −0 is 0
    return pc.if_else(gaps, "", pc.coalesce(numbers.cast("large_string"), written))
