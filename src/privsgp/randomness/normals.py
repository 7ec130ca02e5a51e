"""Normals on a CPU, and the cells of secret noise.

Box and Muller's formula: two uniform words make two normals, to the precision that they are computed in.

Secret noise is the cell of g + σ N on a public grid, computed in float32, and in float64 where that matters.
A message shows the cell of (g + σ N)/s. N is made of 128 bits a pair in float64 (`box_muller`; docs/proofs/sampler.md).
The upper 32 bits of each word give N within `_ERROR` in float32, whatever the lower bits are. A sum that lies farther
than that from the edges of its cell has its cell. For the few others the lower bits are drawn, and N is computed from
all bits in float64. So every cell is the one that all bits in float64 give: the law is the same, to the last bit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Words = npt.NDArray[np.int32]  # [m, 2h]: the upper halves of the words of h pairs in each row
    Lower = Callable[[int], npt.NDArray[np.uint32]]  # a number of pairs to their lower halves

_ERROR = 2.0**-16  # of a normal in float32, for radii between these; docs/proofs/sampler.md
_RADII = 2.0**-6, 4.07
_ROUNDED = 2.0**-21  # of a sum, as a share of what its terms add up to
_LARGEST = 2.0**14  # cells from 0 up to which float32 is worth it
_GRIDS = 2.0**-60, 2.0**60  # on which float32 has room for all that matters


def box_muller(
    out: npt.NDArray[Any], words: npt.NDArray[Any], real: npt.DTypeLike, *, deep: bool = False
) -> npt.NDArray[Any]:
    """Turn signed words [m, 2h] into normals [m, 2h or 2h − 1]: √(−2 ln u) (cos θ, sin θ), u from |word|, θ from word.

    u = (|word| + ½) / 2^(bits − 1) keeps all bits where u is small, which is where the tails are made. `deep` (64-bit
    words): float64 cannot hold the eleven lowest bits of θ's word, so they extend u's word behind the point. Then u
    has 75 bits, and the tails reach √(150 ln 2) = 10.2 σ. All is computed in `real`; the radii are returned.
    """
    half = words.shape[1] // 2
    radius, cosine, sine = (np.empty((len(words), half), real) for _ in range(3))
    unit = 2.0 ** (1 - 8 * words.itemsize)
    np.copyto(radius, words[:, :half], casting="unsafe")
    if deep:
        lowest = sine.view(np.int64)
        np.bitwise_and(words[:, half:], 2047, out=lowest)
        np.copyto(cosine, lowest, casting="unsafe")
        cosine -= 1023.5
        cosine *= 2.0**-11
        radius += cosine
    np.abs(radius, out=radius)
    radius *= unit
    if not deep:
        radius += unit / 2
    np.log(radius, out=radius)
    radius *= -2
    np.sqrt(radius, out=radius)
    np.copyto(sine, words[:, half:], casting="unsafe")
    sine *= math.pi * unit
    if sine.dtype == np.float32:  # NumPy is fast in float32, torch in float64
        np.cos(sine, out=cosine)
        np.sin(sine, out=sine)
    else:
        torch.cos(torch.from_numpy(sine), out=torch.from_numpy(cosine))
        torch.from_numpy(sine).sin_()
    rest = out.shape[1] - half
    np.multiply(radius, cosine, out=out[:, :half], casting="same_kind")
    np.multiply(radius[:, :rest], sine[:, :rest], out=out[:, half:], casting="same_kind")
    return radius


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # a sum that is not finite is not sure
def to_cells_(
    g: npt.NDArray[np.float64], words: Words, lower: Lower, sigma: npt.NDArray[Any], grid: npt.NDArray[Any]
) -> None:
    """Replace g [m, d] by the multiples of the grid [m, 1] that are next to g + σ N, with σ [m, 1] above 0.

    Guarantee: as if N were `exact_normals` everywhere and all were computed in float64.
    """
    scale, here, y = sigma / grid, g.astype(np.float32), float32_normals(words, g.shape[1])
    largest = np.maximum(here.max(1, keepdims=True), -here.min(1, keepdims=True)) / grid + _RADII[1] * scale
    fits = (largest <= _LARGEST) & (grid >= _GRIDS[0]) & (grid <= _GRIDS[1])
    most = np.where(fits, 0.5 - _ERROR * scale - _ROUNDED * largest, -1.0).astype(np.float32)
    here *= (1 / grid).astype(np.float32)
    y *= scale.astype(np.float32)
    y += here
    cells = np.rint(y, out=here)
    y -= cells
    row, column = np.divmod(np.flatnonzero(~(np.abs(y, out=y) <= most)), g.shape[1])
    noised = exact_normals(words, row, column, lower) * sigma[row, 0] + g[row, column]
    cells += np.float32(0)  # −0 would show more than its cell
    np.multiply(cells, grid, out=g)
    g[row, column] = np.rint(noised / grid[row, 0]) * grid[row, 0] + 0.0


def float32_normals(words: Words, columns: int) -> npt.NDArray[np.float32]:
    """Return √(−2 ln u) (cos θ, sin θ) of pairs in float32, NaN where that is not enough."""
    half, normals = words.shape[1] // 2, np.empty((len(words), columns), np.float32)
    radius = box_muller(normals, words, np.float32)
    row, pair = np.divmod(np.flatnonzero(~((radius > _RADII[0]) & (radius < _RADII[1]))), half)
    normals[row, pair] = np.nan
    both = pair < columns - half  # the last pair of a row may need but one of its two
    normals[row[both], half + pair[both]] = np.nan
    return normals


def exact_normals(
    words: Words, row: npt.NDArray[np.int64], column: npt.NDArray[np.int64], lower: Lower
) -> npt.NDArray[np.float64]:
    """Return some of the normals in float64, from all their bits; `lower` is asked once, for all of them."""
    half = words.shape[1] // 2
    pairs, which = np.unique(row * half + column % half, return_inverse=True)
    top, pair = np.divmod(pairs, half)
    low = lower(len(pairs)).reshape(-1, 2).T
    upper = words[top, pair], words[top, pair + half]
    both = np.concatenate([(u.astype(np.int64) << 32) | v for u, v in zip(upper, low, strict=True)])
    out = np.empty((1, 2 * len(pairs)))
    box_muller(out, both[None], np.float64, deep=True)
    found: npt.NDArray[np.float64] = out[0][which + np.where(column < half, 0, len(pairs))]
    return found
