"""Two-dimensional scattering (Bruna and Mallat 2013): moduli of Morlet wavelets, averaged, of first and second order.

    S₀ = x ∗ φ,    S₁ = |x ∗ ψ_{j,θ}| ∗ φ,    S₂ = ||x ∗ ψ_{j,θ}| ∗ ψ_{j',θ'}| ∗ φ  for j' > j

Fixed by the shape of an image alone, so it costs no privacy. Filters, padding and order of channels are kymatio's; all
orientations of a scale are one array here, and the low-pass φ, a Gaussian, is two small matrix products.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import group_norm, pad

from privsgp.errors import Refused
from privsgp.features.options import SCALES

if TYPE_CHECKING:
    from numpy.typing import NDArray

ANGLES = 8
PATHS = 1 + SCALES * ANGLES + ANGLES**2  # channels that come out for each that goes in
_STEP = 2**SCALES  # pixels of one number of a path
_IMAGES = (-2, -1, 0, 1, 2)  # periods on either side that a filter's tails are folded in from


class Scattering(nn.Module):
    """[B, C, H, W] → [B, C · 81, H / 4, W / 4]."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        if min(height, width) <= _STEP:
            raise Refused(f"scattering of images of {height} × {width} pixels", f"each side needs {_STEP + 1} or more")
        self.size = height // _STEP, width // _STEP
        padded = tuple(((size + _STEP) // _STEP + 1) * _STEP for size in (height, width))
        extra = [(p - size) for p, size in zip(padded, (height, width), strict=True)]
        self.padding = [extra[1] // 2, (extra[1] + 1) // 2, extra[0] // 2, (extra[0] + 1) // 2]
        for j in range(SCALES):
            bank = np.stack([_wavelet(padded, j, theta) for theta in range(ANGLES)])
            for level in range(j + 1):
                self.register_buffer(f"psi_{j}_{level}", torch.from_numpy(_cropped(bank, level)).float())
            for axis, size in enumerate(padded):
                self.register_buffer(f"phi_{j}_{axis}", _low_pass(size, j))

    def normalised(self, x: Tensor) -> Tensor:
        """Return the paths with mean 0 and variance 1 within the sample, all angles of a wavelet together."""
        y = self.forward(x).view(-1, PATHS, *self.size)
        waves = group_norm(y[:, 1:], (PATHS - 1) // ANGLES)
        return torch.cat([group_norm(y[:, :1], 1), waves], 1).view(len(x), -1)

    def forward(self, x: Tensor) -> Tensor:
        """Return all paths, by order; the second order by its first wavelet, then its second."""
        x = pad(x, self.padding, mode="reflect")
        spectrum = torch.fft.fft2(x)[:, :, None]
        fine, coarse = (self._modulus(spectrum, j, 0) for j in range(SCALES))
        second = self._averaged(self._modulus(torch.fft.fft2(fine)[:, :, :, None], 1, 0), 1).flatten(2, 3)
        paths = [self._averaged(x, 0)[:, :, None], self._averaged(fine, 0), self._averaged(coarse, 1), second]
        return torch.cat(paths, 2).flatten(1, 2)

    def _modulus(self, spectra: Tensor, j: int, level: int) -> Tensor:
        """Return |u ∗ ψ_j| for all angles, at scale j's resolution: what comes in has the resolution 2^-level."""
        product, k = spectra * self.get_buffer(f"psi_{j}_{level}"), 2 ** (j - level)
        for axis in (-2, -1):  # to sample is to fold the spectrum
            first, *others = torch.chunk(product, k, axis)
            product = sum(others, start=first)
        modulus: Tensor = torch.fft.ifft2(product).abs()
        return modulus.div_(k * k)

    def _averaged(self, u: Tensor, level: int) -> Tensor:
        rows, columns = (self.get_buffer(f"phi_{level}_{axis}") for axis in (0, 1))
        return rows @ u @ columns.T


def _gaussian(size: tuple[int, ...], sigma: float, theta: float, xi: float, slant: float) -> NDArray[np.complex128]:
    """Return a Gaussian of these axes times a plane wave, made periodic."""
    c, s = math.cos(theta), math.sin(theta)
    total = np.zeros(size, np.complex128)
    for row in _IMAGES:
        for column in _IMAGES:
            u = np.arange(size[0])[:, None] + row * size[0]
            v = np.arange(size[1])[None] + column * size[1]
            along, across = c * u + s * v, c * v - s * u
            total += np.exp(-(along**2 + (slant * across) ** 2) / (2 * sigma**2) + 1j * xi * along)
    return total * slant / (2 * math.pi * sigma**2)


def _wavelet(size: tuple[int, ...], j: int, theta: int) -> NDArray[np.float64]:
    """Return the spectrum of ψ_{j,θ}: the Gaussian wave less as much of its envelope as makes its mean 0."""
    shape = 0.8 * 2**j, (ANGLES // 2 - 1 - theta) * math.pi / ANGLES
    wave = _gaussian(size, *shape, 3 / 4 * math.pi / 2**j, 4 / ANGLES)
    envelope = _gaussian(size, *shape, 0.0, 4 / ANGLES)
    return np.fft.fft2(wave - wave.sum() / envelope.sum() * envelope).real


def _cropped(bank: NDArray[np.float64], level: int) -> NDArray[np.float64]:
    """Keep the frequencies that are left at the resolution 2^-level."""
    for axis in (-2, -1):
        size = bank.shape[axis]
        kept = size >> level
        low, high = np.split(bank, [kept // 2 if level else kept], axis)
        tail = np.take(high, range(high.shape[axis] - (kept - low.shape[axis]), high.shape[axis]), axis)
        bank = np.concatenate([low, tail], axis)
    return bank


def _low_pass(size: int, level: int) -> Tensor:
    """Return the matrix that averages an axis of the resolution 2^-level by φ, samples it and drops the padding."""
    sigma, places = 0.8 * 2 ** (SCALES - 1), np.arange(size)
    phi = sum(np.exp(-((places + image * size) ** 2) / (2 * sigma**2)) for image in _IMAGES)
    spectrum = np.fft.fft(phi).real / (math.sqrt(2 * math.pi) * sigma)
    kept = size >> level
    spectrum = np.concatenate([spectrum[: kept // 2], spectrum[size - (kept - kept // 2) :]])
    matrix = np.fft.ifft(spectrum[:, None] * np.fft.fft(np.eye(kept), axis=0), axis=0).real
    return torch.from_numpy(matrix[:: 2 ** (SCALES - level)][1:-1]).float()
