"""Texts as tokens, by a public rule: lower-case words, each a hash of itself within a vocabulary of a fixed size.

Nothing is learnt from anybody's texts: no word list, no counts. Two words may share a token; a larger vocabulary makes
that rarer. Token 0 fills short texts up.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from privsgp.data.subwords import VOCABULARY, subwords
from privsgp.errors import Refused
from privsgp.files import opened
from privsgp.options import Count, Options, option

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

ENDINGS = (".jsonl", ".csv", ".tsv")
_WORD = re.compile(r"\w+|[^\w\s]")
_LONGEST = 2**31  # bytes of a file


class TextOptions(Options):
    """Texts with a class each: .jsonl, .csv or .tsv."""

    column: str = option("text", "the key or column that holds the text")
    label: str = option("label", "the one that holds the class: a number, or one of labels")
    labels: list[str] | None = option(None, "names of the classes, in the order of their numbers, public")
    tokens: Literal["hashed", "wordllama"] = option(
        "hashed", "words by their hashes, or the sub-words of the wordllama package, for features of that name"
    )
    vocabulary: Annotated[int, Field(ge=2)] = option(4096, "hashed tokens there are, 0 for nothing among them")
    length: Count = option(64, "tokens of a text; longer ones are cut, shorter ones filled up")

    @property
    def size(self) -> int:
        """How many tokens there are."""
        return self.vocabulary if self.tokens == "hashed" else VOCABULARY

    def encoded(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return texts as tokens."""
        if self.tokens == "hashed":
            return tokens(texts, self.vocabulary, self.length)
        return subwords(texts, self.length)


def tokens(texts: Sequence[str], vocabulary: int, length: int) -> NDArray[np.int64]:
    """Return the first `length` words of each text as tokens, [N, length]."""
    out = np.zeros((len(texts), length), np.int64)
    for row, text in enumerate(texts):
        words = [match.group() for match, _ in zip(_WORD.finditer(text.lower()), range(length), strict=False)]
        out[row, : len(words)] = [_token(word, vocabulary) for word in words]
    return out


@lru_cache(maxsize=2**16)
def _token(word: str, vocabulary: int) -> int:
    digest = hashlib.blake2b(word.encode(errors="replace"), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % (vocabulary - 1)


def read_texts(
    path: Path, options: TextOptions, *, labelled: bool = True
) -> tuple[NDArray[np.int64], NDArray[Any] | None]:
    """Read a file's texts as tokens, and their classes unless they are not asked for."""
    try:
        with opened(path) as file:
            raw = file.read(_LONGEST + 1)
        if len(raw) > _LONGEST:
            raise Refused(f"{path} has more than {_LONGEST:,} bytes", "divide it, or bring tokens as an .npz file")
        found = list(_rows(path, raw.decode()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise Refused(f"{path} cannot be read: {error}", "write it as UTF-8 .jsonl, .csv or .tsv") from error
    if not found:
        raise Refused(f"{path} has no text", "give at least one" + (", with its class" if labelled else ""))
    texts = [str(_value(path, number, row, options.column)) for number, row in found]
    if not labelled:
        return options.encoded(texts), None
    labels = [_class(path, number, _value(path, number, row, options.label), options.labels) for number, row in found]
    return options.encoded(texts), np.array(labels)


def _rows(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    if path.suffix == ".jsonl":
        yield from _objects(path, text)
    else:
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if path.suffix == ".tsv" else ",")
        for row in reader:
            yield reader.line_num, row


def _objects(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Refused(f"{path}, line {number}: {error}", "write one JSON object a line") from error
        if not isinstance(row, dict):
            raise Refused(f"{path}, line {number} is no JSON object", "write one JSON object a line")
        yield number, row


def _value(path: Path, number: int, row: dict[str, Any], key: str) -> Any:  # noqa: ANN401 - a JSON value
    if row.get(key) is None:
        there = ", ".join(str(name) for name in list(row)[:8])
        raise Refused(f"{path}, line {number} has no {key!r}; it has {there}", "name it in [data.text]: column, label")
    return row[key]


def _class(path: Path, number: int, value: Any, labels: list[str] | None) -> float | int:  # noqa: ANN401 - a JSON value
    if labels is not None:
        if str(value) not in labels:
            raise Refused(
                f"{path}, line {number}: {value!r} is none of the public classes {', '.join(labels)}",
                "name it in data.text.labels at all sites, or leave the line out",
            )
        return labels.index(str(value))
    try:
        return float(value)
    except (TypeError, ValueError):
        raise Refused(
            f"{path}, line {number}: the class {value!r} is no number", "list the classes in data.text.labels"
        ) from None
