"""Which rows are one person's, in which order they come, and which of them are used.

A person with more than m rows keeps m of them, by a rule that reads only that person's rows. Persons are ordered by
their identifier and rows by a hash of their content, so the order of a file changes nothing. An identifier ends here:
what goes on is a hash of it, for the budget book alone.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from privsgp.data.dataset import Dataset, PersonRows
from privsgp.data.schema import MISSING
from privsgp.data.schema_text import toml_value
from privsgp.errors import Refused
from privsgp.options import Options, option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_DIGITS = 40  # of an identifier that is a number: with more it is a text
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]\d{1,2})?")  # as programs write numbers: "7e1" and "1_1" are texts
_DATE = re.compile(r"\s*(\d{4})-(\d\d)-(\d\d)(?:[T ].*)?")
_SIGNS = {"Cf": "", "Cc": " ", "Pd": "-"}  # by Unicode category: without a width, controls, dashes
_ROWS_OF_A_NAME = 20  # on average, in a column that is taken for names of persons whatever it is called
NAMES = re.compile(  # what columns that name persons are often called
    r"(?i)^(.*[_ .-])?(id|pid|mrn|uid)$|^(patient|subject|person|participant)s?([_ .-]?(id|no|nr|number|code))?$"
)
BY_DATE = "write 2026-01-31 or a number, or take rows_choice = 'random'"
BY_WEIGHT = "give each row a number above 0, or leave out rows_weight"
MOST = 64  # rows of a person: the rounding bound of their sum is known up to there (docs/proofs/rounding.md)


class PersonOptions(Options):
    """Which rows belong to one person, and which of them are used."""

    person: str | None = option(
        None,
        "the column, key or array that says whose row it is, for images a pattern of file names like "
        '"{person}_*.png": ε is then for a person',
    )
    rows_per_person: Annotated[int, Field(ge=1, le=MOST)] | None = option(
        None, "m: the most rows of a person that are used"
    )
    rows_choice: Literal["random", "latest"] = option(
        "random", "if a person has more rows, which are used: by a hash of the row, or the latest by rows_date"
    )
    rows_date: str | None = option(None, "the column with dates (2026-01-31) or numbers: the latest is the largest")
    rows_weight: str | None = option(
        None, "the column with the weight of a row in its person's mean, above 0; default: all rows weigh the same"
    )

    @property
    def columns(self) -> list[str]:
        """The columns, keys or arrays that are read."""
        return [name for name in (self.person, self.rows_date, self.rows_weight) if name is not None]

    def in_file_name(self, name: str) -> str:
        """Return the person in the name of a file, by the pattern `person`; "" where the name is another."""
        parts = (re.escape(part).replace(r"\*", ".*") for part in (self.person or "").split("{person}"))
        found = re.fullmatch("(.+?)".join(parts), name)
        return found[1] if found else ""


class Named(NamedTuple):
    """The person of each row of a file and, if asked for, its date and its weight."""

    names: Sequence[str]
    dates: NDArray[np.float64] | None = None
    weights: NDArray[np.float64] | None = None


def named(found: Mapping[str, Any], options: PersonOptions, where: str, missing: Sequence[str] = ()) -> Named:
    """Take identifiers, dates and weights by the names that `options` gives; refuse rows without one.

    Rows without an identifier would be one person.
    """
    values = np.asarray(found[options.person or ""]).tolist()
    names = [str(value.decode("utf-8", "replace") if isinstance(value, bytes) else value).strip() for value in values]
    forms = {name: canonical(name) for name in {*names} - {*missing}}
    gone = {*missing, *(name for name, form in forms.items() if form in _NOBODY or not any(map(str.isalnum, form)))}
    if nobody := [row for row, name in enumerate(names, 1) if name in gone]:
        more = f" ({len(nobody)} such rows)" if len(nobody) > 1 else ""
        what = f"{where}: {options.person!r}, row {nobody[0]}: no identifier of a person{more}"
        raise Refused(what, "give each row the identifier of its person, or leave the row out")
    date, weight = options.rows_date, options.rows_weight
    dates = None if date is None else _numbers(found[date], f"{where}: {date!r}", "date", BY_DATE)
    weights = None if weight is None else _numbers(found[weight], f"{where}: {weight!r}", "weight", BY_WEIGHT)
    return Named(names, dates, weights)


def _numbers(given: Any, where: str, kind: str, remedy: str) -> NDArray[np.float64]:  # noqa: ANN401 - arrays
    known = np.array([_number(str(one)) for one in np.asarray(given).tolist()])
    if (bad := ~np.isfinite(known)).any():
        raise Refused(f"{where}, row {int(bad.argmax()) + 1}: no {kind}", remedy)
    return known


def _number(text: str) -> float:
    """Return a date as a number that grows with it: the day alone, 20260131, or a number; NaN if it is none."""
    day = _DATE.fullmatch(text)
    try:
        return float("".join(day.groups()) if day else text)
    except ValueError:
        return math.nan


def repeats(name: str, count: int, rows: int) -> bool:
    """Tell whether a column with so many different values may name persons with several rows."""
    return count < rows and (count >= rows / _ROWS_OF_A_NAME or NAMES.search(name) is not None)


def warning(name: str, count: int, rows: int) -> str:
    """Say that a column may name persons, where nobody asked whose rows they are."""
    return (
        f"column {name!r} has {count:,} different values in {rows:,} rows. ε is for a row: a person with several rows "
        f"has less protection. If they name persons, write: [data] person = {toml_value(name)}, rows_per_person = …"
    )


def canonical(name: str) -> str:
    """Return one form of an identifier: 7, 7.0, "07" and " 7" are one person.

    One person in two forms would be two samples, and so would two persons in one form be one: a person who leaves then
    moves a release by up to twice the clip. So `grouped` counts the identifiers that a file writes in several forms.
    """
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    text = "".join(_SIGNS.get(unicodedata.category(sign), sign) for sign in text)
    text = " ".join(text.split())
    if not _NUMBER.fullmatch(text) or len(text) > _DIGITS:
        return text
    number = Decimal(text)
    return format(number.normalize(), "f") if number else "0"


_NOBODY = {canonical(word) for word in (*MISSING, "<NA>", "NaT", "#N/A")}  # as programs write it


def in_forms(count: int) -> str:
    """Say that identifiers of so many persons are written in several forms."""
    return f"the identifiers of {count:,} persons are written in several forms, like 7 and 007: each is one person"


def grouped(dataset: Dataset, found: Named, options: PersonOptions) -> tuple[Dataset, int, int]:
    """Return the rows that are used, ordered by person; and how many persons have more, or several forms of a name.

    Guarantee: which rows of a person are used, in which order and with which weights, depends on that person's rows and
    `options` alone.
    """
    written, index = np.unique(np.array(found.names, np.str_), return_inverse=True)
    one_form, most = np.array([canonical(name) for name in written.tolist()], np.str_), options.rows_per_person or 1
    names, forms = one_form[index], np.unique(one_form, return_counts=True)[1]
    for what, values in {"identifiers": names, "dates": found.dates, "weights": found.weights}.items():
        if values is not None and values.shape != dataset.y.shape[:1]:
            raise Refused(f"{dataset.name}: {len(values)} {what} for {len(dataset.y)} rows", "give one to each row")
    if found.weights is not None and not (found.weights > 0).all():
        raise Refused(f"{dataset.name}: a weight is not above 0", BY_WEIGHT)
    content = np.array([
        _hash(name.encode(), x.tobytes(), y.tobytes())[0]
        for name, x, y in zip(names.tolist(), dataset.x, dataset.y, strict=True)
    ])  # fmt: skip
    late = () if found.dates is None else (-found.dates,)
    weighs = () if found.weights is None else (found.weights,)
    order = np.lexsort((*weighs, content, *late, names))
    starts = np.flatnonzero(changes(names[order]))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
    kept = order[rank < most]
    known, back = np.unique(names[kept], return_inverse=True)
    hashes = np.array([_hash(b"person", name.encode()) for name in known.tolist()], np.uint64)[back]
    weights = None if found.weights is None else _shares(found.weights[kept], np.flatnonzero(changes(names[kept])))
    taken = dataset.taken(kept, PersonRows(hashes, most, weights))
    return taken, int((rank == most).sum()), int((forms > 1).sum())


def _shares(weights: NDArray[np.float64], starts: NDArray[np.intp]) -> NDArray[np.float32]:
    """Return each row's share of the weights of its person, whose rows begin at `starts`."""
    counts = np.diff(starts, append=len(weights))
    weights = weights / np.repeat(np.maximum.reduceat(weights, starts), counts)  # so that no sum overflows
    shares: NDArray[np.float64] = weights / np.repeat(np.add.reduceat(weights, starts), counts)
    return shares.astype(np.float32)


def changes(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell where a value differs from the one before."""
    return np.append(True, values[1:] != values[:-1])


def _hash(*parts: bytes) -> tuple[int, int]:
    found = hashlib.sha256(b"".join(len(part).to_bytes(8) + part for part in parts)).digest()
    return int.from_bytes(found[:8]), int.from_bytes(found[8:16])
