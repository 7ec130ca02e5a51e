"""Arrays on disk for their owner alone: the folder has mode 0700, its files 0600.

A shelf only ever saves time: a file that is missing or damaged is computed again, and a folder that cannot be written
to is left alone.
"""

from __future__ import annotations

import contextlib
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


def read(path: Path) -> dict[str, NDArray[Any]] | None:
    """Return the arrays of a file, None where there is none to rely on."""
    try:
        with path.open("rb") as file, np.load(file) as kept:
            return dict(kept)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return None


def keep(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a file at once: another process sees all of it or nothing."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as part:  # mode 0600
            np.savez(part, **arrays)  # type: ignore[arg-type]
        Path(part.name).replace(path)
