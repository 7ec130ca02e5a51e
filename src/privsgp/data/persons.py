"""Which rows are one person's, in which order they come, and which of them are used.

A person with more than m rows keeps m of them, by a rule that reads only that person's rows. Persons are ordered by
their identifier and rows by a hash of their content, so the order of a file changes nothing. An identifier ends here:
what goes on is a hash of it, for the budget book alone.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from privsgp.data.dataset import Dataset, PersonRows
from privsgp.data.schema_text import toml_value
from privsgp.errors import Refused
from privsgp.options import Options, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_DIGITS = 40  # of an identifier that is a number: with more it is a text
_DATE = re.compile(r"\s*(\d{4})-(\d\d)-(\d\d)(?:[T ].*)?")
_ROWS_OF_A_NAME = 20  # on average, in a column that is taken for names of persons whatever it is called
NAMES = re.compile(  # what columns that name persons are often called
    r"(?i)^(.*[_ .-])?(id|pid|mrn|uid)$|^(patient|subject|person|participant)s?([_ .-]?(id|no|nr|number|code))?$"
)
MOST = 64  # rows of a person: the rounding bound of their sum is known up to there (docs/proofs/rounding.md)


class PersonOptions(Options):
    """Which rows belong to one person, and which of them are used."""

    person: str | None = option(
        None,
        "the column, key or array that says whose row it is, for images a pattern of file names like "
        '"{person}_*.png": ε is then for a person',
    )
    rows_per_person: Annotated[int, Field(ge=1, le=MOST)] | None = option(
        None, "m: how many rows of a person are used at most"
    )
    rows_choice: Literal["random", "latest"] = option(
        "random", "which rows of a person with more are used: by a hash of the row, or the latest by rows_date"
    )
    rows_date: str | None = option(None, "the column with dates (2026-01-31) or numbers: the latest is the largest")

    def in_file_name(self, name: str) -> str:
        """Return the person in the name of a file, by the pattern `person`; "" where the name is another."""
        parts = (re.escape(part).replace(r"\*", ".*") for part in (self.person or "").split("{person}"))
        found = re.fullmatch("(.+?)".join(parts), name)
        return found[1] if found else ""


class Named(NamedTuple):
    """The person of each row of a file and, if asked for, its date."""

    names: Sequence[str]
    dates: NDArray[np.float64] | None = None


def named(given: Any, dates: Any, missing: Sequence[str], where: str) -> Named:  # noqa: ANN401 - arrays
    """Take identifiers from an array; refuse a row without one."""
    names = [
        value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in np.asarray(given).tolist()
    ]
    names = [str(value).strip() for value in names]
    if (nobody := [i for i, name in enumerate(names) if name in missing]) != []:
        raise nameless(where, nobody[0], len(nobody))
    try:
        known = None if dates is None else np.array([_number(date) for date in np.asarray(dates).tolist()])
    except (TypeError, ValueError):
        known = np.array([np.nan])
    if known is not None and not np.isfinite(known).all():
        raise Refused(f"{where}: a date is none", "write 2026-01-31 or a number, or take rows_choice = 'random'")
    return Named(names, known)


def _number(date: object) -> float:
    """Return a date as a number that grows with it: the day alone, 20260131, or a number as it is."""
    day = _DATE.fullmatch(text := str(date))
    return float("".join(day.groups()) if day else text)


def repeats(name: str, count: int, rows: int) -> bool:
    """Tell whether a column with so many different values may name persons with several rows."""
    return count < rows and (count >= rows / _ROWS_OF_A_NAME or NAMES.search(name) is not None)


def warning(name: str, count: int, rows: int) -> str:
    """Say that a column may name persons, where nobody asked whose rows they are."""
    return (
        f"column {name!r} has {count:,} names for {rows:,} rows. ε is for a row: a person with several rows "
        f"has less protection. If it names persons, write: [data] person = {toml_value(name)}, rows_per_person = …"
    )


def canonical(name: str) -> str:
    """Return one form of an identifier: 7, 7.0, "07" and " 7" are one person.

    Two persons whose identifiers have one form become one sample. That costs accuracy, and no privacy.
    """
    text = unicodedata.normalize("NFKC", name).casefold()
    text = "".join(sign for sign in text if unicodedata.category(sign) != "Cf").strip()
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    if not number.is_finite() or len(text) > _DIGITS or abs(number.adjusted()) > _DIGITS:
        return text
    return format(number.normalize(), "f") if number else "0"


def nameless(where: str, row: int, count: int) -> Refused:
    """Return the refusal of rows without an identifier."""
    more = f" ({count} such rows)" if count > 1 else ""
    return Refused(
        f"{where}, row {row + 1}: no identifier of a person{more}",
        "give each row the identifier of its person, or leave the row out",
    )


def grouped(dataset: Dataset, found: Named, options: PersonOptions) -> tuple[Dataset, int]:
    """Return the rows that are used, ordered by person, and how many persons have more rows than that.

    Guarantee: which rows of a person are used, and in which order, depends on that person's rows and `options` alone.
    """
    names, most = np.array([canonical(name) for name in found.names], np.str_), options.rows_per_person or 1
    if len(names) != len(dataset.x):
        raise Refused(f"{dataset.name}: {len(names)} identifiers for {len(dataset.x)} rows", "give one to each row")
    if found.dates is not None and found.dates.shape != names.shape:
        raise Refused(f"{dataset.name}: dates of shape {found.dates.shape} for {len(names)} rows", "give each row one")
    content = np.array([
        _hash(name.encode(), x.tobytes(), y.tobytes())[0]
        for name, x, y in zip(names.tolist(), dataset.x, dataset.y, strict=True)
    ])  # fmt: skip
    late = () if found.dates is None else (-found.dates,)
    order = np.lexsort((content, *late, names))
    starts = np.flatnonzero(changes(names[order]))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    kept = order[rank < most]
    known, back = np.unique(names[kept], return_inverse=True)
    hashes = np.array([_hash(b"person", name.encode()) for name in known.tolist()], np.uint64)[back]
    return dataset.taken(kept, PersonRows(hashes, most)), int((rank == most).sum())


def changes(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell where a value differs from the one before."""
    return np.append(True, values[1:] != values[:-1])


def _hash(*parts: bytes) -> tuple[int, int]:
    found = hashlib.sha256(b"".join(len(part).to_bytes(8) + part for part in parts)).digest()
    return int.from_bytes(found[:8]), int.from_bytes(found[8:16])
