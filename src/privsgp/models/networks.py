"""Models by name, with torch's default initialisation keyed by a seed: x⁰ is public."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from privsgp.errors import Refused
from privsgp.models.images import cnn, resnet18
from privsgp.options import Count, Options, option

if TYPE_CHECKING:
    from collections.abc import Sequence

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}


class MLPOptions(Options):
    """A fully connected network."""

    hidden: Count | list[Count] = option(64, "width of the hidden layer, or a list with one width per layer")
    activation: Literal["relu", "sigmoid", "tanh"] = option("relu", "after each hidden layer")


MODELS: dict[str, type[Options]] = {
    "logistic": Options,
    "linear": Options,
    "mlp": MLPOptions,
    "cnn": Options,
    "resnet18": Options,
}
NAMES = tuple(MODELS)


def make(
    name: str,
    *,
    input_shape: tuple[int, ...],
    outputs: int,
    seed: int,
    hidden: int | Sequence[int] = 64,
    activation: str = "relu",
    rows: bool = False,
) -> nn.Module:
    """The model `name` on the CPU, the same bits for the same `seed`; torch's global generators are left as they were.

    "logistic" and "linear" are one linear layer (the loss tells them apart); "mlp" has one layer with `activation` for
    each width in `hidden`, for which the others have no use; "cnn" and "resnet18" are for images (see `images`). With
    `rows` a sample is several rows of `input_shape`, each of which has its outputs.
    """
    if name not in NAMES:
        raise Refused(f"model.name = {name!r} is unknown", f"use one of {', '.join(NAMES)}")
    # `torch.manual_seed` would reseed the CUDA generators too.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed % 2**64)
        if rows and (name in ("cnn", "resnet18") or len(input_shape) != 1):
            raise Refused(f"model.name = {name!r} for several views", "use 'logistic', 'linear' or 'mlp' on features")
        if name in ("cnn", "resnet18"):
            return (cnn if name == "cnn" else resnet18)(input_shape, outputs)
        widths = [math.prod(input_shape), *(_widths(hidden) if name == "mlp" else []), outputs]
        network = _fully_connected(widths, ACTIVATIONS[activation])
        return network[1:] if rows else network


def _fully_connected(widths: Sequence[int], activation: type[nn.Module]) -> nn.Sequential:
    linears = [nn.Linear(before, after) for before, after in pairwise(widths)]
    layers = [layer for linear in linears for layer in (linear, activation())]
    return nn.Sequential(nn.Flatten(), *layers[:-1])


def _widths(hidden: int | Sequence[int]) -> list[int]:
    widths = [hidden] if isinstance(hidden, int) else list(hidden)
    if not widths or min(widths) < 1:
        raise Refused(f"model.hidden = {hidden}", 'use widths of at least 1, one per layer; no layer is "logistic"')
    return widths
