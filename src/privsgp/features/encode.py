"""Features of the nodes' samples: computed once, in chunks, on the device of the run, and kept on disk.

Features of private samples are as private as the samples. The folder they are kept in is for its owner alone (mode
0700, files 0600), never inside a run folder, and the hash of the samples that names a file is seen there only.
"""

from __future__ import annotations

import copy
import hashlib
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from privsgp.errors import Refused
from privsgp.features.array_cache import keep, read

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[np.float32]

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
        raise Refused(
            f"features of a sample depend on the other samples of its batch (by {(together - alone).abs().max():.3g})",
            "make every operation of the encoder act on each sample alone, without dropout or coins",
        )
    return still


def output_shape(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a sample's features."""
    with torch.no_grad():
        return tuple(module(torch.zeros(2, *shape)).shape[1:])


def digest(module: nn.Module) -> str:
    """Return the SHA-256 of what a frozen module is made of."""
    parts = hashlib.sha256(repr(module).encode())
    for name, value in sorted(module.state_dict().items()):
        parts.update(name.encode())
        parts.update(value.detach().cpu().contiguous().numpy().tobytes())
    return parts.hexdigest()


def encode(module: nn.Module, x: Array, device: torch.device) -> Array:
    """Return the features of samples, rounded to float16's 11 bits: what is read from disk later is the same.

    Guarantee: row j depends on sample j alone.
    """
    module = module.to(device)
    rows = np.zeros((0,), np.float16)
    chunk = _CHUNK[device.type]
    with torch.no_grad():
        for start in range(0, len(x), chunk):
            part = torch.from_numpy(x[start : start + chunk]).to(device)
            out = module(part).float().clamp(-_LARGEST, _LARGEST).nan_to_num(0.0).half().cpu().numpy()
            rows = rows if start else np.empty((len(x), *out.shape[1:]), np.float16)
            rows[start : start + len(out)] = out
    return rows.astype(np.float32)


def encode_once(module: nn.Module, x: Array, device: torch.device, folder: Path | None) -> Array:
    """Return `encode`'s features, from the folder if they are there; a folder that cannot be used is left alone.

    Assumes: where there is a folder, the module is what its weights and its shape of output say.
    """
    if folder is None:
        return encode(module, x, device)
    name = hashlib.sha256(f"{digest(module)} {x.shape} {device.type} {torch.__version__}".encode())
    name.update(np.ascontiguousarray(x).tobytes())
    path = folder / f"{name.hexdigest()}.npz"
    kept = read(path)
    if kept is not None and kept["features"].shape == (len(x), *output_shape(module, x.shape[1:])):
        return kept["features"].astype(np.float32)
    made = encode(module, x, device)
    keep(path, {"features": made.astype(np.float16)})
    return made
