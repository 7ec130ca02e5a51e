"""The file formats: idx (MNIST), CIFAR-10's binary version, LIBSVM text and npz; values are not scaled.

A damaged file is refused with its path: sizes are compared with what the format promises before anything is used.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zipfile
import zlib
from typing import TYPE_CHECKING

import numpy as np

from privsgp import devices
from privsgp.errors import Refused
from privsgp.files import opened

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from privsgp.data.dataset import Array

CIFAR_RECORDS = 10_000
NPZ = ("x", "y", "x_test", "y_test", "classes")
# What zipfile, zlib and NumPy make of a damaged or crafted file.
_SPOILT = (
    OSError, ValueError, TypeError, AttributeError, EOFError, KeyError, IndexError, OverflowError, MemoryError,
    RecursionError, SyntaxError, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_CIFAR_RECORD = 1 + 3 * 32 * 32
_IDX = 16 + 60_000 * 28 * 28  # bytes of MNIST's training images, its largest file
_LIBSVM = 2**22  # bytes; a9a has 2.3 million


def find(name: str, folders: list[Path], remedy: str) -> Path:
    """The first of `name` and `name.gz` that lies in one of `folders`."""
    candidates = [folder / file for folder in folders for file in (name, f"{name}.gz")]
    for path in candidates:
        if path.is_file():
            return path
    raise Refused(f"{name} is missing; looked for {', '.join(map(str, candidates))}", remedy)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An idx file of unsigned bytes: magic number 0, 0, 8, rank; big-endian sizes; the bytes."""
    raw = _read(path, _IDX)
    if len(raw) < 4 or raw[:3] != b"\0\0\x08" or len(raw) < 4 + 4 * raw[3]:
        raise _damaged(path, "it does not start like an idx file of bytes")
    shape = struct.unpack(f">{raw[3]}I", raw[4 : 4 + 4 * raw[3]])
    body = raw[4 + 4 * raw[3] :]
    if len(body) != math.prod(shape):
        raise _damaged(path, f"its header promises {math.prod(shape)} bytes of data, it holds {len(body)}")
    return np.frombuffer(body, np.uint8).reshape(shape)


def read_cifar(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """One batch of CIFAR-10's binary version: images [10000, 3, 32, 32] and labels [10000]."""
    raw = _read(path, CIFAR_RECORDS * _CIFAR_RECORD + 1)
    if len(raw) != CIFAR_RECORDS * _CIFAR_RECORD:
        raise _damaged(path, f"it should hold {CIFAR_RECORDS * _CIFAR_RECORD} bytes, it holds {len(raw)}")
    records = np.frombuffer(raw, np.uint8).reshape(CIFAR_RECORDS, _CIFAR_RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def read_libsvm(path: Path, features: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """LIBSVM text with labels −1 and +1, which become 0 and 1; inputs are dense [N, features]."""
    lines = [line for line in _read(path, _LIBSVM).split(b"\n") if line.strip()]
    x = np.zeros((len(lines), features), np.float32)
    y = np.zeros(len(lines), np.int64)
    for row, line in enumerate(lines):
        label, *pairs = line.replace(b":", b" ").split()
        try:
            y[row] = {-1.0: 0, 1.0: 1}[float(label)]
            # A column one too far for index 0: as -1 it would pass for the last feature.
            columns = [int(index) - 1 if int(index) > 0 else features for index in pairs[::2]]
            x[row, columns] = [float(value) for value in pairs[1::2]]
        except (ValueError, KeyError, IndexError):
            why = f"sample {row + 1} is not a label ±1 with index:value pairs, index 1 to {features}"
            raise _damaged(path, why) from None
    return x, y


def read_npz(path: Path, needed: tuple[str, ...] = ("x", "y")) -> dict[str, Array]:
    """The arrays x, y, x_test, y_test and classes of an npz file, as far as it has them; nothing else is opened.

    Pickled objects are never loaded, and what an array says of its size is compared with what lies there, and with the
    memory there is, before any is taken.
    """
    try:
        with opened(path) as file, zipfile.ZipFile(file) as archive:
            there = archive.namelist()
            members = {key: archive.getinfo(f"{key}.npy") for key in NPZ if f"{key}.npy" in there}
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


def _read(path: Path, most: int) -> bytes:
    """Return what a file holds, unpacked; no more than `most` bytes are, for a few can unpack to any number."""
    try:
        with opened(path) as file:
            raw = (gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file).read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, str(error)) from error
    if len(raw) > most:
        raise _damaged(path, f"it should hold at most {most:,} bytes")
    return raw


def _damaged(path: Path, why: str) -> Refused:
    return Refused(f"{path} is damaged: {why}", "fetch the file again and compare its size and checksum")
