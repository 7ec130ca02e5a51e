"""Drafts a schema from public data or a data dictionary, for somebody who knows the columns to read and correct.

Everything in a draft is a statistic of what it was drafted from, so private rows must not be: `drafted` lets training
refuse them. A draft has rounded numbers alone, never the smallest or largest value or a count.
"""

from __future__ import annotations

import json
import math
import tomllib
from typing import TYPE_CHECKING, Any, NamedTuple

from privsgp.data import same_records
from privsgp.data import schema as schemas
from privsgp.data.schema import MISSING, YesNo, toml_key, toml_value
from privsgp.data.tables import as_number
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

_CLASSES = 50  # distinct whole numbers or texts that still look like a list
_DICTIONARY = ("column", "type", "min", "max", "values", "missing")
_HEAD = """# schema.toml: what the columns of a table are. It is public, and the same at every site: its hash is part of
# what they agree on. Drafted from {source}.
# Read every line: ranges and lists must hold for all sites, and come from no private row.
# A drafted range is wider than the values were. Write the limits that every site expects.
#
# number    range = [smallest, largest] becomes -1 … 1, or centre 0 and centre + scale 1; what lies outside is clipped
# category  values: the public list; anything else becomes "other"
# yes/no    ±1
# ignored   not used; may be left out of the table
# missing   what a missing value becomes, with an indicator; without it a missing value is refused
# drafted   digests of the public table. Training refuses a site whose own table has the same rows.

"""


class Draft(NamedTuple):
    """One column's line: what it seems to be, and why."""

    values: dict[str, Any]
    why: str
    kinds: tuple[str, ...] = ()  # the values there are, where they are few


def draft(table: Any, target: str, source: str) -> str:  # noqa: ANN401 - Arrow's
    """Return the text of a schema for a public table, or by a data dictionary with the columns of `_DICTIONARY`."""
    digest = None
    columns = {name: list(map(_text, table.column(name).to_pylist())) for name in table.column_names}
    if {"column", "type"} <= set(columns) <= set(_DICTIONARY):
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        found = {row["column"]: Draft(_described(row), "by the data dictionary") for row in rows}
    else:
        found, digest = {name: _column(values) for name, values in columns.items()}, same_records.digests(table)
    if target not in found:
        raise Refused(f"--target {target}: {source} has no such column", f"take one of {', '.join(found)}")
    target_draft = found.pop(target)
    text = _written(target, _as_target(target_draft, target), found, source, digest)
    schemas.parse(tomllib.loads(text), source)  # what is drafted can be read
    return text


def _written(target: str, values: dict[str, Any], columns: dict[str, Draft], source: str, digest: str | None) -> str:
    lines = [] if digest is None else [f"drafted = {toml_value(digest)}", ""]
    lines += ["[target]", f"column = {toml_value(target)}"]
    lines += [f"{key} = {toml_value(value)}" for key, value in values.items()]
    lines += ["", "[columns]"]
    lines += [
        f"{toml_key(name)} = {toml_value(one.values)}" + (f"  # {one.why}" if one.why else "")
        for name, one in columns.items()
    ]
    return _HEAD.format(source=json.dumps(source, ensure_ascii=False)) + "\n".join(lines) + "\n"


def _text(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value).strip()


def _column(values: Sequence[str]) -> Draft:
    """Guess what a public column is."""
    there = [value for value in values if value not in MISSING]
    gaps = len(there) < len(values)
    missing = "some values are missing" if gaps else ""
    if not there:
        return Draft({"type": "ignored"}, "all values are missing")
    kinds = sorted(set(there))
    if len(kinds) <= 2 and _yes_no(kinds):
        said = {"type": "yes/no", "missing": False} if gaps else {"type": "yes/no"}
        return Draft(said, missing, tuple(kinds))
    numbers = [as_number(value) for value in there]
    if None not in numbers:
        return _number([number for number in numbers if number is not None], missing)
    if len(kinds) > _CLASSES or len(kinds) > max(2, len(there) // 2):
        return Draft({"type": "ignored"}, "most of its texts are different")
    given = {"missing": schemas.OTHER} if gaps else {}
    return Draft({"type": "category", "values": kinds} | given, missing)


def _yes_no(kinds: Sequence[str]) -> bool:
    words = YesNo(type="yes/no")
    return all(kind.lower() in (*words.yes, *words.no) for kind in kinds)


def _number(numbers: list[float], missing: str) -> Draft:
    low, high, mean = min(numbers), max(numbers), math.fsum(numbers) / len(numbers)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in numbers) / len(numbers))
    if not deviation or not math.isfinite(deviation):
        return Draft({"type": "ignored"}, "all its values are the same" if low == high else "its values are vast")
    step = 10 ** math.floor(math.log10(deviation)) / 10
    centre, scale = _tidy(round(mean / step) * step), _tidy(round(deviation / step) * step)
    given = {"missing": centre} if missing else {}
    limits = _limits(low, high, deviation)
    return Draft({"type": "number", "centre": centre, "scale": scale, "range": limits} | given, missing)


def _limits(low: float, high: float, deviation: float) -> list[float]:
    """Return round numbers beyond what was seen: a deviation further, then out to one digit of the width."""
    least = max(0.0, low - deviation) if low >= 0 else low - deviation  # others have seen more than these rows
    most = min(0.0, high + deviation) if high <= 0 else high + deviation
    step = 10.0 ** math.floor(math.log10(most - least))
    return [_tidy(math.floor(least / step) * step), _tidy(math.ceil(most / step) * step)]


def _tidy(value: float) -> float:
    return float(f"{value:.12g}")


def _as_target(found: Draft, target: str) -> dict[str, Any]:
    """Return what the target's section says."""
    values = found.values
    if values["type"] == "number":
        return {key: values[key] for key in ("range", "centre", "scale") if key in values}
    if values["type"] == "category":
        return {"classes": values["values"]}
    if values["type"] == "yes/no":
        return {"classes": list(found.kinds) if len(found.kinds) == 2 else ["no", "yes"]}
    raise Refused(f"--target {target}: {found.why}", "name a column with classes or numbers")


def _described(row: dict[str, str]) -> dict[str, Any]:
    """Return what a row of a data dictionary says of its column; values have | between them."""
    values: dict[str, Any] = {"type": row["type"]}
    missing = row.get("missing", "")
    if row["type"] == "number":
        ends = [as_number(row.get(key, "")) for key in ("min", "max")]
        if None in ends:
            raise Refused(
                f"the data dictionary gives no min and max of {row['column']!r}", "give both: they are public"
            )
        values["range"] = ends
        return values | ({"missing": as_number(missing)} if missing else {})
    if row["type"] == "category":
        values["values"] = [value.strip() for value in row.get("values", "").split("|") if value.strip()]
    if missing:
        values["missing"] = missing.lower() in YesNo(type="yes/no").yes if row["type"] == "yes/no" else missing
    return values
