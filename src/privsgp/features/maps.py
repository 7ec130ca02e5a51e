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
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from privsgp.errors import Refused
from privsgp.features import minilm, synthetic
from privsgp.features.encode import cache_folder, encode_once, output_shape
from privsgp.features.encoder import SyntheticEncoder
from privsgp.features.options import COMPONENTS, FEATURES, MINILM, SCALES, SCATTERING, SYNTHETIC
from privsgp.features.scattering import Scattering
from privsgp.seeds import public_seed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from privsgp.data import Dataset

MADE_UP = 2048  # images that means and directions are measured on
_CHUNK = 8
_KEYED = ("angles", "order", "filters", "patch", "grid")  # what earlier versions keyed made-up images by


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
    if name == MINILM:
        encoder = minilm.make(shape)
    elif name == SYNTHETIC:
        _image(name, shape)
        encoder = SyntheticEncoder(options.get("components", COMPONENTS), options.get("power", 1.0))
    else:
        given = {"scales": SCALES} | options
        if (scales := given.pop("scales")) not in (None, SCALES):
            raise Refused(f"features.scales = {scales}, and this version has {SCALES} octaves", "train without it")
        values = {"name": name, "scales": scales} | dict.fromkeys(_KEYED)
        values |= {key: given.get(key) for key in ("like", "components", "power")}
        values |= {key: given[key] for key in ("mirror",) if key in given}
        seed = public_seed(None, json.dumps(values, separators=(",", ":")), "features")
        encoder = make(shape, seed, **given)
    return encoder, output_shape(encoder, shape)


def encoded(d: Dataset, parts: Sequence[NDArray[np.int64]], encoder: nn.Module, device: torch.device) -> Dataset:
    """Replace samples by their features."""
    # A module of the user's may be more than its weights say: what it makes is not kept.
    folder = cache_folder() if isinstance(encoder, FeatureMap | SyntheticEncoder | minilm.MiniLm) else None
    nodes = [encode_once(encoder, d.x[rows], device, folder) for rows in parts]
    x = np.zeros((len(d.x), *nodes[0].shape[1:]), np.float32)
    for rows, own in zip(parts, nodes, strict=True):
        x[rows] = own
    x_test = None if d.x_test is None else encode_once(encoder, d.x_test, device, folder)
    return dataclasses.replace(d, x=x, x_test=x_test, vocabulary=None)


def make(
    shape: tuple[int, ...], seed: int, *, like: str | None = None, components: int = 512, power: float = 1.0,
    mirror: bool = False,
) -> FeatureMap:  # fmt: skip
    """Return scattering for samples of this shape, the same bits for the same `seed`, which is public.

    `like` names the made-up images that whitening is measured on; None: there is no whitening.
    """
    image = _image(SCATTERING, shape)
    measured = None if like is None else _measured(image, seed, MADE_UP, like, components, power, mirror)
    whitening = None if measured is None else Whitening(*measured)
    return FeatureMap(Scattering(*image[1:]), mirror=mirror, whitening=whitening)


@lru_cache(maxsize=4)  # it takes seconds
def _measured(
    image: tuple[int, int, int], seed: int, count: int, like: str, components: int, power: float, mirror: bool  # noqa: FBT001
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Measure on made-up images. One thread: sums over several differ in their last bits."""
    bare, threads = make(image, seed, mirror=mirror), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            made_up = synthetic.make(like, count, image, seed)
            found = torch.cat([bare.normalised(part) for part in torch.split(made_up, _CHUNK)])
            if components > (most := min(found.shape[1], count // 2)):
                raise Refused(f"features.components = {components} is more than {most}", f"take at most {most}")
            return fit(found, components, power)
    finally:
        torch.set_num_threads(threads)


def _image(name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) not in (2, 3):
        remedy = "it is for images, [height, width] or [channels, height, width]; leave [features] out"
        raise Refused(f"features.name = {name!r} does not take samples of shape {list(shape)}", remedy)
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
