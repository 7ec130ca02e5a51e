"""Box and Muller's formula: two uniform words make two normals, to the precision that they are computed in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    import numpy.typing as npt


def box_muller(
    out: npt.NDArray[Any],
    words: npt.NDArray[Any],
    radius: npt.NDArray[Any],
    cosine: npt.NDArray[Any],
    sine: npt.NDArray[Any],
    *,
    deep: bool = False,
) -> None:
    """Turn signed words [m, 2h] into normals [m, 2h or 2h − 1]: √(−2 ln u) (cos θ, sin θ), u from |word|, θ from word.

    u = (|word| + ½) / 2^(bits − 1) keeps all bits where u is small, which is where the tails are made. `deep` (64-bit
    words): the eleven lowest bits of θ's word, which float64 has no room for, stand behind the point of u's, so that
    u has 75 bits and the tails reach √(150 ln 2) = 10.2 σ.
    """
    half = radius.shape[1]
    unit = 2.0 ** (1 - 8 * words.itemsize)
    np.copyto(radius, words[:, :half], casting="unsafe")
    if deep:
        spare = sine.view(np.int64)
        np.bitwise_and(words[:, half:], 2047, out=spare)
        np.copyto(cosine, spare, casting="unsafe")
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
