"""Tables: CSV and Parquet files, data frames and Arrow tables become arrays, by a schema and nothing else.

What does not fit is refused by the column's name and the row's number, at the site that holds the table: rows count
from 1, below the header. What was clipped, missing or unknown is counted, for that site alone: no count may
be written where others read. Needs pyarrow: `pip install 'privsgp[tables]'`.
"""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from privsgp.data import dialect as dialects
from privsgp.data import same_records, survival
from privsgp.data.files import Found, refuse_vast
from privsgp.data.hashes import row_hashes
from privsgp.data.persons import Named, PersonOptions, named, repeats, warning
from privsgp.data.schema import OTHER, WORDS, Category, Number, Scaled, Schema, Survival, doubles
from privsgp.data.schema_text import column_line, toml_key, toml_value
from privsgp.errors import Refused
from privsgp.files import opened

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from types import ModuleType

    from numpy.typing import NDArray

    from privsgp.data.dialect import Dialect

    Flags = NDArray[np.bool_]
    Floats = NDArray[np.float64]

SUFFIXES = (".csv", ".parquet")
_DELIMITERS = (",", ";", "\t")
_INDEX = re.compile(r"__index_level_\d+__")  # what pandas makes of row labels
_NUMBER = r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$"
_MOST_COLUMNS = 100_000  # each takes kilobytes, however few rows there are
_SHOWN = 40  # letters of a value in a refusal


def is_table(name: str) -> bool:
    """Tell whether a file of this name is a table."""
    return Path(name).suffix.lower() in SUFFIXES


class Frame(Protocol):
    """A data frame or an Arrow table."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Hand the columns over."""


def is_frame(data: object) -> bool:
    """Tell whether something is a data frame or an Arrow table: whatever speaks Arrow's C interface."""
    return hasattr(data, "__arrow_c_stream__")


COUNTED = {
    "missing": "missing, filled in and marked",
    "clipped": "outside the range, clipped",
    "other": f"not in the list, taken as {OTHER!r}",
}
Count = dict[str, int]  # what happened to the values of one column, by the keys above


def count_notes(counts: dict[str, Count]) -> list[str]:
    """Return what was filled in, clipped or unknown, column by column; for the site's own eyes."""
    return [f"{name}: {n} {COUNTED[what]}" for name, all_ in counts.items() for what, n in all_.items() if n]


def read(
    path: Path, schema: Schema, *, labelled: bool = True, own: bool = False, persons: PersonOptions | None = None
) -> Found:
    """Read a file and encode it; without `labelled` it needs no target, and one that is there is not looked at.

    `own` says that it is a site's own table: privsgp refuses it if the schema was drafted from it. `persons` names the
    column that says whose rows they are.
    """
    raw, table = both(path)
    found = encode(table, schema, str(path), labelled=labelled, own=own, persons=persons)
    if found.rows is None or raw is table:
        return found
    # The book recognises rows by the file as it is: another dialect makes no new records.
    found.rows[:, 0] = row_hashes(raw, raw.column_names)[:, 0]
    return found


def of_frame(
    frame: object, schema: Schema, where: str = "data", *, labelled: bool = True, own: bool = False,
    persons: PersonOptions | None = None,
) -> Found:  # fmt: skip
    """Encode a data frame of pandas or polars, or an Arrow table; `own` and `persons` as for `read`."""
    pa = _pyarrow()
    try:
        table = pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise Refused(f"{where}: {_brief(error)}", "give each column values of one type") from error
    unnamed = [name for name in table.column_names if _INDEX.fullmatch(name)]
    return encode(table.drop_columns(unnamed), schema, where, labelled=labelled, own=own, persons=persons)


def read_arrow(path: Path) -> Any:  # noqa: ANN401 - pyarrow has no types
    """Read a file's columns by the dialect beside it, if there is one: of a CSV file as texts."""
    return both(path)[1]


