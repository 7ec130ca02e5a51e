"""Arrays larger than memory: a .npy file stays where it is, and of it the rows are read that a batch has drawn.

Values are checked once, some rows at a time, when the file is opened; a batch is read and scaled as `from_arrays` does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privsgp.errors import Refused
from privsgp.files import opened

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from torch import Tensor

AT_ONCE = 2**24  # bytes that are looked at together


class Mapped:
    """Rows [N, …] of one or more files, in place of an array: indexed by rows, it reads them, as float32 or tokens."""

    ndim: int

    def __init__(self, files: Sequence[NDArray[Any]], *, tokens: bool = False) -> None:
        self.files, self.tokens = list(files), tokens
        self._ends = np.cumsum([len(file) for file in files])
        self.shape = (int(self._ends[-1]), *files[0].shape[1:])
        self.ndim = len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What rows are read as."""
        return np.dtype(np.int64 if self.tokens else np.float32)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[Any]:
        wanted = np.arange(len(self))[rows]
        out = np.empty((len(wanted), *self.shape[1:]), self.dtype)
        owner = np.searchsorted(self._ends, wanted, side="right")
        for number in np.unique(owner):
            mine = owner == number
            first = self._ends[number] - len(self.files[number])
            out[mine] = scaled(self.files[number][wanted[mine] - first], tokens=self.tokens)
        return out

    def beside(self, other: Mapped) -> Mapped:
        """Return the rows of this, then those of another."""
        return Mapped([*self.files, *other.files], tokens=self.tokens)


@dataclass(frozen=True, eq=False)
class MappedRows:
    """The nodes' rows of mapped files, in place of a tensor [m, J + 1, …]: `read` brings those of a batch."""

    source: Mapped
    index: NDArray[np.int64]  # [m, J + 1] rows of the source; −1 is nobody's
    dtype: torch.dtype
    device: torch.device

    @property
    def shape(self) -> torch.Size:
        """As a tensor's."""
        return torch.Size((*self.index.shape, *self.source.shape[1:]))

    def read(self, rows: Tensor) -> Tensor:
        """Return the samples rows[i, j] of each node i; zeros where they are nobody's."""
        wanted = np.take_along_axis(self.index, rows.cpu().numpy(), 1)
        found = self.source[np.maximum(wanted, 0).ravel()].reshape(*wanted.shape, *self.source.shape[1:])
        found[wanted < 0] = 0
        there = torch.from_numpy(found)
        return there.to(self.device, self.dtype if there.is_floating_point() else None)

    def placed(self, device: torch.device, dtype: torch.dtype) -> MappedRows:
        """Return the same, read onto a device, real numbers in a precision."""
        return replace(self, device=device, dtype=torch.int64 if self.source.tokens else dtype)


def open_array(path: Path) -> NDArray[Any]:
    """Map a .npy file; refuse one that is none, or holds objects."""
    try:
        opened(path).close()
        found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise Refused(f"data: {path} does not exist", "write it with numpy.save") from None
    except (OSError, ValueError, EOFError, SyntaxError, TypeError) as error:
        raise Refused(f"data: {path} cannot be read as npy: {error}", "write it with numpy.save") from error
    return found


def mapped(array: NDArray[Any], key: str, vocabulary: int | None) -> Mapped:
    """Check a mapped array, some rows at a time, and leave it where it is."""
    from privsgp.data.dataset import inputs, tokens

    if not array.dtype.isnative:
        raise Refused(f"{key} has dtype {array.dtype}", "store numbers in this machine's byte order")
    step = max(1, AT_ONCE // max(1, array[:1].nbytes))
    for start in range(0, max(1, len(array)), step):
        part, where = np.asarray(array[start : start + step]), f"{key}[{start}:]"
        _ = inputs(part, where) if vocabulary is None else tokens(part, where, vocabulary)
    return Mapped([array], tokens=vocabulary is not None)


def scaled(rows: NDArray[Any], *, tokens: bool) -> NDArray[Any]:
    """Return rows as they are learnt from: tokens as they are, bytes from 0 to 1, others in float32."""
    if tokens:
        return rows.astype(np.int64)
    values = rows.astype(np.float32)
    return values / np.float32(255) if rows.dtype == np.uint8 else values
