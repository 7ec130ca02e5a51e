"""How one site writes its tables: its encoding, decimal comma, column names and codes, in a file beside the table.

`aachen.dialect.toml` lies beside `aachen.csv` and says how to read it. It is the site's own: no part of it is in a
schema, an agreement, a message or a run folder. Afterwards the table looks as the schema expects it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError

from privsgp.data.schema import Text, doubles
from privsgp.data.schema_text import refusal
from privsgp.errors import Refused
from privsgp.files import read_toml
from privsgp.options import Options, option

if TYPE_CHECKING:
    from pathlib import Path

_SEE = "see docs/howto/tables.md"
_MARK = r"^[+-]?[\d{0}]+(?:[{1}]\d*)?(?:[eE][+-]?\d+)?$"  # a number: thousands, then the decimal mark


class Dialect(Options):
    """One site's way to write a table."""

    encoding: Literal["utf-8", "cp1252", "latin-1", "iso-8859-15", "cp1250", "cp850"] = option("utf-8", "of a CSV file")
    separator: Literal[",", ";", "\t", "|"] | None = option(None, "between values; default: found in the first line")
    decimal: Literal[".", ","] = option(".", "the decimal mark")
    thousands: Literal["", ".", ",", " ", "'"] = option("", "the mark between thousands")
    missing: list[str] = option([], 'codes for a missing value in every column: ["k.A.", "-9"]')
    absent: list[str] = option([], "columns of the schema that this site does not have: every value is missing")
    columns: dict[str, str] = option({}, "this site's name of a column = the schema's name")
    values: dict[str, dict[str, Text]] = option({}, "by the schema's name of a column: this site's word = the schema's")
    drop: Annotated[list[str], Field(max_length=100_000)] = option([], "this site's columns that nobody else has")

    def applied(self, table: Any, where: str) -> Any:  # noqa: ANN401 - Arrow's
        """Return an Arrow table in the words of the schema; refuse names that the table does not have."""
        import pyarrow as pa

        there = table.column_names
        if unknown := [name for name in (*self.columns, *self.drop) if name not in there]:
            raise Refused(f"{where}: the table has no column {unknown[0]!r}", "name columns as the table does")
        table = table.drop_columns(self.drop)
        names = [self.columns.get(name, name) for name in table.column_names]
        if twice := doubles([*names, *self.absent]):
            raise Refused(f"{where}: two columns become {twice[0]!r}", "rename each column to a name of its own")
        if unknown := [name for name in self.values if name not in names]:
            raise Refused(f"{where}: [values] has no column {unknown[0]!r}", "use the schema's column names there")
        columns = [self._column(table.column(i), name) for i, name in enumerate(names)]
        gone = pa.nulls(table.num_rows, pa.string())
        return pa.table([*columns, *[gone] * len(self.absent)], [*names, *self.absent])

    def _column(self, column: Any, name: str) -> Any:  # noqa: ANN401 - Arrow's
        import pyarrow as pa
        import pyarrow.compute as pc

        words, changes = self.values.get(name, {}), self.decimal != "." or self.thousands
        text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        if not (words or self.missing or (changes and text)):
            return column
        texts = pc.utf8_trim_whitespace(column.cast("string"))
        gone = pc.is_in(texts, pa.array([code for code in self.missing if code not in words], "string"))
        if words:
            found = pc.index_in(texts, pa.array(list(words), "string"))
            texts = pc.coalesce(pc.take(pa.array(list(words.values()), "string"), found), texts)
        if changes and text:
            thousands, decimal = re.escape(self.thousands), re.escape(self.decimal)
            plain = pc.replace_substring(texts, self.thousands, "") if self.thousands else texts
            plain = pc.replace_substring(plain, self.decimal, ".")
            texts = pc.if_else(pc.match_substring_regex(texts, _MARK.format(thousands, decimal)), plain, texts)
        return pc.if_else(pc.fill_null(gone, fill_value=False), pa.scalar(None, "string"), texts)


def path_for(path: Path) -> Path:
    """Return where the dialect of a table lies, if it has one."""
    return path.with_suffix(".dialect.toml")


def of(path: Path) -> Dialect | None:
    """Read the dialect beside a table; None: there is none."""
    own = path_for(path)
    if not own.exists():
        return None
    try:
        return Dialect.model_validate(read_toml(own, "dialect", _SEE))
    except ValidationError as error:
        raise refusal(error, str(own)) from error