def both(path: Path) -> tuple[Any, Any]:
    """Return a file's columns as they are in it, and by its dialect."""
    dialect = dialects.of(path)
    raw = _raw(path, dialect or dialects.Dialect(), as_bytes=False)
    if dialect is None:
        return raw, raw
    known = raw
    if dialect.encoding != "utf-8":
        raw = _raw(path, dialect, as_bytes=True)  # the encoding that a dialect names changes no row
    return raw, dialect.applied(known, str(dialects.path_for(path)))


def _raw(path: Path, dialect: Dialect, *, as_bytes: bool) -> Any:  # noqa: ANN401 - pyarrow has no types
    pa, suffix = _pyarrow(), path.suffix.lower()
    if suffix not in SUFFIXES:
        remedy = f"name a file that ends in {' or '.join(SUFFIXES)}; for images and texts, see docs/howto/data.md"
        raise Refused(f"data: {path} is not a table", remedy)
    try:
        table = _csv(path, dialect, as_bytes=as_bytes) if suffix == ".csv" else _parquet(path)
        table.validate(full=True)  # a crafted file may say that a text lies beyond its end
    except FileNotFoundError:
        raise Refused(f"data: {path} does not exist", "data.path is relative to run.toml") from None
    except Refused:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        what = f"data: {path} cannot be read as {suffix[1:]}: {_brief(error)}"
        raise Refused(what, "write the file again, or as .csv") from error
    _refuse_doubles(table.column_names, str(path))
    return table


def _refuse_doubles(names: list[str], where: str) -> None:
    if twice := doubles(names):
        raise Refused(f"{where}: two columns are called {twice[0]!r}", "give each column a name of its own")


def _csv(path: Path, dialect: Dialect, *, as_bytes: bool) -> Any:  # noqa: ANN401 - pyarrow has no types
    from pyarrow import BufferReader, string
    from pyarrow.csv import ConvertOptions, ParseOptions, ReadOptions, read_csv

    with opened(path) as file:
        refuse_vast(path, 3 * path.stat().st_size)
        raw = file.read()
    raw = _utf8(path, raw, dialect.encoding, as_bytes=as_bytes)
    names, delimiter = _header(path, raw, dialect.separator)
    problems: list[str] = []

    def odd(row: Any) -> str:  # noqa: ANN401 - pyarrow's own
        problems.append(f"row {row.number - 1 if row.number else '?'} has {row.actual_columns} values")
        return "skip"

    table = read_csv(
        BufferReader(raw),
        read_options=ReadOptions(column_names=names, skip_rows=1, use_threads=False),  # one thread: rows have numbers
        parse_options=ParseOptions(delimiter=delimiter, newlines_in_values=b'"' in raw, invalid_row_handler=odd),
        convert_options=ConvertOptions(column_types=dict.fromkeys(names, string()), null_values=[]),
    )
    if problems:
        what = f"{path}: {problems[0]} for {len(names)} columns ({len(problems)} such rows)"
        raise Refused(what, f"give each row one value a column, with {delimiter!r} between; quote texts that have one")
    return table


def _utf8(path: Path, raw: bytes, encoding: str, *, as_bytes: bool) -> bytes:
    """Return the text in UTF-8 without a byte-order mark; refuse bytes that the encoding does not have.

    With `as_bytes` a byte that is not part of UTF-8 becomes a letter that depends on the byte alone.
    """
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    at, what = raw.find(b"\0"), "a zero byte"
    if raw.count(b'"') % 2:
        at, what = raw.rfind(b'"'), "a quote is not closed"
    try:
        text = _by_bytes(raw) if as_bytes else raw.decode(encoding)
    except UnicodeDecodeError as error:
        at, what, text = error.start, f"byte {raw[error.start]:#04x} is not {encoding.upper()}", ""
    if at >= 0:
        line = raw.count(b"\n", 0, at) + 1
        own = dialects.path_for(path).name
        remedy = f'write encoding = "cp1252" (Windows) or "latin-1" into {own}, or save the table as CSV in UTF-8'
        remedy = "write a quote in a quoted text twice" if "quote" in what else remedy
        raise Refused(f"{path}, line {line}: {what}", remedy)
    return text.encode()


