"""Results of the accountant on disk, by their exact parameters and the code that computed them.

The folder is $PRIVSGP_CACHE, else $XDG_CACHE_HOME/privsgp, else ~/.cache/privsgp. A cache only ever saves time: a file
that is missing, damaged, of another key or of another version is computed again, and a folder that cannot be written to
is left alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


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
    key = f"{question}; {version()}"
    try:
        path = folder() / f"{_digest(key)}.json"
    except RuntimeError:  # there is no home folder
        return compute()
    kept = _read(path, key)
    if kept is None:
        kept = compute()
        with contextlib.suppress(OSError):
            _write(path, key, kept)
    return kept


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
        values = tuple(float.fromhex(value) for value in json.loads(path.read_text())["values"])
        return values if path.read_text() == _text(key, values) else None
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


def _write(path: Path, key: str, values: tuple[float, ...]) -> None:
    """Write a file at once: another process sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as part:
        part.write(_text(key, values))
    Path(part.name).replace(path)


def _text(key: str, values: tuple[float, ...]) -> str:
    """Return a file's text; its checksum covers key and values."""
    shown = [value.hex() for value in values]
    return json.dumps({"key": key, "values": shown, "sha256": _digest(f"{key} {shown}")})
