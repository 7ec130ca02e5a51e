"""Models by name, with torch's default initialisation keyed by a seed: x⁰ is public.

Networks for images: the small tanh CNNs of Papernot et al. (2021), and ResNet-18 with GroupNorm.

BatchNorm mixes samples, so it has no place here. Tanh keeps gradients short, and with that the share a clip takes.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from privsgp.errors import Refused
from privsgp.models.additive import additive
from privsgp.models.options import MODELS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.data.schema import Schema

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}


NAMES = tuple(MODELS)


def mean(width: int, device: str = "cpu") -> nn.Module:
    """Return ⟨θ, v⟩ with θ = 0: under the loss −⟨θ, v⟩ one step makes θ the mean of the vectors."""
    made = nn.Linear(width, 1, bias=False, device=device)
    nn.init.zeros_(made.weight)
    return made


def make(
    name: str,
    *,
    input_shape: tuple[int, ...],
    outputs: int,
    seed: int,
    hidden: int | Sequence[int] = 64,
    activation: str = "relu",
    width: int = 32,
    vocabulary: int | None = None,
    schema: Schema | None = None,
    bins: int = 8,
    pairs: Sequence[Sequence[str]] = (),
    device: str = "cpu",
) -> nn.Module:
    """The model `name`, the same bits for the same `seed`; torch's global generators are left as they were.

    It is on the CPU, or on "meta", where it takes no memory: to count its weights.
    "logistic" and "linear" are one linear layer (their losses differ). It starts at zero if a table has a `schema`.
    "hazard" is for survival.
    "mlp" has one layer with `activation` for each width in `hidden`, which the others ignore; "cnn" and
    "resnet18" are for images (see `images`), "embedding" for tokens of a `vocabulary`. "additive" has a score for each
    level of the columns of a `schema`, with `bins` for each number, and of `pairs` of columns.
    """
    if name not in NAMES:
        raise Refused(f"model.name = {name!r} is unknown", f"use one of {', '.join(NAMES)}")
    if vocabulary is not None and name != "embedding":
        remedy = "tokens are names, not numbers: take 'embedding', or a module of your own from Python"
        raise Refused(f"model.name = {name!r} does not take tokens (data.vocabulary = {vocabulary})", remedy)
    # `torch.manual_seed` would reseed the CUDA generators too.
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.default_generator.manual_seed(seed % 2**64)
        if name == "embedding":
            return embedding(input_shape, outputs, vocabulary, width)
        if name in ("cnn", "resnet18"):
            return (cnn if name == "cnn" else resnet18)(input_shape, outputs)
        if name == "additive":
            return additive(schema, outputs, bins, pairs)
        if name == "hazard":
            return hazard(math.prod(input_shape), outputs)
        widths = [math.prod(input_shape), *(_widths(hidden) if name == "mlp" else []), outputs]
        made = _fully_connected(widths, ACTIVATIONS[activation])
        if schema is not None and name != "mlp":  # chance weights would stay: a small budget takes few steps from them
            for parameter in made.parameters():
                nn.init.zeros_(parameter)
        return made


def _fully_connected(widths: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
    linears = [nn.Linear(before, after) for before, after in pairwise(widths)]
    layers = [layer for linear in linears for layer in (linear, activation())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


FIRST_HAZARD = 0.1  # of every bin at x⁰: nearly all gradients would else say that one half is too much


def hazard(inputs: int, bins: int) -> nn.Module:
    """One linear score per person, and a level for each bin: the odds of the event are proportional in all bins."""
    score, levels = nn.Linear(inputs, 1, bias=False), nn.Linear(1, bins)
    nn.init.zeros_(score.weight)
    nn.init.ones_(levels.weight)
    levels.weight.requires_grad = False
    nn.init.constant_(levels.bias, math.log(FIRST_HAZARD / (1 - FIRST_HAZARD)))
    return nn.Sequential(nn.Flatten(), score, levels)


def _widths(hidden: int | Sequence[int]) -> list[int]:
    widths = [hidden] if isinstance(hidden, int) else list(hidden)
    if not widths or min(widths) < 1:
        raise Refused(f"model.hidden = {hidden} is no list of widths", "use one width of at least 1 per layer")
    return widths


GROUPS = 32  # of every GroupNorm, as in Wu and He (2018)


def cnn(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Tanh CNN: two strided convolutions below 32 × 32 pixels (MNIST), three pairs of 3 × 3 ones from there on."""
    channels, height, width = _image("cnn", input_shape, smallest=16)
    layers = _small if min(height, width) < 32 else _deep
    return nn.Sequential(*_with_channels(input_shape), *layers(channels, height, width, outputs))