def _by_bytes(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _header(path: Path, raw: bytes, separator: str | None) -> tuple[list[str], str]:
    """Return the names in the first line, and what stands between them."""
    first = raw.split(b"\n", 1)[0].decode().rstrip("\r")
    if not first.strip() or "\r" in first:
        what = "a carriage return among the names" if first.strip() else "no header"
        raise Refused(f"{path}, line 1: {what}", "begin with a line of column names, and end lines with LF or CR LF")
    delimiter = separator or max(_DELIMITERS, key=first.count)
    if (count := first.count(delimiter) + 1) > _MOST_COLUMNS:
        raise Refused(f"{path} has {count:,} columns", f"take at most {_MOST_COLUMNS:,}")
    return [name.strip() for name in next(csv.reader([first], delimiter=delimiter))], delimiter


def _parquet(path: Path) -> Any:  # noqa: ANN401 - pyarrow has no types
    from pyarrow.parquet import ParquetFile

    with opened(path) as file:
        found = ParquetFile(file)
        m = found.metadata
        claimed = sum(m.row_group(i).total_byte_size for i in range(m.num_row_groups))
        refuse_vast(path, max(claimed, 8 * m.num_rows * m.num_columns))
        return found.read(use_threads=False)


def encode(
    table: Any,  # noqa: ANN401 - Arrow's
    schema: Schema,
    where: str,
    *,
    labelled: bool = True,
    own: bool = False,
    persons: PersonOptions | None = None,
) -> Found:
    """Turn an Arrow table into arrays; refuse columns and values that are not as the schema says."""
    _refuse_doubles(table.column_names, where)
    if own:
        refuse_drafted(table, schema, where)
    refuse_absent(table, schema, where, labelled=labelled)
    refuse_unknown(table, schema, where)
    if not table.num_rows:
        raise Refused(f"{where} has no rows", "give at least one record")
    refuse_vast(where, 16 * table.num_rows * schema.width)  # float64 first, then float32, twice
    counts: dict[str, Count] = {}
    blocks: list[NDArray[np.float32]] = []
    for name in schema.encoded:
        block, counts[name] = encode_column(table, schema, where, name)
        blocks.append(block)
    y = None
    if labelled:
        y, counts[schema.target.columns[0]] = encode_target(table, schema, where)
    rows = row_hashes(table, schema.encoded) if labelled else None
    names = None if persons is None else whose(table, schema, where, persons)
    found = repeating(table, schema) if own and persons is None else ()
    notes = [*(warning(name, count, table.num_rows) for name, count in found), *count_notes(counts)]
    return Found(
        np.concatenate(blocks, 1), y, classes=schema.classes, task=schema.task, notes=[f"{where}: {n}" for n in notes],
        rows=rows, named=names,
    )  # fmt: skip


def repeating(table: Any, schema: Schema, used: Collection[str] = ()) -> list[tuple[str, int]]:  # noqa: ANN401 - Arrow's
    """Return columns that are no feature and may name persons with several rows, and how many names they have."""
    features, found = {*schema.target.columns, *schema.encoded, *used}, list[tuple[str, int]]()
    for name in (name for name in table.column_names if name not in features):
        column, rows = table.column(name), table.num_rows
        kind = _any(column.type, "string", "large_string", "integer") and not column.null_count
        if kind and repeats(name, count := len(column.unique()), rows):
            found.append((name, count))
    return found


def whose(table: Any, schema: Schema, where: str, persons: PersonOptions) -> Named:  # noqa: ANN401 - Arrow's
    """Return whose rows they are, and their dates and weights if asked for."""
    if missing := [name for name in persons.columns if name not in table.column_names]:
        raise Refused(f"{where} has no column {_names(missing)}", "name the column as it is after the dialect")
    found = {name: np.array(table.column(name).to_pylist(), object) for name in persons.columns}
    return named(found, persons, where, schema.missing)


def refuse_drafted(table: Any, schema: Schema, where: str) -> None:  # noqa: ANN401 - Arrow's
    """Refuse a site's table that the schema was drafted from."""
    used = [*schema.encoded, *schema.target.columns]
    if schema.drafted is not None and same_records.drafted_from(schema.drafted, table, used):
        remedy = "draft the schema from a table that no site trains on; do not send this one if the rows are private"
        raise Refused(f"{where}: the schema was drafted from these rows, and shows everybody their ranges", remedy)


def refuse_absent(table: Any, schema: Schema, where: str, *, labelled: bool = True) -> None:  # noqa: ANN401 - Arrow's
    """Refuse a table without a column that the schema uses."""
    needed, there = [*schema.encoded, *(schema.target.columns if labelled else [])], table.column_names
    if missing := [name for name in needed if name not in there]:
        what = f"{where} has no column {_names(missing)}; it has {_names(there)}"
        remedy = (
            f'write in the dialect beside the table: [columns] "THIS SITE\'S NAME" = {toml_value(missing[0])}, and so '
            "on for columns with other names"
        )
        if missing := [name for name in missing if name in schema.encoded]:  # a target cannot be absent
            remedy += f"; absent = {toml_value(missing)} for columns that this site lacks"
        raise Refused(what, remedy)


def refuse_unknown(table: Any, schema: Schema, where: str) -> None:  # noqa: ANN401 - Arrow's
    """Refuse a table with a column that is not in the schema."""
    known = {*schema.target.columns, *schema.columns}
    if extra := [name for name in table.column_names if name not in known]:
        line = f'{toml_key(extra[0])} = {{ type = "ignored" }}'
        remedy = f"write in the dialect beside the table: drop = {toml_value(extra)}, or agree in the schema on: {line}"
        raise Refused(f"{where} has a column {_names(extra)} that is not in the schema", remedy)


def _names(names: list[str]) -> str:
    return ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


class Values:
    """One column of a table, to be read as the schema says: its texts without blanks around them, or its numbers."""

    def __init__(self, column: Any, schema: Schema, where: str, wanted: str) -> None:  # noqa: ANN401 - Arrow's
        import pyarrow.compute as pc

        column = column.combine_chunks()
        if _any(column.type, "dictionary"):
            words = column.dictionary  # polars' are views of texts, of which Arrow cannot take some
            words = words.cast("large_string") if _any(words.type, "string_view") else words
            column = words.take(column.indices)
        self.column, self.where, self.gaps = column, where, schema.missing
        self.is_text = _any(column.type, "string", "large_string", "string_view")
        known = ("floating", "decimal", "integer", "null", *(() if wanted == "number" else ("boolean",)))
        if not self.is_text and not _any(column.type, *known):
            raise Refused(f"{where} is of type {column.type}, not {wanted}", "store it as the schema says")
        if _any(column.type, "floating", "decimal"):
            column = column.cast("float64", safe=False)
            column = pc.if_else(pc.is_nan(column), None, column)
        self.values = column

    def wrong(self, bad: Flags, what: str, remedy: str) -> Refused:
        """Say which row is wrong, and how many."""
        row = int(bad.argmax())
        value = str(self.column[row].as_py())
        more = f" ({int(bad.sum())} such rows)" if bad.sum() > 1 else ""
        return Refused(f"{self.where}, row {row + 1}: {value[:_SHOWN]!r} {what}{more}", remedy)

    def codes(self, known: Sequence[str], *, lower: bool = False) -> tuple[NDArray[np.int64], Flags]:
        """Return each value's place in a list, −1 where it has none, and where one is missing.

        With `lower` capital letters do not matter.
        """
        import pyarrow.compute as pc

        texts, missing = self.texts(known, lower=lower)
        codes = pc.fill_null(pc.index_in(texts, _pyarrow().array(known, "string")), -1)
        return np.where(missing, -1, codes.to_numpy(zero_copy_only=False)).astype(np.int64), missing

    def numbers(self) -> tuple[Floats, Flags]:
        """Return numbers, and where one is missing; refuse what is none, and what has no end."""
        import pyarrow.compute as pc

        if self.is_text:
            texts, missing = self.texts()
            bad = ~missing & ~_flags(pc.match_substring_regex(texts, _NUMBER))
            if bad.any():
                remedy = (
                    "write decimals with a point, and thousands and units not at all; or declare the format in the "
                    'table\'s dialect: decimal = ",", thousands = ".", and missing = ["CODE"] for a missing value'
                )
                raise self.wrong(bad, "is no number", remedy)
            written = np.where(missing, "0", np.asarray(texts.to_pylist(), dtype=object)).astype(np.str_)
            return written.astype(np.float64), missing
        missing = _flags(pc.is_null(self.values))
        found = self.values.cast("float64", safe=False).fill_null(0.0).to_numpy(zero_copy_only=False)
        if (bad := ~np.isfinite(found)).any():
            raise self.wrong(bad, "is not finite", "correct it, or leave the value out")
        return found, missing

    def texts(self, kept: Sequence[str] = (), *, lower: bool = False) -> tuple[Any, Flags]:
        """Return texts, 1.0 of a column with gaps as 1, and where one is missing; those `kept` are never."""
        import pyarrow.compute as pc

        texts, gaps = pc.utf8_trim_whitespace(self.values.cast("string")), list(self.gaps)
        if lower:
            texts, gaps = pc.utf8_lower(texts), [gap.lower() for gap in gaps]
        gone = pc.is_in(texts, _pyarrow().array([gap for gap in gaps if gap not in kept], "string"))
        missing = pc.or_(pc.fill_null(gone, fill_value=False), pc.is_null(texts))
        return pc.fill_null(texts, ""), _flags(missing)


def _any(kind: Any, *names: str) -> bool:  # noqa: ANN401 - Arrow's
    types: ModuleType = _pyarrow().types
    return any(getattr(types, f"is_{name}", lambda _: False)(kind) for name in names)


def _flags(column: Any) -> Flags:  # noqa: ANN401 - Arrow's
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=bool)


