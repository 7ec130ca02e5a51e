"""Features of samples: what a fixed map makes of each sample alone, computed in chunks on the device of the run.

Features of private samples are as private as the samples. Those that are kept on disk are for their owner alone: the
folder has mode 0700, its files 0600. It only ever saves time: privsgp computes again what is missing or damaged, and
uses no folder that others can write to.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import itertools
import os
import stat
import sys
from typing import TYPE_CHECKING

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from privsgp.errors import Refused
from privsgp.files import replace, user_folder

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[np.float32] | NDArray[np.int64]

_CHUNK = {"cpu": 8, "cuda": 256}  # samples at a time: what a core's cache holds, what a GPU is busy with
_LARGEST = 65504.0  # of float16
_FEW = 20  # chunks that are done before anybody looks


def frozen(module: nn.Module, sample: Tensor) -> nn.Module:
    """Return a copy that no longer learns or changes; refuse one whose outputs depend on the rest of a batch.

    `sample` is a few *made-up* samples: the probe never sees private data. BatchNorm in evaluation mode is a fixed map
    of each sample, and passes.

    Guarantee: none beyond the probe; a module that mixes samples only on special inputs is not noticed.
    Assumes: the module's weights were not learnt from the nodes' data.
    """
    still = copy.deepcopy(module).cpu().float().eval().requires_grad_(requires_grad=False)
    with torch.no_grad():
        try:
            together = still(sample)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            remedy = "give samples the form that it takes; if it looks tokens up, say vocabulary=…"
            raise Refused(f"the features do not take samples of {list(sample.shape[1:])}: {error}", remedy) from error
        if not isinstance(together, Tensor) or together.shape[:1] != sample.shape[:1] or together.dim() < 2:
            raise Refused("the features do not give one row per sample", "return a tensor [B, ...]")
        alone = torch.cat([still(row[None]) for row in sample])
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4, equal_nan=True):
        remedy = "make every operation of the encoder act on each sample alone, without dropout or coins"
        raise Refused("the features of a sample depend on the other samples of its batch", remedy)
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
    """Return the features of samples, rounded to float16's 11 bits: what is read from disk later is the same.

    Guarantee: row j depends on sample j alone.
    """
    module = module.to(device)
    rows = np.zeros((0,), np.float16)
    chunk = max(_CHUNK.get(device.type, _CHUNK["cpu"]), getattr(module, "chunk", 0))
    starts = range(0, len(x), chunk)
    quiet = len(starts) < _FEW or not sys.stderr.isatty()
    with torch.no_grad():
        for start in track(starts, "features", console=Console(stderr=True), transient=True, disable=quiet):
            part = torch.from_numpy(x[start : start + chunk]).to(device)
            out = as_kept(module(part)).cpu().numpy()
            rows = rows if start else np.empty((len(x), *out.shape[1:]), np.float16)
            rows[start : start + len(out)] = out
    return rows.astype(np.float32)


def as_kept(rows: Tensor) -> Tensor:
    """Return features in the float16 that they are kept in."""
    return rows.float().clamp(-_LARGEST, _LARGEST).nan_to_num(0.0).half()


class Encoded(nn.Module):
    """A model with its feature map before it; it gives the same outputs as in the run."""

    def __init__(self, encoder: nn.Module, model: nn.Module) -> None:
        super().__init__()
        self.encoder, self.model = encoder, model

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for samples as they are brought."""
        kept = as_kept(self.encoder(x))
        out: Tensor = self.model(kept.to(next(self.model.parameters()).dtype))
        return out


def encode_once(module: nn.Module, x: Array, device: torch.device, folder: Path | None) -> NDArray[np.float32]:
    """Return `encode`'s features, from the folder if they are there; a folder that cannot be used is left alone.

    Assumes: where there is a folder, the module is what its weights and its shape of output say.
    """
    if folder is None:
        return encode(module, x, device)
    name = hashlib.sha256(f"{digest(module)} {x.shape} {device.type} {torch.__version__}".encode())
    name.update(np.ascontiguousarray(x).tobytes())
    path = folder / f"{name.hexdigest()}.npy"
    with contextlib.suppress(OSError, ValueError, EOFError):
        if _is_own(folder):
            kept: NDArray[np.float16] = np.load(path, allow_pickle=False)
            return kept.astype(np.float32)
    made = encode(module, x, device)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _is_own(folder):
            folder.chmod(0o700)
            replace(path, lambda temporary: _save(temporary, made))
    return made


def cache_folder() -> Path | None:
    """Return $PRIVSGP_CACHE, $XDG_CACHE_HOME/privsgp or ~/.cache/privsgp; None without a home folder."""
    try:
        return user_folder("PRIVSGP_CACHE", "XDG_CACHE_HOME", ".cache", "privsgp") / "features"
    except RuntimeError:
        return None


def _is_own(path: Path) -> bool:
    status = path.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _save(path: Path, features: NDArray[np.float32]) -> None:
    path.touch(0o600)
    with path.open("wb") as file:
        np.save(file, features.astype(np.float16))
