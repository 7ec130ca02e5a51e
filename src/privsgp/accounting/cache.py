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
import tempfile
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


_LONGEST = 1 << 20  # characters of a file


def folder() -> Path:
    """Return where results are kept."""
    if own := os.environ.get("PRIVSGP_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "privsgp"


def private_folder() -> Path | None:
    """Return where features of private samples are kept, for their owner alone; None without a home folder."""
    try:
        return folder() / "features"
    except RuntimeError:
        return None


def remember(question: str, compute: Callable[[], tuple[float, ...]]) -> tuple[float, ...]:
    """Return the kept answer to this question, or compute and keep it."""
    kept = recall(question)
    if kept is None:
        keep(question, kept := compute())
    return kept


def recall(question: str, count: int | None = None) -> tuple[float, ...] | None:
    """Return the kept answer to this question, None unless it is there, `count` numbers long and nobody else's."""
    key = f"{question}; {version()}"
    kept = None if (place := _own_folder()) is None else _read(place / f"{_digest(key)}.json", key)
    return kept if kept is not None and count in (None, len(kept)) else None


def keep(question: str, answer: tuple[float, ...]) -> None:
    """Keep an answer, where there is a folder for it."""
    key = f"{question}; {version()}"
    with contextlib.suppress(OSError):
        if (place := _own_folder(make=True)) is not None:
            _write(place / f"{_digest(key)}.json", key, answer)


def _own_folder(*, make: bool = False) -> Path | None:
    """Return the folder if it is the user's own and closed to others, None otherwise."""
    try:
        place = folder()
        if make:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        return place if _own(place.stat()) else None
    except (OSError, RuntimeError):  # there is none, or no home folder
        return None


def _own(status: os.stat_result) -> bool:
    """Whether a file or folder is the user's own and nobody else may write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@lru_cache(maxsize=1)
def version() -> str:
    """Return a digest of the accountant's own source and the library it counts with."""
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    libraries = " ".join(f"{name} {metadata.version(name)}" for name in ("dp-accounting", "numpy", "scipy"))
    return f"{libraries} {hashlib.sha256(sources).hexdigest()}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path, key: str) -> tuple[float, ...] | None:
    """Return the answer in a file, None unless the file is exactly what `_write` made for this key."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            text = file.read(_LONGEST) if _own(status) and stat.S_ISREG(status.st_mode) else ""
        values = tuple(float.fromhex(value) for value in json.loads(text)["values"])
        return values if text == _text(key, values) else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _write(path: Path, key: str, values: tuple[float, ...]) -> None:
    """Write a file at once: another process sees all of it or nothing."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as part:
        part.write(_text(key, values))
    Path(part.name).replace(path)


def _text(key: str, values: tuple[float, ...]) -> str:
    """Return a file's text; its checksum covers key and values."""
    shown = [value.hex() for value in values]
    return json.dumps({"key": key, "values": shown, "sha256": _digest(f"{key} {shown}")})
