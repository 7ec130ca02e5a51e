"""Features in the place of samples: the map that a configuration names, applied to what lies on the nodes here."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import numpy as np

from privsgp import features
from privsgp.accounting import cache
from privsgp.engine.spec import public_seed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray
    from torch import nn

    from privsgp.data import Dataset
    from privsgp.runs.config import Config


_KEYS = ("scales", "angles", "order", "filters", "patch", "grid", "like", "components", "power")


def make_encoder(config: Config, shape: tuple[int, ...]) -> tuple[nn.Module | None, tuple[int, ...]]:
    """Return the feature map that a configuration names, by public randomness, and the shape of what comes out."""
    if config.features.name not in ("scattering", "random-conv"):
        return None, shape
    # The section alone decides: whoever has it can make the map that a model needs, whatever the run or its views.
    # Keys that came later and are not given are left out: a map stays what it was.
    f = config.features
    later = ["mirror"] if getattr(f, "mirror", None) is not None else []
    values = {key: getattr(f, key, None) for key in ("name", *_KEYS, *later)}
    seed = public_seed(None, json.dumps(values, separators=(",", ":")), "features")
    choice = features.Choice(config.features.name, **config.features.options)
    encoder = features.make(choice, shape, seed, cache.private_folder())
    return encoder, features.output_shape(encoder, shape)


def encoded(
    d: Dataset, parts: Sequence[NDArray[np.int64]], learnt_from: nn.Module, encoder: nn.Module, device: torch.device
) -> Dataset:
    """Put features in the place of samples: `learnt_from` of each node's own, `encoder` of the test set."""
    # A module of the user's may be more than its weights say: what it makes is not kept.
    kept = cache.private_folder() if isinstance(encoder, features.FeatureMap) else None
    nodes = [features.encode_once(learnt_from, d.x[rows], device, kept) for rows in parts]
    x = np.zeros((len(d.x), *nodes[0].shape[1:]), np.float32)
    for rows, own in zip(parts, nodes, strict=True):
        x[rows] = own
    x_test = None if d.x_test is None else features.encode_once(encoder, d.x_test, device, kept)
    return dataclasses.replace(d, x=x, x_test=x_test)
