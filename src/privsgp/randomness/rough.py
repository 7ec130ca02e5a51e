"""Secret noise in float32, and in float64 where that could change a cell of the grid that sums are rounded to.

What leaves is the cell of (g + σ N)/s, N made of 128 bits a pair in float64 (`box_muller`; docs/privacy.md, "The
sampler"). The upper 32 bits of each word give N within `_ERROR` in float32, whatever the lower bits are. A sum that
lies farther than that from the edges of its cell has its cell; of the few others the lower bits are drawn, and N is
computed as ever. So every cell is the one that all bits in float64 give: the law is the same, to the last bit.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch

from privsgp.randomness.box_muller import box_muller

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    Words = npt.NDArray[np.uint32]
    Where = tuple[slice, slice] | tuple[torch.Tensor, torch.Tensor]
    Lower = Callable[[int, int, int], Words]  # (row, words read before, count): words that nothing else is made of

_ERROR = 2.0**-16  # of a normal in float32, for radii between these; docs/privacy.md, "The sampler, roughly"
_RADII = 2.0**-6, 4.07
_ROUNDED = 2.0**-21  # of a sum, as a share of what its terms add up to
_LARGEST = 2.0**14  # cells from 0 up to which that is worth it
_GRIDS = 2.0**-60, 2.0**60  # on which float32 has room for all that matters
_PAIRS = 1 << 15  # of a row that are made at a time
_TALL = 4  # of such stretches at a time: threads that draw ask for Python's lock at each call
_NUMBERS = 1 << 18  # added at a time


@runtime_checkable
class Roughly(Protocol):
    """A source of secret noise that may be drawn roughly."""

    @property
    def can_be_rough(self) -> bool:
        """Whether it can."""

    def rough(self, nodes: Sequence[int], columns: int, step: int, attempt: int) -> Rough:
        """Return the standard normals of some nodes; each can be drawn once."""


@dataclass
class Rough:
    """Normals [m, d] in float32, NaN where that will not do, and the upper halves [m, 2h] of the words they come from.

    Guarantee: `exact` gives each pair its lower bits once; they are of no other pair's.
    """

    normals: npt.NDArray[np.float32]
    words: npt.NDArray[np.int32]
    lower: Lower
    first: int = 0  # this is a stretch of rows, from here on
    read: dict[int, int] = field(default_factory=dict)  # lower words that were read, by the first row of a stretch

    @classmethod
    def of(cls, words: npt.NDArray[np.int32], columns: int, lower: Lower) -> Rough:
        """Make normals of the upper halves of words."""
        normals = np.empty((len(words), columns), np.float32)
        half = words.shape[1] // 2
        wide = min(half, _PAIRS)
        tall = max(1, _TALL * _PAIRS // max(1, wide))
        room = np.empty((3, tall * wide), np.float32)
        for top, start in itertools.product(range(0, len(words), tall), range(0, half, _PAIRS)):
            out, some, stop = normals[top : top + tall], words[top : top + tall], min(half, start + _PAIRS)
            _roughly(out[:, start:stop], out[:, half + start : half + stop], some[:, start:stop],
                     some[:, half + start : half + stop], room)  # fmt: skip
        return cls(normals, words, lower)

    def rows(self, start: int, stop: int) -> Rough:
        """Return a stretch of rows."""
        return replace(self, normals=self.normals[start:stop], words=self.words[start:stop], first=self.first + start)

    def exact(self, rows: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return some of the normals in float64, from all their bits; to be asked once, for all that are wanted."""
        half = self.words.shape[1] // 2
        pairs, place = np.unique(rows * half + columns % half, return_inverse=True)
        lower = self._lower_words(2 * len(pairs)).reshape(2, -1)
        row, column = np.divmod(pairs, half)
        upper = self.words[row, column], self.words[row, column + half]
        words = np.concatenate([(u.astype(np.int64) << 32) | low for u, low in zip(upper, lower, strict=True)])
        out, room = np.empty((1, 2 * len(pairs))), np.empty((3, 1, len(pairs)))
        box_muller(out, words[None], *room, deep=True)
        found: npt.NDArray[np.float64] = out[0][place + np.where(columns < half, 0, len(pairs))]
        return found

    def _lower_words(self, count: int) -> Words:
        before = self.read.get(self.first, 0)
        self.read[self.first] = before + count
        return self.lower(self.first, before, count)

    def everything(self) -> npt.NDArray[np.float64]:
        """Return all normals in float64: the obvious version."""
        rows, columns = np.divmod(np.arange(self.normals.size), self.normals.shape[1])
        return self.exact(rows, columns).reshape(self.normals.shape)


