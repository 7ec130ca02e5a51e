"""Arrays in .npz files. A damaged file is refused with its path before anything of it is used."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING

import numpy as np

from privsgp import devices
from privsgp.errors import Refused
from privsgp.files import opened

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from privsgp.data.dataset import Array

NPZ = ("x", "y", "x_test", "y_test", "classes")
# The errors of zipfile, zlib and NumPy for a damaged or crafted file.
_SPOILT = (
    OSError, ValueError, TypeError, AttributeError, EOFError, KeyError, IndexError, OverflowError, MemoryError,
    RecursionError, SyntaxError, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def read_npz(path: Path, needed: Sequence[str] = ("x", "y"), known: Sequence[str] = NPZ) -> dict[str, Array]:
    """The `known` arrays of an npz file, as far as it has them; nothing else is opened.

    Pickled objects are never loaded, and what an array says of its size is compared with what lies there, and with the
    memory there is, before any is taken.
    """
    try:
        with opened(path) as file, zipfile.ZipFile(file) as archive:
            there = archive.namelist()
            members = {key: archive.getinfo(f"{key}.npy") for key in known if f"{key}.npy" in there}
            refuse_vast(path, sum(member.file_size for member in members.values()))
            found = {key: _array(archive, member) for key, member in members.items()}
    except FileNotFoundError:
        raise Refused(f"data: {path} does not exist", "name an .npz file with x, y (and x_test, y_test)") from None
    except Refused:
        raise
    except _SPOILT as error:
        remedy = "write it with numpy.savez(path, x=…, y=…), plain numbers, no object arrays"
        raise Refused(f"data: {path} cannot be read as npz: {error or type(error).__name__}", remedy) from error
    if missing := [key for key in needed if key not in found]:
        names = ", ".join(name.removesuffix(".npy") for name in there[:8]) or "nothing"
        raise Refused(f"{path} has no array {missing[0]}; it holds {names}", "store x, y (and x_test, y_test)")
    return found


def refuse_vast(path: Path | str, claimed: int) -> None:
    """Refuse a file that says it holds more than there is memory for."""
    devices.refuse_vast(claimed, f"data: {path} unpacks to", "name another file, or a machine with more memory")


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """Return one array; ValueError where it has objects, or its header asks for other than the bytes that follow."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{member.filename} is packed in another way than NumPy's")
    file = io.BytesIO(archive.read(member))
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = header(file)
    found: Array = np.frombuffer(file.getbuffer()[file.tell() :], dtype).reshape(shape, order="F" if fortran else "C")
    if found.shape != shape:  # −1 stands for a rest
        raise ValueError(f"{member.filename} says shape {list(shape)[:8]}")
    return found
