"""Texts and their classes from files. A text becomes tokens by itself (`tokens.py`); token 0 fills short texts up."""

from __future__ import annotations

import csv
import io
import json
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from privsgp.data.files import Found
from privsgp.data.persons import Named, PersonOptions, named, repeats, warning
from privsgp.data.tokens import VOCABULARY, hashed, pieces
from privsgp.errors import Refused
from privsgp.files import read_bytes
from privsgp.options import Count, Options, option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

ENDINGS = (".jsonl", ".csv", ".tsv")
_LONGEST = 2**31  # bytes of a file


class TextOptions(Options):
    """Texts with a class each: .jsonl, .csv or .tsv.

    Example:
        >>> import privsgp
        >>> privsgp.Text(column="text", label="stars", vocabulary=512).vocabulary
        512

    """

    column: str = option("text", "the key or column that holds the text")
    label: str = option("label", "the key or column that holds the class: a number, or one of labels")
    labels: list[str] | None = option(None, "names of the classes, in the order of their numbers, public")
    tokens: Literal["hashed", "minilm"] = option(
        "hashed", "hashes of words, or the pieces of words that the features minilm need"
    )
    vocabulary: Annotated[int, Field(ge=2)] = option(
        4096, "the number of hashed tokens; token 0 means that there is none"
    )
    length: Count = option(64, "tokens of a text; longer ones are cut, shorter ones filled up")

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return self.vocabulary if self.tokens == "hashed" else VOCABULARY

    def encoded(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return the first `length` tokens of each text, [N, length]; 0 fills short ones up."""
        out = np.zeros((len(texts), self.length), np.int64)
        for row, text in enumerate(texts):
            found = hashed(text, self.vocabulary) if self.tokens == "hashed" else pieces(text, self.length)
            some = list(islice(found, self.length))
            out[row, : len(some)] = some
        return out


def read_texts(
    path: Path, options: TextOptions, *, labelled: bool = True, persons: PersonOptions | None = None, own: bool = False
) -> Found:
    """Read a file's texts as tokens, and their classes and persons unless they are not asked for.

    `own` says that it is a site's own file: then a key that may name persons is told if nobody asked for them.
    """
    found = _rows(path)
    if not found:
        raise Refused(f"{path} has no text", "give at least one" + (", with its class" if labelled else ""))
    texts = [str(_value(where, row, options.column)) for where, row in found]
    if not labelled:
        return Found(options.encoded(texts))
    classes = [_class(where, _value(where, row, options.label), options.labels) for where, row in found]
    rows = [row for _, row in found]
    named = None if persons is None else _whose(path, rows, persons)
    notes = [f"{path}: {line}" for line in _repeating(rows, options)] if own and persons is None else []
    count = None if options.labels is None else len(options.labels)
    return Found(options.encoded(texts), np.array(classes), classes=count, notes=notes, named=named)


def _whose(path: Path, rows: list[dict[str, Any]], persons: PersonOptions) -> Named:
    """Return whose texts they are, and their dates and weights if asked for."""
    keys = persons.columns
    if missing := [key for key in keys if not any(key in row for row in rows)]:
        raise Refused(f"{path} has no {missing[0]!r}", "name the key or column as it is in the file")
    return named({key: [str(row.get(key, "")) for row in rows] for key in keys}, persons, str(path))


def _repeating(rows: list[dict[str, Any]], options: TextOptions) -> Iterator[str]:
    """Yield a warning for each key that may name persons with several texts."""
    for name in (name for name in rows[0] if name not in (options.column, options.label)):
        values = [row.get(name) for row in rows]
        if all(isinstance(value, str | int) for value in values) and repeats(name, len(set(values)), len(rows)):
            yield warning(name, len(set(values)), len(rows))


def _rows(path: Path) -> list[tuple[str, Any]]:
    """Return what each line says, and where it stands."""
    where, rows = str(path), list[tuple[str, Any]]()
    try:
        text = read_bytes(path, _LONGEST).decode()
        if path.suffix == ".jsonl":
            for number, line in enumerate(text.split("\n"), 1):
                where = f"{path}, line {number}"
                rows += [(where, json.loads(line))] if line.strip() else []
            return rows
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if path.suffix == ".tsv" else ",")
        return [(f"{path}, line {reader.line_num}", row) for row in reader]
    except Refused:
        raise
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        remedy = "write UTF-8, .csv, .tsv, or .jsonl with one JSON object a line"
        raise Refused(f"{where} cannot be read: {error}", remedy) from error


def _value(where: str, row: Any, key: str) -> Any:  # noqa: ANN401 - a JSON value
    if not isinstance(row, dict):
        raise Refused(f"{where} is no JSON object", "write one JSON object a line")
    if row.get(key) is None:
        there = ", ".join(str(name) for name in list(row)[:8])
        raise Refused(f"{where} has no {key!r}; it has {there}", "name it in [data.text]: column, label")
    return row[key]


def _class(where: str, value: Any, labels: list[str] | None) -> float | int:  # noqa: ANN401 - a JSON value
    try:
        return float(value) if labels is None else labels.index(str(value))
    except (TypeError, ValueError):
        none_of = "no number" if labels is None else f"none of the public classes {', '.join(labels)}"
        remedy = "name the classes in data.text.labels at all sites, or leave the line out"
        raise Refused(f"{where}: the class {value!r} is {none_of}", remedy) from None
