"""Feature maps by name: a fixed map of each sample alone, made of an image's shape and public randomness.

An image goes through scattering, is brought to mean 0 and variance 1 within the sample, and is then shortened and
brought to one scale by `Whitening`. No statistic of the nodes' data enters, so this costs no privacy.

Few features instead of many: the leading principal directions of made-up images' features, brought to one scale.

A clipped gradient of a linear model is as long as its features are, whichever way they point, and noise is the same in
every direction. The common part of all images (their mean and a few leading directions) has most of that length, but
separates no classes. Scaled down, it leaves more signal under the same noise. All statistics are of made-up images, so
this is a fixed map of each sample alone.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from privsgp.errors import Refused
from privsgp.features import synthetic, wordllama
from privsgp.features.encode import cache_folder, encode_once, output_shape
from privsgp.features.encoder import SyntheticEncoder
from privsgp.features.options import COMPONENTS, FEATURES, SYNTHETIC, WORDLLAMA
from privsgp.features.scattering import Scattering
from privsgp.seeds import public_seed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from privsgp.data import Dataset

MADE_UP = 2048  # images that means and directions are measured on
_CHUNK = 8
_KEYS = ("scales", "angles", "order", "filters", "patch", "grid", "like", "components", "power")


@dataclass(frozen=True)
class Choice:
    """Which map; what a name has no use for is not looked at."""

    name: str
    scales: int = 2
    angles: int = 8
    order: int = 2
    like: str | None = None  # the made-up images that whitening is measured on
    components: int = 512
    power: float = 1.0
    mirror: bool = False  # an image and its mirror image have the same features


class FeatureMap(nn.Module):
    """[B, C, H, W] or [B, H, W] → [B, F], rows of length √F."""

    def __init__(self, base: Scattering, *, mirror: bool = False, whitening: Whitening | None = None) -> None:
        super().__init__()
        self.base, self.mirror, self.whitening = base, mirror, whitening

    def extra_repr(self) -> str:
        """Name what is in no buffer."""
        return "mirror" if self.mirror else ""

    def normalised(self, x: Tensor) -> Tensor:
        """Return all features there are, [B, F]."""
        y = self.base.normalised(x)
        return y + self.base.normalised(x.flip(-1)) if self.mirror else y

    def forward(self, x: Tensor) -> Tensor:
        """Return each sample's features; a sample without any contrast has none."""
        y = self.normalised(x if x.dim() == 4 else x[:, None])
        if self.whitening is None:
            return unit(y).mul_(math.sqrt(y.shape[1]))
        out: Tensor = self.whitening(y)
        return out


def make_encoder(
    name: str, options: dict[str, Any], shape: tuple[int, ...]
) -> tuple[nn.Module | None, tuple[int, ...]]:
    """Return the feature map of a name with those options that were given, and the shape of what comes out.

    They alone decide which map it is: anyone who has them can make the map that a model needs, whatever the run.
    """
    if name in ("none", "module"):
        return None, shape
    if name not in FEATURES:
        raise Refused(f"features.name = {name!r} is unknown", "train again with features that this version has")
    encoder: nn.Module
    if name == WORDLLAMA:
        encoder = wordllama.make(shape)
    elif name == SYNTHETIC:
        _image(name, shape)
        encoder = SyntheticEncoder(options.get("components", COMPONENTS), options.get("power", 1.0))
    else:
        # Keys that came later and are not given are left out: a map stays what it was.
        values = {"name": name} | {key: options.get(key) for key in _KEYS}
        values |= {key: options[key] for key in ("mirror",) if key in options}
        seed = public_seed(None, json.dumps(values, separators=(",", ":")), "features")
        encoder = make(Choice(name, **options), shape, seed)
    return encoder, output_shape(encoder, shape)


def encoded(d: Dataset, parts: Sequence[NDArray[np.int64]], encoder: nn.Module, device: torch.device) -> Dataset:
    """Replace samples by their features."""
    # A module of the user's may be more than its weights say: what it makes is not kept.
    folder = cache_folder() if isinstance(encoder, FeatureMap | SyntheticEncoder | wordllama.WordLlama) else None
    nodes = [encode_once(encoder, d.x[rows], device, folder) for rows in parts]
    x = np.zeros((len(d.x), *nodes[0].shape[1:]), np.float32)
    for rows, own in zip(parts, nodes, strict=True):
        x[rows] = own
    x_test = None if d.x_test is None else encode_once(encoder, d.x_test, device, folder)
    return dataclasses.replace(d, x=x, x_test=x_test, vocabulary=None)


def make(choice: Choice, shape: tuple[int, ...], seed: int) -> FeatureMap:
    """Return the map for samples of this shape, the same bits for the same `seed`, which is public."""
    image = _image(choice.name, shape)
    whitening = None if choice.like is None else Whitening(*_measured(choice, image, seed, MADE_UP))
    return FeatureMap(_base(choice, image), mirror=choice.mirror, whitening=whitening)


@lru_cache(maxsize=4)  # it takes seconds
def _measured(choice: Choice, image: tuple[int, int, int], seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Measure on made-up images. One thread: sums over several differ in their last bits."""
    bare, threads = FeatureMap(_base(choice, image), mirror=choice.mirror), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            made_up = synthetic.make(choice.like or "", count, image, seed)
            found = torch.cat([bare.normalised(part) for part in torch.split(made_up, _CHUNK)])
            if choice.components > (most := min(found.shape[1], count // 2)):
                raise Refused(f"features.components = {choice.components}", f"take at most {most}")
            return fit(found, choice.components, choice.power)
    finally:
        torch.set_num_threads(threads)


def _base(choice: Choice, image: tuple[int, int, int]) -> Scattering:
    return Scattering(*image[1:], scales=choice.scales, angles=choice.angles, order=choice.order)


def _image(name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) not in (2, 3):
        remedy = "it is for images, [height, width] or [channels, height, width]; leave [features] out"
        raise Refused(f"features.name = {name!r} with samples of shape {list(shape)}", remedy)
    channels, height, width = (1, *shape) if len(shape) == 2 else shape
    return channels, height, width


RIDGE = 0.1  # of the largest deviation, added to all: directions that hardly vary in made-up images are not blown up


class Whitening(nn.Module):
    """x ↦ (x − mean) · directions / (deviation + ridge)^power, at length √components; what has no length stays 0."""

    def __init__(self, mean: Tensor, directions: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("directions", directions)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, components] for [B, F]."""
        y = (unit(x) - self.get_buffer("mean")) @ self.get_buffer("directions")
        return unit(y) * math.sqrt(y.shape[1])


def unit(x: Tensor) -> Tensor:
    """Return rows of length 1, or 0 where there is no length."""
    length: Tensor = x.norm(dim=1, keepdim=True)
    return x / length.clamp(min=1e-12)


def fit(made_up: Tensor, components: int, power: float) -> tuple[Tensor, Tensor]:
    """Return mean and principal directions of features of made-up images, [N, F], for `Whitening`."""
    x = unit(made_up)
    mean = x.mean(0)
    x = x - mean
    # of N × N and F × F the smaller one, in float64: signs and order must be the same wherever this is computed
    values, vectors = torch.linalg.eigh((x @ x.T).double())
    values, vectors = values.flip(0)[:components].clamp(min=1e-12), vectors.flip(1)[:, :components]
    directions = (x.T @ vectors.float()) / values.sqrt().float()
    signs = directions.gather(0, directions.abs().argmax(0, keepdim=True)).sign()
    deviation = (values / len(x)).sqrt().float()
    return mean, directions * signs / (deviation + RIDGE * deviation[0]) ** power