def _roughly(
    first: npt.NDArray[np.float32], second: npt.NDArray[np.float32], u: npt.NDArray[Any], v: npt.NDArray[Any],
    room: npt.NDArray[np.float32],
) -> None:  # fmt: skip
    """Write √(−2 ln u) (cos θ, sin θ) of rows of pairs to two arrays; a row's last pair may want but one of them."""
    unit = np.float32(2.0**-31)
    radius, cosine, sine = room[:, : u.size].reshape(3, *u.shape)
    np.copyto(radius, u, casting="unsafe")
    np.abs(radius, out=radius)
    radius *= unit
    radius += unit / 2
    np.log(radius, out=radius)
    radius *= np.float32(-2)
    np.sqrt(radius, out=radius)
    radius.reshape(-1)[np.flatnonzero(~((radius > _RADII[0]) & (radius < _RADII[1])))] = np.nan  # few: no `putmask`
    np.copyto(sine, v, casting="unsafe")
    sine *= np.float32(np.pi * 2.0**-31)
    np.cos(sine, out=cosine)
    np.sin(sine, out=sine)
    np.multiply(radius, cosine, out=first)
    rest = second.shape[1]
    np.multiply(radius[:, :rest], sine[:, :rest], out=second)


def add_rough_(g: torch.Tensor, noise: Rough, sigma: Sequence[float], spacing: Sequence[float]) -> None:
    """Replace each row of g [m, d], in float64, by the multiples of its spacing that are next to g + σ N.

    Guarantee: as if N were `noise.everything()` and all were computed in float64. A row with σ = 0 stays as it is.
    """
    for where, noised in _noised(g, noise, sigma, spacing):
        g[where] = noised.double()


def step_rough_(
    x: torch.Tensor, g: torch.Tensor, noise: Rough, sigma: Sequence[float], spacing: Sequence[float], step_size: float
) -> None:
    """Take from x what `add_rough_` would make of g, times a step size: one pass instead of three.

    Guarantee: x is a function of the cells, to the last bit: which of them float32 was not enough for, and with that
    how near to 0 or to an edge the noise was, is not seen in how the product was rounded.

    Assumes: every σ is above 0.
    """
    for where, noised in _noised(g, noise, sigma, spacing):
        moved = noised.to(x.dtype).mul_(step_size)  # not `alpha`: whether that is rounded once or twice is torch's
        if isinstance(where[0], slice):
            x[where].sub_(moved)
        else:  # 0 was taken there
            x[where] -= moved


def _noised(
    g: torch.Tensor, noise: Rough, sigma: Sequence[float], spacing: Sequence[float]
) -> Iterator[tuple[Where, torch.Tensor]]:
    """Yield (where, what g + σ N is there on its grid): tiles, with 0 where float32 was not enough, and then those."""
    levels, wide = np.array([sigma, spacing]), min(_NUMBERS, g.shape[1])
    room = np.empty((3, min(len(g), _NUMBERS // wide), wide), np.float32)
    unsure: list[tuple[npt.NDArray[Any], ...]] = []  # rows, columns and what stands there
    for rows, columns in _tiles(sigma, room.shape[1], g.shape[1]):
        here = g.numpy()[rows, columns]
        some, (s, grid) = room[:, : len(here), : here.shape[1]], levels[:, rows, None]
        cells, sure = _cells(here, noise.normals[rows, columns], s, grid, some)
        row, column = np.divmod(np.flatnonzero(~sure), here.shape[1])
        unsure.append((row + rows.start, column + columns.start, here[row, column]))
        cells[row, column] = 0
        yield (rows, columns), torch.from_numpy(cells)
    if unsure:
        row, column, before = (np.concatenate(parts) for parts in zip(*unsure, strict=True))
        s, grid = levels[:, row]
        with np.errstate(over="ignore"):
            exact = np.rint((noise.exact(row, column) * s + before) / grid) * grid + 0.0
        yield (torch.from_numpy(row), torch.from_numpy(column)), torch.from_numpy(exact)


def _tiles(sigma: Sequence[float], tall: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Yield the rows with noise tile by tile: some short ones, or a stretch of a long one."""
    start = 0
    for noised, alike in itertools.groupby(s > 0 for s in sigma):
        stop = start + len(list(alike))
        tops = range(start, stop, tall) if noised else ()
        for top, left in itertools.product(tops, range(0, columns, _NUMBERS)):
            yield slice(top, min(stop, top + tall)), slice(left, min(columns, left + _NUMBERS))
        start = stop


@np.errstate(over="ignore", invalid="ignore")  # then nothing is sure
def _cells(
    g: npt.NDArray[np.float64], normals: npt.NDArray[np.float32], sigma: npt.NDArray[Any], grid: npt.NDArray[Any],
    room: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:  # fmt: skip
    """Return multiples of the grid, and which of them are surely those next to g + σ N; what is not finite is not."""
    (here, y, cells), scale = room, sigma / grid
    np.copyto(here, g, casting="same_kind")
    largest = np.maximum(here.max(1, keepdims=True), -here.min(1, keepdims=True)) / grid + _RADII[1] * scale
    fits = (largest <= _LARGEST) & (grid >= _GRIDS[0]) & (grid <= _GRIDS[1])
    most = np.where(fits, 0.5 - _ERROR * scale - _ROUNDED * largest, -1.0).astype(np.float32)
    np.multiply(here, (1 / grid).astype(np.float32), out=here)
    np.multiply(normals, scale.astype(np.float32), out=y)
    np.add(y, here, out=y)
    np.rint(y, out=cells)
    np.subtract(y, cells, out=y)
    np.abs(y, out=y)
    np.add(cells, np.float32(0), out=cells)  # −0 would tell more than its cell
    np.multiply(cells, grid.astype(np.float32), out=cells)
    return cells, y <= most