def encode_column(table: Any, schema: Schema, where: str, name: str) -> tuple[NDArray[np.float32], Count]:  # noqa: ANN401
    """Return the features [N, ·] of a column, its indicator last, and what was counted."""
    column = schema.encoded[name]
    values = Values(table.column(name), schema, f"{where}: column {name!r}", column.type)
    clipped = other = 0
    if isinstance(column, Number):
        found, missing = values.numbers()
        scaled, outside = _scaled(np.where(missing, column.missing or 0.0, found), column)
        features, clipped = scaled[:, None], int((outside & ~missing).sum())
    elif isinstance(column, Category):
        codes, missing = values.codes(column.known)
        unknown = (codes < 0) & ~missing
        codes[unknown], other = column.known.index(OTHER), int(unknown.sum())
        codes[missing] = 0 if column.missing is None else column.known.index(column.missing)
        features = np.zeros((len(codes), len(column.known)))
        features[np.arange(len(codes)), codes] = 1
    else:
        codes, missing = values.codes([word.lower() for word in (*column.yes, *column.no)], lower=True)
        if (bad := (codes < 0) & ~missing).any():
            remedy = f"correct it, or write in the dialect beside the table: {word_line(name, 'yes')}"
            raise values.wrong(bad, "is neither yes nor no", remedy)
        yes = np.where(missing, column.missing or False, codes < len(column.yes))
        features = np.where(yes, 1.0, -1.0)[:, None]
    if missing.any() and column.missing is None:
        middle = column.affine[0] if isinstance(column, Number) else OTHER if isinstance(column, Category) else False
        remedy = f"leave the row out, or agree in the schema on: {column_line(schema, name, missing=middle)}"
        raise values.wrong(missing, "is a missing value", remedy)
    marked = [features] if column.missing is None else [features, missing[:, None]]
    counts = {"missing": int(missing.sum()), "clipped": clipped, "other": other}
    return np.concatenate(marked, 1).astype(np.float32), counts


