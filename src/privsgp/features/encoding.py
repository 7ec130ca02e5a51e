"""Features in the place of samples: the map that a configuration names, applied to what lies on the nodes here."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp import features
from privsgp.files import cache_folder
from privsgp.seeds import public_seed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch
    from numpy.typing import NDArray
    from torch import nn

    from privsgp.data import Dataset


_KEYS = ("scales", "angles", "order", "filters", "patch", "grid", "like", "components", "power")


def make_encoder(
    name: str, options: dict[str, Any], shape: tuple[int, ...]
) -> tuple[nn.Module | None, tuple[int, ...]]:
    """Return the feature map of a name with those options that were given, and the shape of what comes out.

    They alone decide which map it is: whoever has them can make the map that a model needs, whatever the run.
    """
    if name not in ("scattering", "random-conv"):
        return None, shape
    # Keys that came later and are not given are left out: a map stays what it was.
    values = {"name": name} | {key: options.get(key) for key in _KEYS}
    values |= {key: options[key] for key in ("mirror",) if key in options}
    seed = public_seed(None, json.dumps(values, separators=(",", ":")), "features")
    encoder = features.make(features.Choice(name, **options), shape, seed, _private_folder())
    return encoder, features.output_shape(encoder, shape)


def _private_folder() -> Path | None:
    """Return where features of private samples are kept, for their owner alone; None without a home folder."""
    try:
        return cache_folder() / "features"
    except RuntimeError:
        return None


def encoded(
    d: Dataset, parts: Sequence[NDArray[np.int64]], learnt_from: nn.Module, encoder: nn.Module, device: torch.device
) -> Dataset:
    """Put features in the place of samples: `learnt_from` of each node's own, `encoder` of the test set."""
    # A module of the user's may be more than its weights say: what it makes is not kept.
    kept = _private_folder() if isinstance(encoder, features.FeatureMap) else None
    nodes = [features.encode_once(learnt_from, d.x[rows], device, kept) for rows in parts]
    x = np.zeros((len(d.x), *nodes[0].shape[1:]), np.float32)
    for rows, own in zip(parts, nodes, strict=True):
        x[rows] = own
    x_test = None if d.x_test is None else features.encode_once(encoder, d.x_test, device, kept)
    return dataclasses.replace(d, x=x, x_test=x_test)
