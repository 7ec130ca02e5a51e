"""Arrays on disk for their owner alone: the folder has mode 0700, its files 0600.

It only ever saves time: a file that is missing or damaged is computed again, and a folder that cannot be written
to is left alone.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.files import own_folder, replace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray


def read(path: Path) -> dict[str, NDArray[Any]] | None:
    """Return the arrays of a file, None where there is none to rely on, or where others may write."""
    try:
        if own_folder(lambda: path.parent) is None:
            return None
        with path.open("rb") as file, np.load(file) as kept:
            return dict(kept)
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error):
        return None


def keep(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a file at once: another process sees all of it or nothing."""
    with contextlib.suppress(OSError):
        if own_folder(lambda: path.parent, make=True) is not None:
            path.parent.chmod(0o700)
            replace(path, lambda temporary: _save(temporary, arrays))


def _save(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
