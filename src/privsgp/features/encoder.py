"""An encoder of images that was trained on made-up images only: no photograph, so no question about data.

A wide residual network (WRN-16-4: Zagoruyko and Komodakis 2016) gives 1,792 numbers an image: its last map as one mean
and in four quarters, and its middle map in four quarters. Each image is first brought to 32 × 32 pixels, mean 0 and
deviation 1, so the unit of the pixels does not matter. The weights, and the directions for whitening, come from
`experiments/synthetic_encoder.py`; the file, in the package privsgp-encoders, holds whole numbers with one scale per
filter.

Guarantee: a fixed map of each image alone; privsgp refuses a file of weights with another SHA-256.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

import torch
from safetensors.torch import load
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, interpolate, relu

from privsgp.errors import Refused
from privsgp.files import packaged

if TYPE_CHECKING:
    from collections.abc import Mapping

PIXELS = 32
WIDTHS = (16, 64, 128, 256)
_FILE = "synthetic-encoder.safetensors"
_SHA256 = "09089bf0c2b9f0bdc1f9977695dd33a2076bb236ac817530c01ebda5830179e3"
_INSTALL = "pip install 'privsgp[encoders]', or `make setup` in a checkout"
SCALE = ".scale"
MEASURED = ("mean", "spread", "directions", "deviation")  # on made-up images
RIDGE = 0.1  # of the largest deviation, added to all


class Block(nn.Module):
    """Two convolutions and a way around them; batch norm and ReLU come first."""

    def __init__(self, width: int, out: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(out)
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.around = nn.Identity() if width == out else nn.Conv2d(width, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output; a block that changes the width brings its way around there from the same ReLU."""
        h = relu(self.norm1(x))
        start = x if isinstance(self.around, nn.Identity) else self.around(h)
        out: Tensor = start + self.conv2(relu(self.norm2(self.conv1(h))))
        return out


class Encoder(nn.Module):
    """[B, C, H, W] → [B, 1792]; images with one channel count as grey."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Conv2d(3, WIDTHS[0], 3, 1, 1, bias=False)
        self.groups = nn.ModuleList(
            nn.Sequential(Block(width, out, stride), Block(out, out, 1))
            for width, out, stride in zip(WIDTHS, WIDTHS[1:], (1, 2, 2), strict=False)
        )
        self.end = nn.BatchNorm2d(WIDTHS[-1])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the middle and the last map of images that are `standardised`."""
        middle = self.groups[1](self.groups[0](self.start(x)))
        return relu(middle), relu(self.end(self.groups[2](middle)))

    def kept(self, x: Tensor) -> Tensor:
        """Return what is kept of the maps, [B, 1792]."""
        middle, last = self.forward(standardised(x))
        pooled = [adaptive_avg_pool2d(last, 1), adaptive_avg_pool2d(last, 2), adaptive_avg_pool2d(middle, 2)]
        return torch.cat([part.flatten(1) for part in pooled], 1)


def standardised(x: Tensor) -> Tensor:
    """Return images of 3 × 32 × 32 pixels, each with mean 0 and deviation 1; one without contrast becomes 0."""
    if x.shape[-2:] != (PIXELS, PIXELS):
        x = interpolate(x, (PIXELS, PIXELS), mode="bilinear", antialias=True)
    x = x - x.mean((1, 2, 3), keepdim=True)
    return (x / x.pow(2).mean((1, 2, 3), keepdim=True).sqrt().clamp(min=1e-6)).expand(-1, 3, -1, -1)


class SyntheticEncoder(nn.Module):
    """[B, C, H, W] or [B, H, W] → [B, components], rows of length √components."""

    chunk = 16  # images at a time that keep a core busy and fit into its cache

    def __init__(self, components: int, power: float) -> None:
        super().__init__()
        arrays = unpacked(load(packaged("privsgp_encoders", _FILE, _SHA256, _INSTALL)))
        mean, spread, directions, deviation = (arrays.pop(name) for name in MEASURED)
        if components > len(directions):
            raise Refused(f"features.components = {components} are too many", f"take at most {len(directions)}")
        self.encoder = Encoder()
        self.encoder.load_state_dict(arrays, strict=False)  # BatchNorm's count of batches is not kept
        scale = (deviation[:components] + RIDGE * deviation[0]) ** -power
        self.register_buffer("mean", mean)
        self.register_buffer("directions", (directions[:components] * scale[:, None] / spread).T.contiguous())
        self.requires_grad_(requires_grad=False).eval()

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002
        """Stay in evaluation mode: batch norm must not mix images."""
        del mode
        return super().train(mode=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return each image's features, the same for its mirror image."""
        x = x if x.dim() == 4 else x[:, None]
        y = self.encoder.kept(x) + self.encoder.kept(x.flip(-1))
        z = (y - self.get_buffer("mean")) @ self.get_buffer("directions")
        out: Tensor = z / z.norm(dim=1, keepdim=True).clamp(min=1e-12) * math.sqrt(z.shape[1])
        return out


def unpacked(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the arrays of a file as float32; those of whole numbers have a scale for each row."""
    arrays = {name: value.float() for name, value in values.items() if not name.endswith(SCALE)}
    for name in [name for name in arrays if name + SCALE in values]:
        arrays[name] *= values[name + SCALE].view(-1, *[1] * (arrays[name].dim() - 1))
    return arrays
