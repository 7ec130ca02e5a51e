"""Whether two tables hold the same rows, in any order and file format.

A schema shows everybody what it was drafted from, so it must not be drafted from a site's table. `init` has both tables
and compares their rows with `same`. Later there is only the schema, which carries digests of its table.

A large table has a digest for each of up to 16 parts of its rows. A row's own hash decides its part, so a row that is
new or changed leaves the digests of most parts as they were. A part has about 64 different rows or more. So a digest
confirms no guess about one row to anyone who does not know all other rows of its part.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from typing import TYPE_CHECKING, Any

from privsgp.data.schema import MISSING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PART, _PARTS = 64, 16  # different rows of a part, on average at least; parts at most
_MANY = 8  # different rows: half of fewer may agree by chance
_NUMBER = r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$"


def digests(table: Any) -> str:  # noqa: ANN401 - Arrow's
    """Return digests of an Arrow table that the order of rows and columns and the file format do not change."""
    different = len(set(_rows(table, _telling(table)).to_pylist()))
    return "-".join(_digests(table, max(1, min(_PARTS, different // _PART))))


def is_of(drafted: str, table: Any) -> bool:  # noqa: ANN401 - Arrow's
    """Tell whether one of these digests is of a part of this table, or of all of it where there is one digest."""
    known = drafted.split("-")
    return any(one == other for one, other in zip(known, _digests(table, len(known)), strict=True))


def _digests(table: Any, count: int) -> list[str]:  # noqa: ANN401 - Arrow's
    """Return the digest of each part; in parts, columns that may only name rows do not count."""
    names = sorted(table.column_names) if count == 1 else _telling(table)
    parts: list[list[str]] = [[] for _ in range(count)]
    for row in sorted(_rows(table, names).to_pylist()):
        parts[hashlib.sha256(row.encode()).digest()[0] % count].append(row)
    return [hashlib.sha256(repr([names, part]).encode()).hexdigest()[:16] for part in parts]


def _telling(table: Any) -> list[str]:  # noqa: ANN401 - Arrow's
    names = sorted(table.column_names)
    return [name for name in names if not _names_rows(table, name)] or names


def same(public: Any, own: Sequence[Any]) -> bool:  # noqa: ANN401 - Arrow's
    """Tell whether a public table has the rows of one of these tables, or of all of them together.

    Half of the different rows of either table have to be in the other one, and equally often. If columns take few
    values, tables of different people share rows too. But a row comes exactly c times among other people with a
    probability of at most 1/e (Poisson), whatever c and however frequent it is.
    """
    return any(_agree(public, some) for some in ([*([table] for table in own), own] if len(own) > 1 else [own]))


def _agree(public: Any, own: Sequence[Any]) -> bool:  # noqa: ANN401 - Arrow's
    common = [name for name in public.column_names if all(name in table.column_names for table in own)]
    names = [name for name in common if not _names_rows(public, name)] or common
    if not own or not names:
        return False
    one, other = (_counted(tables, names) for tables in ([public], own))
    both = len(one & other)
    return one == other or (both >= _MANY and 2 * both >= min(len(one), len(other)))


def _counted(tables: Sequence[Any], names: Sequence[str]) -> set[tuple[str, int]]:
    """Return the different rows and how often each comes; a table that is repeated as a whole counts once."""
    counts = Counter(row for table in tables for row in _rows(table, names).to_pylist())
    times = math.gcd(*counts.values())
    return {(row, count // times) for row, count in counts.items()}


def _names_rows(table: Any, name: str) -> bool:  # noqa: ANN401 - Arrow's
    """Tell whether a column may be running numbers or codes, the same in tables of different people: 1, 2, 3, …"""
    values = _rows(table, [name]).to_pylist()
    return len(set(values)) == len(values) and not any("." in value for value in values)


def _rows(table: Any, names: Sequence[str]) -> Any:  # noqa: ANN401 - Arrow's
    """Return each row as one text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    between = pa.scalar("\x1f", "large_string")
    return pc.binary_join_element_wise(*(_texts(table.column(name)) for name in names), between)


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
