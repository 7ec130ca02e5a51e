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
    Lower = Callable[[int, int, int], Words]  # (row, words read before, count): words that nothing else is made of

_ERROR = 2.0**-16  # of a normal in float32, for radii between these; docs/privacy.md, "The sampler, roughly"
_RADII = 2.0**-6, 4.07
_ROUNDED = 2.0**-21  # of a sum, as a share of what its terms add up to
_LARGEST = 2.0**14  # cells from 0 up to which that is worth it
_GRIDS = 2.0**-60, 2.0**60  # on which float32 has room for all that matters
_PAIRS = 1 << 15  # made at a time: what they need stays in a core's cache
_NUMBERS = 1 << 17  # added at a time


@runtime_checkable
class Roughly(Protocol):
    """A source of secret noise that can be drawn roughly."""

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
        room = np.empty((3, _PAIRS), np.float32)
        for out, row in zip(normals, words, strict=True):
            for start in range(0, half, _PAIRS):
                stop = min(half, start + _PAIRS)
                _roughly(out[start:stop], out[half + start : half + stop], row[start:stop], row[half + start :], room)
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
    """Write √(−2 ln u) (cos θ, sin θ) of pairs to two stretches; the last pair of all may want but one of them."""
    pairs, unit = len(first), np.float32(2.0**-31)
    radius, cosine, sine = room[:, :pairs]
    np.copyto(radius, u, casting="unsafe")
    np.abs(radius, out=radius)
    radius *= unit
    radius += unit / 2
    np.log(radius, out=radius)
    radius *= np.float32(-2)
    np.sqrt(radius, out=radius)
    np.putmask(radius, ~((radius > _RADII[0]) & (radius < _RADII[1])), np.nan)
    np.copyto(sine, v[:pairs], casting="unsafe")
    sine *= np.float32(np.pi * 2.0**-31)
    np.cos(sine, out=cosine)
    np.sin(sine, out=sine)
    np.multiply(radius, cosine, out=first)
    np.multiply(radius[: len(second)], sine[: len(second)], out=second)


def add_rough_(g: torch.Tensor, noise: Rough, sigma: Sequence[float], spacing: Sequence[float]) -> None:
    """Replace each row of g [m, d], in float64, by the multiples of its spacing that are next to g + σ N.

    Guarantee: as if N were `noise.everything()` and all were computed in float64. A row with σ = 0 stays as it is.
    """
    levels = torch.tensor([sigma, spacing], dtype=torch.float64)
    tall = max(1, _NUMBERS // g.shape[1])
    unsure: list[tuple[torch.Tensor, ...]] = []  # rows, columns and what stands there
    for rows in _stretches(sigma, tall):
        here = g[rows]
        sure, cells = _cells(here, torch.from_numpy(noise.normals[rows]), *levels[:, rows, None])
        row, column = (torch.from_numpy(at) for at in np.divmod(np.flatnonzero(~sure), g.shape[1]))
        unsure.append((row + rows.start, column, here[row, column]))
        here.copy_(cells)
    if unsure:
        row, column, before = (torch.cat(parts) for parts in zip(*unsure, strict=True))
        normals = torch.from_numpy(noise.exact(row.numpy(), column.numpy()))
        s, grid = levels[:, row]
        g[row, column] = normals.mul_(s).add_(before).div_(grid).round_().mul_(grid)


def _stretches(sigma: Sequence[float], tall: int) -> Iterator[slice]:
    """Yield neighbouring rows with noise, so many at a time."""
    start = 0
    for noised, alike in itertools.groupby(s > 0 for s in sigma):
        stop = start + len(list(alike))
        for top in range(start, stop, tall) if noised else ():
            yield slice(top, min(stop, top + tall))
        start = stop


def _cells(
    g: torch.Tensor, normals: torch.Tensor, sigma: torch.Tensor, grid: torch.Tensor
) -> tuple[npt.NDArray[np.bool_], torch.Tensor]:
    """Return which multiples of the grid are surely those next to g + σ N, and all of them; normals are overwritten.

    What is not finite is not sure.
    """
    here, scale = g.float(), sigma / grid
    ends = np.stack([here.numpy().max(1), -here.numpy().min(1)])  # here and below NumPy is much faster than torch
    largest = torch.from_numpy(ends.max(0))[:, None] / grid + _RADII[1] * scale
    error = _ERROR * scale + _ROUNDED * largest
    fits = (largest <= _LARGEST) & (grid >= _GRIDS[0]) & (grid <= _GRIDS[1])
    y = normals.mul_(scale.float()).add_(here.mul_((1 / grid).float()))
    cells = y.round()
    off, most = y.sub_(cells).abs_(), (0.5 - error).where(fits, -1.0).float()
    return off.numpy() <= most.numpy(), cells.mul_(grid.float())
