"""Everything that is wrong or odd with a site's table, for that site alone.

Suggested lines come from the schema. They have no value of a row: the site puts its own words in.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from privsgp.data import dialect as dialects
from privsgp.data import tables
from privsgp.data.hashes import cells
from privsgp.data.persons import PersonOptions, canonical, in_forms
from privsgp.data.schema import Category, Number
from privsgp.data.schema_text import toml_key, toml_value
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

from privsgp.data.schema import Schema

_OFTEN = 0.2  # the share of a column's values from which on it is odd that they are missing, clipped or "other"
_SEVERAL = 3  # rows with the same number outside the range: chance gives different ones
_ROWS = 20  # in fewer rows whole numbers can all differ by chance


class Problem(NamedTuple):
    """What is wrong, what to do, and the share of rows it concerns; training stops at one that is `refused`."""

    what: str
    remedy: str
    share: float = 1.0
    refused: bool = False


class Checked(NamedTuple):
    """A table that was looked at as a whole. All of it is about private rows."""

    rows: int
    y: Any
    counts: dict[str, tables.Count]
    problems: list[Problem]
    rows_of_persons: Sequence[int] = ()


def check(path: Path, schema: Schema, *, person: str | None = None) -> Checked:
    """Return all problems of a site's table, those that training refuses first.

    Args:
        path: The site's table.
        schema: The schema that all sites share.
        person: The column that says whose row it is, if a sample is a person.

    Raises:
        Refused: If the file cannot be read as a table.

    """
    raw, table = tables.both(path)
    where, there, refused = str(path), table.column_names, list[Problem]()

    def tried(encode: Callable[..., Any], *given: Any, **named: Any) -> Any:  # noqa: ANN401 - what the part returns
        try:
            return encode(table, schema, where, *given, **named)
        except Refused as refusal:
            refused.append(Problem(refusal.what, refusal.remedy, refused=True))
            return None

    tried(tables.refuse_drafted)
    tried(tables.refuse_absent, labelled=True)
    tried(tables.refuse_unknown)
    found = {name: tried(tables.encode_column, name) for name in schema.encoded if name in there}
    whose = None if person is None else tried(tables.whose, PersonOptions(person=person))
    target = schema.target.columns[0]
    y = tried(tables.encode_target) if {*schema.target.columns} <= {*there} else None
    counts = {name: one[1] for name, one in (*found.items(), (target, y)) if one is not None}
    odd = [*_counted(table, schema, counts), *_named(raw, schema, path, person)]
    forms = Counter() if whose is None else Counter(map(canonical, set(whose.names)))
    if several := sum(count > 1 for count in forms.values()):
        odd.append(Problem(f"column {person!r}: {in_forms(several)}", "if not, let them differ in more than that"))
    rows = [] if whose is None else list(Counter(map(canonical, whose.names)).values())
    return Checked(
        table.num_rows, None if y is None else y[0], counts, refused + sorted(odd, key=lambda one: -one.share), rows
    )


def _counted(table: Any, schema: Schema, counts: dict[str, tables.Count]) -> Iterator[Problem]:  # noqa: ANN401 - Arrow's
    """Yield columns of which many values do not fit, and numbers that look like names of rows."""
    rows = table.num_rows
    for name, count in counts.items():
        column = schema.encoded.get(name)
        ignored = f'{toml_key(name)} = {{ type = "ignored" }}'
        remedies = {
            "missing": f"if most sites lack it, agree in the schema on: {ignored}",
            "clipped": "if it is in another unit here, convert it; else agree on a range that all sites' values are in",
            "other": f"write in the dialect: {tables.word_line(name, column.values[0])}"
            if isinstance(column, Category)
            else "",
        }
        for what, number in count.items():
            if number > _OFTEN * rows:
                text = f"column {name!r}: {number:,} of {rows:,} values are {tables.COUNTED[what]}"
                yield Problem(text, remedies[what], number / rows)
        if isinstance(column, Number) and rows >= _ROWS:
            numbers, missing = tables.Values(table.column(name), schema, name, "number").numbers()
            if not missing.any() and (numbers == np.rint(numbers)).all() and len(np.unique(numbers)) == rows:
                yield Problem(
                    f"column {name!r}: {rows:,} different whole numbers. It may name rows, and be no feature",
                    f"if it does, agree in the schema on: {ignored}",
                )
            yield from _codes(name, column, numbers[~missing])


def _codes(name: str, column: Number, numbers: Any) -> Iterator[Problem]:  # noqa: ANN401 - an array
    """Yield a number outside the range that several rows have: it may be a code for a missing value."""
    low, high = column.limits
    values, counts = np.unique(numbers[(numbers < low) | (numbers > high)], return_counts=True)
    if counts.size and counts.max() >= _SEVERAL:
        yield Problem(
            f"column {name!r}: {counts.max():,} values are {values[counts.argmax()]:g}, outside the range",
            'if it is a code for a missing value, write in the dialect: missing = ["CODE"]',
            counts.max() / len(numbers),
        )


def _named(raw: Any, schema: Schema, path: Path, person: str | None) -> Iterator[Problem]:  # noqa: ANN401 - Arrow's
    """Yield rows that are there twice, and columns that name rows, if several rows have the same name."""
    rows, dialect = raw.num_rows, dialects.of(path)
    hashes = cells(raw)
    again = rows - len(np.unique(np.sum(list(hashes.values()), axis=0, dtype=np.uint64)))
    if again and any(isinstance(column, Number) for column in schema.encoded.values()):
        yield Problem(f"{again:,} rows repeat another row", "delete them if it is the same record", again / rows)
    renamed = {} if dialect is None else dialect.columns
    features = {*schema.target.columns, *schema.encoded}
    used = [own for own, name in renamed.items() if name in features]
    for own, names in () if person is not None else tables.repeating(raw, schema, used):
        name = renamed.get(own, own)
        yield Problem(
            f"column {name!r}: {rows:,} rows have {names:,} different values",
            f"if they name persons, agree on: [data] person = {toml_value(name)}: ε is for a row, and a person's rows "
            "add up",
            1 - names / rows,
        )
