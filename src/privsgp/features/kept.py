"""Arrays on disk for their owner alone: features of private samples are as private as the samples.

The folder has mode 0700, its files 0600. It only ever saves time: privsgp computes again what is missing or damaged,
and uses no folder that others can write to.
"""

from __future__ import annotations

import contextlib
import os
import stat
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.files import replace, user_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    Arrays = dict[str, NDArray[Any]]


def folder() -> Path | None:
    """Return $PRIVSGP_CACHE, $XDG_CACHE_HOME/privsgp or ~/.cache/privsgp; None without a home folder."""
    try:
        return user_folder("PRIVSGP_CACHE", "XDG_CACHE_HOME", ".cache", "privsgp") / "features"
    except RuntimeError:
        return None


def once(path: Path | None, make: Callable[[], Arrays]) -> Arrays:
    """Return the arrays of a file; if there is none to rely on, make them and write it."""
    if path is None:
        return make()
    with contextlib.suppress(OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error):
        if _is_own(path.parent):
            with path.open("rb") as file, np.load(file) as found:
                return dict(found)
    made = make()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _is_own(path.parent):
            path.parent.chmod(0o700)
            replace(path, lambda temporary: _save(temporary, made))
    return made


def _is_own(place: Path) -> bool:
    status = place.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _save(path: Path, arrays: Arrays) -> None:
    path.touch(0o600)
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