def _scaled(values: Floats, column: Scaled) -> tuple[Floats, Flags]:
    """Clip to the public range and put on the public scale."""
    (low, high), (centre, scale) = column.limits, column.affine
    return (np.clip(values, low, high) - centre) / scale, (values < low) | (values > high)


def word_line(name: str, word: str) -> str:
    """Return the line of a dialect that maps a site's word to the schema's; the site puts its own word in."""
    return f'[values] {toml_key(name)} = {{ "THIS SITE\'S WORD" = {toml_value(word)} }}'


def encode_target(
    table: Any,  # noqa: ANN401 - Arrow's
    schema: Schema,
    where: str,
) -> tuple[NDArray[np.int64] | NDArray[np.float32], Count]:
    """Return the targets, and what was counted."""
    target, wanted = schema.target, "number" if schema.classes is None else "classes"
    if isinstance(target, Survival):
        return _survival(table, schema, target, where)
    values = Values(table.column(target.column), schema, f"{where}: target {target.column!r}", wanted)
    found, missing = values.numbers() if target.classes is None else values.codes(target.classes)
    if missing.any():
        raise values.wrong(missing, "is a missing value", "leave out rows whose target is not known")
    if target.classes is None:
        scaled, clipped = _scaled(found.astype(np.float64), target)
        return scaled.astype(np.float32), {"missing": 0, "clipped": int(clipped.sum()), "other": 0}
    if (bad := found < 0).any():
        line = word_line(target.column, target.classes[0])
        remedy = f"the schema lists {_names(target.classes)}; write in the dialect beside the table: {line}"
        raise values.wrong(bad, "is none of the classes", remedy)
    return found.astype(np.int64), dict.fromkeys(COUNTED, 0)


