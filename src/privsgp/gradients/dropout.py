"""Dropout whose coins are public and keyed: which units a sample loses at a step is decided before any data is seen.

torch's own coins are drawn for a batch as a whole: what one sample loses would depend on who else was drawn, and
clipping would bound nobody's share. Here a sample's coins are a hash of a key, and that of the run's public seed, the
node, the step and the number of the sample. At a given step its gradient is then a function of that sample alone.
"""

from __future__ import annotations

import copy
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from privsgp.gradients.keys import ODD, mixed

if TYPE_CHECKING:
    from collections.abc import Iterator

_BITS = 53


_KEYS: ContextVar[Tensor | None] = ContextVar("keys", default=None)  # of the samples that a model is shown


class KeyedDropout(nn.Module):
    """Dropout of samples [rows, …] by `with_keys` [rows]; without keys it lets everything through, as in evaluation.

    With `channels` whole channels are lost, [rows, C, …].
    """

    def __init__(self, p: float, number: int, *, channels: bool) -> None:
        super().__init__()
        self.p, self.number, self.channels = p, number, channels

    def forward(self, x: Tensor) -> Tensor:
        """Keep each unit with probability 1 − p, and make up for it."""
        if (keys := _KEYS.get()) is None:
            return x
        if x.shape[0] != keys.shape[0]:
            raise RuntimeError(f"dropout of {x.shape[0]} rows where there are {keys.shape[0]} samples")
        units = x.shape[1:2] if self.channels else x.shape[1:]
        kept = uniforms(keys, self.number, units.numel()) >= int(self.p * 2.0**_BITS)
        kept = kept.view(-1, *units, *[1] * (x.ndim - 1 - len(units)))
        return x * kept.to(x.dtype) / (1 - self.p) if self.p < 1 else x * 0


_KINDS: dict[type[nn.Module], bool] = {nn.Dropout: False, nn.Dropout1d: True, nn.Dropout2d: True, nn.Dropout3d: True}


def is_keyed(layer: nn.Module) -> bool:
    """Tell whether this is a kind of dropout that keys can be given to."""
    return type(layer) in _KINDS


def tosses(model: nn.Module) -> bool:
    """Tell whether a model has dropout that is to be keyed."""
    return any(is_keyed(layer) and bool(layer.p) for layer in model.modules())


def keyed(model: nn.Module) -> nn.Module:
    """Return a copy with keyed dropout in the place of torch's; the model itself where it has none."""
    if not tosses(model):
        return model
    made = copy.deepcopy(model)
    for number, (name, layer) in enumerate(list(made.named_modules())):
        if is_keyed(layer):
            place = KeyedDropout(float(layer.p), number, channels=_KINDS[type(layer)])
            if not name:
                return place
            made.set_submodule(name, place)
    return made


def without_coins(model: nn.Module) -> nn.Module:
    """Put torch's dropout into evaluation mode, in place: models are measured whole."""
    for layer in model.modules():
        if is_keyed(layer):
            layer.eval()
    return model


@contextmanager
def with_keys(keys: Tensor | None) -> Iterator[None]:
    """Give every keyed dropout of this thread the keys of the samples that models are shown meanwhile."""
    before = _KEYS.set(keys)
    try:
        yield
    finally:
        _KEYS.reset(before)


def uniforms(keys: Tensor, number: int, count: int) -> Tensor:
    """Return `count` whole numbers below 2⁵³ for each key, [rows, count], of layer `number`."""
    units = torch.arange(count, device=keys.device) + (number << 40)
    return mixed(keys[:, None] + units * ODD[0]) & ((1 << _BITS) - 1)