def _small(channels: int, height: int, width: int, outputs: int) -> list[nn.Module]:
    # a convolution leaves (s + 4 − 8) // 2 + 1 pixels, then (s − 4) // 2 + 1, each pooling one fewer
    h, w = (((s - 4) // 2 - 4) // 2 for s in (height, width))
    return [
        nn.Conv2d(channels, 16, 8, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(32 * h * w, 32), nn.Tanh(), nn.Linear(32, outputs),
    ]  # fmt: skip


def _deep(channels: int, height: int, width: int, outputs: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for wider in (32, 64, 128):
        layers += [nn.Conv2d(channels, wider, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(wider, wider, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2)]
        channels = wider
    return [
        *layers,
        nn.Flatten(),
        nn.Linear(128 * (height // 8) * (width // 8), 128),
        nn.Tanh(),
        nn.Linear(128, outputs),
    ]


def resnet18(input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """ResNet-18 with GroupNorm for small images: a 3 × 3 stem, no pooling before the blocks; 11,173,962 weights."""
    channels, *_ = _image("resnet18", input_shape, smallest=8)
    blocks = [_Residual(before, after, stride) for before, after, stride in _BLOCKS]
    return nn.Sequential(
        *_with_channels(input_shape), nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.GroupNorm(GROUPS, 64),
        nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, outputs),
    )  # fmt: skip


_BLOCKS = [
    (64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1),
]  # fmt: skip


class _Residual(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut (He et al. 2016), which is a 1 × 1 convolution where shapes change."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(GROUPS, after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(GROUPS, after)
        self.shortcut = nn.Sequential()
        if before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(GROUPS, after))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(relu(self.norm1(self.conv1(x)))))
        return relu(inner + self.shortcut(x))


def _image(name: str, input_shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """Return channels, height and width; [height, width] alone is one channel."""
    if len(input_shape) not in (2, 3) or min(input_shape[-2:]) < smallest:
        remedy = f"it needs images of at least {smallest} × {smallest} pixels; 'mlp' takes any input"
        raise Refused(f"model.name = {name!r} does not take inputs of shape {list(input_shape)}", remedy)
    channels = input_shape[0] if len(input_shape) == 3 else 1
    return channels, input_shape[-2], input_shape[-1]


def _with_channels(input_shape: tuple[int, ...]) -> list[nn.Module]:
    return [nn.Unflatten(1, (1, input_shape[0]))] if len(input_shape) == 2 else []


class _MeanEmbedding(nn.Module):
    """A linear model of the mean of a sequence's embeddings; token 0 fills sequences up and does not count."""

    def __init__(self, vocabulary: int, width: int, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.out = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of sequences [B, T]."""
        there = (x != 0).unsqueeze(-1)
        total = (self.embedding(x) * there).sum(1)
        out: Tensor = self.out(total / there.sum(1).clamp(min=1))
        return out


def embedding(input_shape: tuple[int, ...], outputs: int, vocabulary: int | None, width: int) -> nn.Module:
    """Return the model for sequences of tokens; refuse what is none."""
    if vocabulary is None or len(input_shape) != 1:
        what = f"model.name = 'embedding' with inputs of shape {list(input_shape)}, data.vocabulary = {vocabulary}"
        raise Refused(what, "it takes sequences of tokens: set data.vocabulary, or [data.text] for texts")
    return _MeanEmbedding(vocabulary, width, outputs)