def _survival(table: Any, schema: Schema, target: Survival, where: str) -> tuple[NDArray[np.float32], Count]:  # noqa: ANN401
    """Return the targets of survival, and how many were seen beyond the last bin."""
    remedy = "leave out persons whose time or event is not known; correct others"
    name = f"{where}: target {target.time!r}"
    times = Values(table.column(target.time), schema, name, "number")
    time, missing = times.numbers()
    if (bad := missing | (time < 0)).any():
        raise times.wrong(bad, "is no time since a person's start", remedy)
    words = Values(table.column(target.event), schema, f"{where}: target {target.event!r}", "yes/no")
    codes, missing = words.codes([*WORDS.yes, *WORDS.no], lower=True)
    if (bad := (codes < 0) | missing).any():
        mapped = f"or write in the dialect beside the table: {word_line(target.event, 'yes')}"
        raise words.wrong(bad, "is neither yes nor no", f"{remedy}; {mapped}")
    y = survival.targets(time, codes < len(WORDS.yes), target.bins)
    return y, {"missing": 0, "clipped": int((time > target.bins[-1]).sum()), "other": 0}


def as_number(text: str) -> float | None:
    """Return the number that a text is; None where it is none, or has no end."""
    value = float(text) if re.match(_NUMBER, text) else math.inf
    return value if math.isfinite(value) else None


def _brief(error: BaseException) -> str:
    """Return what an error says, in one short line."""
    return " ".join((str(error) or type(error).__name__).split())[:200]


def _pyarrow() -> Any:  # noqa: ANN401 - it has no types
    try:
        import pyarrow as pa
    except ImportError as error:
        raise Refused("tables need pyarrow, which is not installed", "pip install 'privsgp[tables]'") from error
    return pa
