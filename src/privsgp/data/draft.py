"""Drafts a schema from public data or a data dictionary, for somebody who knows the columns to read and correct.

Everything in a draft is a statistic of what it was drafted from, so private rows must not be: `drafted` lets training
refuse them. A draft has rounded numbers alone, never the smallest or largest value or a count.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from privsgp.data import same_records
from privsgp.data import schema as schemas
from privsgp.data.persons import NAMES
from privsgp.data.schema import MISSING, YesNo
from privsgp.data.schema_text import written
from privsgp.data.tables import as_number, word_line
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CLASSES = 50  # distinct whole numbers or texts that still look like a list
_LISTED = 10  # different numbers that may be a list of codes
_CODES = 5  # different texts among numbers that still look like codes for a missing value
_FEW = 40  # rows below which shares of classes say little
_BINS = 8  # of a time until an event
_DICTIONARY = ("column", "type", "min", "max", "values", "missing")
_WORDS = YesNo(type="yes/no")
_HEAD = """# schema.toml: what the columns of a table are. It is public, and the same at every site: its hash is part of
# what they agree on. Drafted from {source}.
# Read every line: ranges and lists must hold for all sites, and come from no private row.
# A drafted range is wider than the values were. Write the limits that every site expects.
#
# number    range = [smallest, largest] becomes -1 … 1, or centre 0 and centre + scale 1; values outside are clipped
# category  values: the public list; anything else becomes "other"
# yes/no    ±1
# ignored   not used; the table may lack it
# missing   the replacement of a missing value, with an indicator; without it privsgp refuses missing values
# drafted   digests of the public table. Training refuses a site whose own table has the same rows.

"""


_REPEATS = "by its name it says whose row it is; run.toml can name it as data.person"


class _Draft(NamedTuple):
    """One column's line: what it seems to be, and why."""

    values: dict[str, Any]
    why: str
    kinds: tuple[str, ...] = ()  # the values there are, where they are few
    codes: tuple[str, ...] = ()  # texts among numbers, which stand for a missing value


def draft(table: Any, target: str, source: str, event: str | None = None) -> str:  # noqa: ANN401 - Arrow's
    """Return the text of a schema for a public table, or by a data dictionary with the columns of `_DICTIONARY`.

    With an `event` the target is the time until it, in bins that have about as many events each.
    """
    columns = {name: list(map(_text, table.column(name).to_pylist())) for name in table.column_names}
    digests = {}
    if is_dictionary(table.column_names):
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        found = {row["column"]: _Draft(_described(row), "by the data dictionary") for row in rows}
    else:
        found = {
            name: _Draft({"type": "ignored"}, _REPEATS)
            if name not in (target, event) and NAMES.search(name) and len(set(values)) < len(values)
            else _column(values, names_rows=name != target)
            for name, values in columns.items()
        }
        digests = {
            "drafted": same_records.digests(table, [n for n, one in found.items() if one.values["type"] == "ignored"])
        }
    if target not in found:
        raise Refused(f"--target {target}: {source} has no such column", f"take one of {', '.join(found)}")
    if event is None:
        predicted = {"column": target} | _as_target(found.pop(target), target)
    elif event not in found:
        raise Refused(f"--event {event}: {source} has no such column", f"take one of {', '.join(found)}")
    else:
        _refuse_words(columns.get(event, []), event)
        predicted = {"type": "survival", "time": target, "event": event}
        predicted["bins"] = _bins(columns.get(target, []), columns.get(event, []), found.pop(target).values)
        found.pop(event)
    if digests and "classes" in predicted:
        predicted |= _counted(predicted["classes"], columns[target])
    if codes := sorted({code for one in found.values() for code in one.codes}):
        digests["missing"] = [*MISSING, *codes]
    values = digests | {"target": predicted, "columns": {name: one.values for name, one in found.items()}}
    text = written(schemas.parse(values, source), why={name: one.why for name, one in found.items()})
    return _HEAD.format(source=json.dumps(source, ensure_ascii=False)) + text


def is_dictionary(columns: Sequence[str]) -> bool:
    """Return whether a table with these columns is a data dictionary."""
    return {"column", "type"} <= set(columns) <= set(_DICTIONARY)


def _text(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.0f}" if isinstance(value, float) and value.is_integer() else str(value).strip()


