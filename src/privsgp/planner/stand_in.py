"""Synthetic data in place of the nodes': samples of the right shape that are nobody's, so that planning spends nothing.

Inputs are Gaussian with a spectrum that falls like 1/r, as that of natural data does, turned by a random rotation and
scaled (inputs are standardised by public constants). Classes differ by their means in the leading
directions, about as hard to tell apart as hand-written digits are for a linear model. Targets of a regression are
linear in the leading directions, with noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy import fft

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

WIDEST = 4096  # coordinates of a sample that a matrix turns
BETWEEN = 0.45  # share of the variance, in a direction that matters, that lies between classes


@dataclass(frozen=True)
class Samples:
    """Inputs and targets to learn from, and more of them to test on."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


def make(
    shape: tuple[int, ...],
    classes: int | None,
    target: tuple[int, ...] = (),
    *,
    samples: int,
    scale: float = 1.0,
    seed: int = 0,
) -> Samples:
    """Return `samples` samples to learn from and four times as many to test on.

    `classes` is None for a regression; `scale` is the root mean square of an input's coordinates.
    """
    rng = np.random.default_rng(seed)
    size, count = math.prod(shape), 5 * samples
    spectrum = np.arange(1, size + 1) ** -0.5
    spectrum *= scale * math.sqrt(size / np.square(spectrum).sum())
    latent = rng.standard_normal((count, size))
    y, latent = _classes(rng, latent, classes) if classes is not None else _values(rng, latent, target)
    x = torch.from_numpy(_rotated(rng, latent * spectrum)).float().reshape(count, *shape)
    return Samples(x[:samples], y[:samples], x[samples:], y[samples:])


def tokens(
    shape: tuple[int, ...],
    classes: int | None,
    target: tuple[int, ...] = (),
    *,
    samples: int,
    vocabulary: int,
) -> Samples:
    """Return as many sequences of tokens: frequencies fall like 1/rank, as those of words do, and classes differ.

    Targets of a regression are means of a random weight of each token.
    """
    rng = np.random.default_rng(0)
    count, kinds = 5 * samples, classes or 1
    often = np.exp(rng.standard_normal((kinds, vocabulary))) / np.arange(1, vocabulary + 1)
    ends = np.cumsum(often / often.sum(1, keepdims=True), 1)
    labels, coins = rng.integers(0, kinds, count), rng.random((count, math.prod(shape)))
    x = np.stack([np.searchsorted(ends[label], row) for label, row in zip(labels, coins, strict=True)])
    x = np.minimum(x, vocabulary - 1)
    weight = rng.standard_normal((vocabulary, *target))
    y = torch.from_numpy(labels) if classes is not None else torch.from_numpy(weight[x].mean(1)).float()
    found = torch.from_numpy(x).reshape(count, *shape)
    return Samples(found[:samples], y[:samples], found[samples:], y[samples:])


def _rotated(rng: np.random.Generator, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn the rows: by any rotation or, where its matrix would be vast, by a cosine transform with random signs."""
    size = x.shape[1]
    if size <= WIDEST:
        rotation, _ = np.linalg.qr(rng.standard_normal((size, size)))
        return np.asarray(x @ rotation)
    return np.asarray(fft.dct(x * rng.choice([-1.0, 1.0], size), norm="ortho")[:, rng.permutation(size)])


def _classes(rng: np.random.Generator, latent: NDArray[np.float64], classes: int) -> tuple[Tensor, NDArray[np.float64]]:
    leading = min(2 * classes, latent.shape[1])
    labels = rng.integers(0, classes, len(latent))
    means = rng.standard_normal((classes, leading))
    latent[:, :leading] = math.sqrt(1 - BETWEEN) * latent[:, :leading] + math.sqrt(BETWEEN) * means[labels]
    return torch.from_numpy(labels), latent


def _values(
    rng: np.random.Generator, latent: NDArray[np.float64], target: tuple[int, ...]
) -> tuple[Tensor, NDArray[np.float64]]:
    leading = min(10, latent.shape[1])
    weights = rng.standard_normal((leading, *target)) / math.sqrt(leading)
    exact = latent[:, :leading] @ weights
    return torch.from_numpy(exact + 0.3 * rng.standard_normal(exact.shape)).float(), latent
