"""Arrays in .npz files. A damaged file is refused with its path before anything of it is used."""

from __future__ import annotations

import struct
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from privsgp import devices
from privsgp.errors import Refused
from privsgp.files import opened

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from privsgp.data.dataset import Array, Task
    from privsgp.data.hashes import Hashes
    from privsgp.data.persons import Named

NPZ = ("x", "y", "x_test", "y_test", "classes")
# The errors of zipfile, zlib and NumPy for a damaged or crafted file.
_SPOILT = (
    OSError, ValueError, TypeError, AttributeError, EOFError, KeyError, IndexError, OverflowError, MemoryError,
    RecursionError, SyntaxError, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


class Found(NamedTuple):
    """The unchecked content of a file or frame; `classes` and `task` where it says what they are.

    `notes` is what happened to single values of it, for the site's own eyes. Of a table row i of `x` and `y` follows
    from row i of the table and the schema alone, and `rows` are hashes of the rows in the file (`hashes.row_hashes`).
    """

    x: Array
    y: Array | None = None
    x_test: Array | None = None
    y_test: Array | None = None
    classes: Any = None
    task: Task | None = None
    notes: Sequence[str] = ()
    rows: Hashes | None = None
    named: Named | None = None  # whose rows they are


def read_npz(path: Path, needed: Sequence[str] = ("x", "y"), known: Sequence[str] = NPZ) -> dict[str, Array]:
    """The `known` arrays of an npz file, as far as it has them; nothing else is opened.

    Pickled objects are never loaded. privsgp compares the sizes in the archive with the memory
    there is, before it takes any.
    """
    try:
        with opened(path) as file, np.load(file, allow_pickle=False) as archive:
            there = archive.files
            wanted = [key for key in known if key in there]
            refuse_vast(path, sum(archive.zip.getinfo(f"{key}.npy").file_size for key in wanted))
            found = {key: archive[key] for key in wanted}
    except FileNotFoundError:
        raise Refused(f"data: {path} does not exist", "name an .npz file with x, y (and x_test, y_test)") from None
    except Refused:
        raise
    except _SPOILT as error:
        remedy = "write it with numpy.savez(path, x=…, y=…), plain numbers, no object arrays"
        raise Refused(f"data: {path} cannot be read as npz: {error or type(error).__name__}", remedy) from error
    if missing := [key for key in needed if key not in found]:
        names = ", ".join(there[:8]) or "nothing"
        raise Refused(f"{path} has no array {missing[0]}; it holds {names}", "store x, y (and x_test, y_test)")
    return found


def refuse_vast(path: Path | str, claimed: int) -> None:
    """Refuse a file that says it holds more than there is memory for."""
    devices.refuse_vast(claimed, f"data: {path} unpacks to", "name another file, or a machine with more memory")