def _column(values: Sequence[str], *, names_rows: bool) -> _Draft:
    """Guess what a public column is; only if it may be one that `names_rows`, running numbers are ignored."""
    there = [value for value in values if value not in MISSING]
    if not there:
        return _Draft({"type": "ignored"}, "all values are missing")
    gaps, kinds = len(there) < len(values), sorted(set(there))
    why = "some values are missing" if gaps else ""
    if len(kinds) <= 2 and {kind.lower() for kind in kinds} <= {*_WORDS.yes, *_WORDS.no}:
        return _Draft({"type": "yes/no"} | ({"missing": False} if gaps else {}), why, tuple(kinds))
    if (number := _as_number(there, kinds, why, names_rows=names_rows and not gaps)) is not None:
        return number
    if len(kinds) == 1 and names_rows:
        return _Draft({"type": "ignored"}, "all its values are the same")
    if len(kinds) > _CLASSES or len(kinds) > max(2, len(there) // 2):
        return _Draft({"type": "ignored"}, "most of its texts are different")
    return _Draft({"type": "category", "values": kinds} | ({"missing": schemas.OTHER} if gaps else {}), why)


def _as_number(there: Sequence[str], kinds: Sequence[str], why: str, *, names_rows: bool) -> _Draft | None:
    """Draft a column of numbers, a few texts among them taken as missing; None if it is no such column."""
    numbers = [number for value in there if (number := as_number(value)) is not None]
    codes = [kind for kind in kinds if as_number(kind) is None]
    if not codes:
        if not names_rows or len(there) < _FEW or len(set(numbers)) < len(numbers) or any(n % 1 for n in numbers):
            return _number(numbers, why)
        if max(numbers) - min(numbers) == len(numbers) - 1 and min(numbers) in (0, 1):
            return _Draft({"type": "ignored"}, "running numbers, which name rows")
        return _number(numbers, why)._replace(why="different whole numbers: take ignored if they name rows")
    if len(codes) > _CODES or 5 * len(numbers) < 4 * len(there) or len(kinds) - len(codes) <= _LISTED:
        return None
    return _number(numbers, f"missing: {', '.join(codes)}")._replace(codes=tuple(codes))


def _number(numbers: list[float], missing: str) -> _Draft:
    low, high, mean = min(numbers), max(numbers), math.fsum(numbers) / len(numbers)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in numbers) / len(numbers))
    if not deviation or not math.isfinite(deviation):
        return _Draft({"type": "ignored"}, "all its values are the same" if low == high else "its values are vast")
    centre, scale = rounded(mean, deviation)
    given = {"missing": centre} if missing else {}
    limits = _limits(low, high, deviation)
    return _Draft({"type": "number", "centre": centre, "scale": scale, "range": limits} | given, missing)


def rounded(mean: float, deviation: float) -> tuple[float, float]:
    """Return centre and scale: mean and deviation with two digits of the deviation."""
    step = 10 ** math.floor(math.log10(deviation)) / 10
    return _tidy(round(mean / step) * step), _tidy(round(deviation / step) * step)


def _limits(low: float, high: float, deviation: float) -> list[float]:
    """Return round numbers beyond what was seen: a deviation further, then out to one digit of the width."""
    least = max(0.0, low - deviation) if low >= 0 else low - deviation  # others have seen more than these rows
    most = min(0.0, high + deviation) if high <= 0 else high + deviation
    step = 10.0 ** math.floor(math.log10(most - least))
    return [_tidy(math.floor(least / step) * step), _tidy(math.ceil(most / step) * step)]


def _tidy(value: float) -> float:
    return float(f"{value:.12g}")


def _as_target(found: _Draft, target: str) -> dict[str, Any]:
    """Return what the target's section says."""
    values = found.values
    if values["type"] == "number":
        return {key: values[key] for key in ("range", "centre", "scale") if key in values}
    if values["type"] == "ignored":
        raise Refused(f"--target {target}: {found.why}", "name a column with classes or numbers")
    kinds = values.get("values") or list(found.kinds)
    return {"classes": kinds if len(kinds) > 1 else ["no", "yes"]}


def _refuse_words(values: Sequence[str], event: str) -> None:
    """Refuse an event that is neither yes nor no: no site could read its own table."""
    known = {"", *MISSING, *(word.lower() for word in (*_WORDS.yes, *_WORDS.no))}
    if word := next((value for value in values if value.lower() not in known), None):
        remedy = f"write in the dialect beside the table: {word_line(event, 'yes')}"
        raise Refused(f"--event {event}: {word!r} is neither yes nor no", remedy)


def _bins(times: Sequence[str], events: Sequence[str], described: Mapping[str, Any]) -> list[float]:
    """Return round edges between which public events lie evenly; of a data dictionary, an even division."""
    words = {word.lower() for word in schemas.WORDS.yes}
    known = sorted(
        time
        for text, word in zip(times, events, strict=True)
        if word.lower() in words and (time := as_number(text)) is not None
    )
    if len(known) < _FEW:
        known = [i * max(described.get("range", (0.0, 0.0))[1], 1.0) / _BINS for i in range(1, _BINS + 1)]
    ends = [known[math.ceil(i * len(known) / _BINS) - 1] for i in range(1, _BINS + 1)]
    return sorted({float(f"{end:.2g}") for end in ends if end > 0})


def _counted(classes: Sequence[str], values: Sequence[str]) -> dict[str, list[float]]:
    """Return the share of each class among public rows, rounded to twentieths; nothing for fewer than 40 rows."""
    counts = [sum(value == name for value in values) for name in classes]
    if sum(counts) < _FEW:
        return {}
    return {"balance": balance(counts)}


def balance(counts: Sequence[float]) -> list[float]:
    """Return the share of each class, rounded to twentieths."""
    return [min(max(round(20 * n / sum(counts)), 1), 19) / 20 for n in counts]


def _described(row: dict[str, str]) -> dict[str, Any]:
    """Return what a row of a data dictionary says of its column; values have | between them."""
    kind, missing = row["type"], row.get("missing", "")
    filled: Any = missing
    values: dict[str, Any] = {"type": kind}
    if kind == "number":
        values["range"], filled = [as_number(row.get(key, "")) for key in ("min", "max")], as_number(missing)
        if None in values["range"]:
            what = f"the data dictionary gives no min and max of {row['column']!r}"
            raise Refused(what, "give both: they are public")
    elif kind == "category":
        values["values"] = [value.strip() for value in row.get("values", "").split("|") if value.strip()]
    elif kind == "yes/no":
        filled = missing.lower() in _WORDS.yes
    return values | ({"missing": filled} if missing else {})
