"""Made-up images with the statistics of real ones: pen strokes for handwriting, dead leaves for photographs.

They are drawn from public randomness and are nobody's. What is measured on them (means, principal directions) is as
good as a constant: it costs no privacy, where the same measured on the nodes' images would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    Draw = Callable[[int, tuple[int, int, int], torch.Generator], Tensor]

_POINTS = 24  # of a curve that distances are taken to
_LEAVES = 40  # discs that cover an image
_CHUNK = 256
_EXACT = "donot_use_mm_for_euclid_dist"


def make(name: str, count: int, shape: tuple[int, int, int], seed: int) -> Tensor:
    """Return `count` images [count, C, H, W] with values in 0 … 1."""
    generator = torch.Generator().manual_seed(seed % 2**64)
    sizes = [min(_CHUNK, count - start) for start in range(0, count, _CHUNK)]
    return torch.cat([KINDS[name](size, shape, generator) for size in sizes])


def strokes(count: int, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Draw one or two joined cubic curves with a pen of random width, centred, two thirds of the image in size."""
    channels, height, width = shape
    t = torch.linspace(0, 1, _POINTS)[:, None]
    bernstein = torch.cat([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], 1)
    control = torch.rand(count, 7, 2, generator=generator)
    first, second = bernstein @ control[:, :4], bernstein @ control[:, 3:]
    joined = torch.rand(count, 1, 1, generator=generator) < 0.6
    pen = torch.cat([first, torch.where(joined, second, first)], 1)
    size = torch.tensor([height, width])
    low, high = pen.amin(1, keepdim=True), pen.amax(1, keepdim=True)
    longer = (high - low).amax(2, keepdim=True).clamp(min=1e-3)  # side of the box around each drawing
    pen = (pen - (low + high) / 2) / longer * (2 / 3 * min(size))
    pen = pen - pen.mean(1, keepdim=True) / 2 + (size - 1) / 2
    thick = min(size) * (0.032 + 0.032 * torch.rand(count, 1, generator=generator))
    ink: Tensor = (1 - (_distance(pen, height, width) - thick)).clamp(0, 1)
    return ink.view(count, 1, height, width).expand(-1, channels, -1, -1)


def _distance(pen: Tensor, height: int, width: int) -> Tensor:
    """Return how far every pixel is from the nearest point of the pen's way, [count, H · W]."""
    pixels = torch.cartesian_prod(torch.arange(height).float(), torch.arange(width).float())
    apart = torch.cdist(pen, pixels.expand(len(pen), -1, -1), compute_mode=_EXACT)
    return torch.amin(apart, 1)


def leaves(count: int, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Cover an image with discs of random colours whose radii r have a density like 1/r³ (Lee, Mumford, Huang 2001)."""
    channels, height, width = shape
    pixels = torch.cartesian_prod(torch.arange(height).float(), torch.arange(width).float())
    image = torch.rand(count, channels, 1, generator=generator).expand(-1, -1, height * width).clone()
    smallest, largest = 0.05 * min(height, width), 0.8 * min(height, width)
    for _ in range(_LEAVES):
        u = torch.rand(count, 1, generator=generator)
        radius = (smallest**-2 - u * (smallest**-2 - largest**-2)) ** -0.5
        centre = torch.rand(count, 1, 2, generator=generator) * torch.tensor([height, width])
        inside = (pixels - centre).norm(dim=2) < radius
        grey, tint = (torch.rand(count, c, 1, generator=generator) for c in (1, channels))
        image = torch.where(inside[:, None], 0.7 * grey + 0.3 * tint, image)
    return image.view(count, channels, height, width)


KINDS: dict[str, Draw] = {"strokes": strokes, "leaves": leaves}
