"""Results of the accountant on disk, by their exact parameters and the code that computed them.

The folder is $PRIVSGP_CACHE, else $XDG_CACHE_HOME/privsgp, else ~/.cache/privsgp. A cache only ever saves time: a file
that is missing, damaged, of another key or of another version is computed again, and a folder that cannot be written to
is left alone. So is one that is not the user's own or that others may write to: whoever can plant a file would decide
what a site promises (privacy.md, "Peers are adversaries"). The accountant checks again what it reads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from privsgp.files import cache_folder, is_own, own_folder, write

if TYPE_CHECKING:
    from collections.abc import Callable


_LONGEST = 1 << 20  # characters of a file


def remember(question: str, compute: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
    """Return the kept answer to this question, or compute and keep it."""
    kept = recall(question)
    if kept is None:
        keep(question, kept := compute())
    return kept


def recall(question: str, count: int | None = None) -> tuple[float, ...] | None:
    """Return the kept answer to this question, None unless it is there, `count` numbers long and nobody else's."""
    key = f"{question}; {version()}"
    kept = None if (place := own_folder(cache_folder)) is None else _read(place / f"{_digest(key)}.json", key)
    return kept if kept is not None and count in (None, len(kept)) else None


def keep(question: str, answer: tuple[float, ...]) -> None:
    """Keep an answer, where there is a folder for it."""
    key = f"{question}; {version()}"
    with contextlib.suppress(OSError):
        if (place := own_folder(cache_folder, make=True)) is not None:
            write(place / f"{_digest(key)}.json", _text(key, answer))


@lru_cache(maxsize=1)
def version() -> str:
    """Return a digest of the accountant's own source and the library it counts with."""
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    libraries = " ".join(f"{name} {metadata.version(name)}" for name in ("dp-accounting", "numpy", "scipy"))
    return f"{libraries} {hashlib.sha256(sources).hexdigest()}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path, key: str) -> tuple[float, ...] | None:
    """Return the answer in a file, None unless the file is exactly what `keep` made for this key."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            text = file.read(_LONGEST) if is_own(status) and stat.S_ISREG(status.st_mode) else ""
        values = tuple(float.fromhex(value) for value in json.loads(text)["values"])
        return values if text == _text(key, values) else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _text(key: str, values: tuple[float, ...]) -> str:
    """Return a file's text; its checksum covers key and values."""
    shown = [value.hex() for value in values]
    return json.dumps({"key": key, "values": shown, "sha256": _digest(f"{key} {shown}")})
