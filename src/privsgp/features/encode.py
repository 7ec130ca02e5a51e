"""Features of samples: what a fixed map makes of each sample alone, computed in chunks on the device of the run.

Features of private samples are as private as the samples. privsgp keeps them in memory alone.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from privsgp.errors import Refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float32] | NDArray[np.int64]

_CHUNK = {"cpu": 8, "cuda": 256}  # samples at a time: what a core's cache holds, what a GPU is busy with
_LARGEST = 65504.0  # of float16


def frozen(module: nn.Module, sample: Tensor) -> nn.Module:
    """Return a copy that no longer learns or changes; refuse one whose outputs depend on the rest of a batch.

    `sample` is a few *made-up* samples: the probe never sees private data. BatchNorm in evaluation mode is a fixed map
    of each sample, and passes.

    Guarantee: none beyond the probe; a module that mixes samples only on special inputs is not noticed.
    Assumes: the module's weights were not learnt from the nodes' data.
    """
    still = copy.deepcopy(module).cpu().float().eval().requires_grad_(requires_grad=False)
    with torch.no_grad():
        together = still(sample.float())
        if not isinstance(together, Tensor) or together.shape[:1] != sample.shape[:1] or together.dim() < 2:
            raise Refused("features give something else than one row per sample", "return a tensor [B, ...]")
        alone = torch.cat([still(row[None].float()) for row in sample])
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4, equal_nan=True):
        remedy = "make every operation of the encoder act on each sample alone, without dropout or coins"
        raise Refused("features of a sample depend on the other samples of its batch", remedy)
    return still


def output_shape(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a sample's features."""
    there = next(itertools.chain(module.parameters(), module.buffers()), torch.zeros(0)).device
    with torch.no_grad():
        return tuple(module(torch.zeros(2, *shape, device=there)).shape[1:])


def digest(module: nn.Module) -> str:
    """Return the SHA-256 of what a frozen module is made of."""
    parts = hashlib.sha256(repr(module).encode())
    for name, value in sorted(module.state_dict().items()):
        parts.update(name.encode())
        parts.update(value.detach().cpu().contiguous().numpy().tobytes())
    return parts.hexdigest()


def encode(module: nn.Module, x: Array, device: torch.device) -> NDArray[np.float32]:
    """Return the features of samples, rounded to float16's 11 bits, as `Encoded` rounds them later.

    Guarantee: row j depends on sample j alone.
    """
    module = module.to(device)
    rows = np.zeros((0,), np.float16)
    chunk = _CHUNK.get(device.type, _CHUNK["cpu"])
    with torch.no_grad():
        for start in range(0, len(x), chunk):
            part = torch.from_numpy(x[start : start + chunk]).to(device)
            out = as_kept(module(part)).cpu().numpy()
            rows = rows if start else np.empty((len(x), *out.shape[1:]), np.float16)
            rows[start : start + len(out)] = out
    return rows.astype(np.float32)


def as_kept(rows: Tensor) -> Tensor:
    """Return features in the float16 that a model learns from."""
    return rows.float().clamp(-_LARGEST, _LARGEST).nan_to_num(0.0).half()


class Encoded(nn.Module):
    """A model with its feature map before it: what it makes of a sample is what it made of it in the run."""

    def __init__(self, encoder: nn.Module, model: nn.Module) -> None:
        super().__init__()
        self.encoder, self.model = encoder, model

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for samples as they are brought."""
        kept = as_kept(self.encoder(x))
        out: Tensor = self.model(kept.to(next(self.model.parameters()).dtype))
        return out
