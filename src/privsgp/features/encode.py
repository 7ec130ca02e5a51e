"""Features of the nodes' samples: computed once, in chunks, on the device of the run, and kept on disk.

Features of private samples are as private as the samples. The folder they are kept in is for its owner alone (mode
0700, files 0600), never inside a run folder, and the hash of the samples that names a file is seen there only.

Features in the place of samples: the map that a configuration names, applied to what lies on the nodes here.

Arrays on disk for their owner alone: the folder has mode 0700, its files 0600.

It only ever saves time: a file that is missing or damaged is computed again, and a folder that cannot be written
to is left alone.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import hashlib
import itertools
import json
import os
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from privsgp import features
from privsgp.errors import Refused
from privsgp.features import wordllama
from privsgp.features.options import WORDLLAMA
from privsgp.files import cache_folder, own_folder, replace
from privsgp.seeds import public_seed

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[np.float32] | NDArray[np.int64]
    from collections.abc import Mapping, Sequence

    from privsgp.data import Dataset


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
    chunk = _CHUNK.get(device.type, _CHUNK["cpu"])
    with torch.no_grad():
        for start in range(0, len(x), chunk):
            part = torch.from_numpy(x[start : start + chunk]).to(device)
            out = as_kept(module(part)).cpu().numpy()
            rows = rows if start else np.empty((len(x), *out.shape[1:]), np.float16)
            rows[start : start + len(out)] = out
    return rows.astype(np.float32)


def as_kept(rows: Tensor) -> Tensor:
    """Return features in the float16 that they are kept in."""
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


def encode_once(module: nn.Module, x: Array, device: torch.device, folder: Path | None) -> NDArray[np.float32]:
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


_KEYS = ("scales", "angles", "order", "filters", "patch", "grid", "like", "components", "power")


def make_encoder(
    name: str, options: dict[str, Any], shape: tuple[int, ...]
) -> tuple[nn.Module | None, tuple[int, ...]]:
    """Return the feature map of a name with those options that were given, and the shape of what comes out.

    They alone decide which map it is: whoever has them can make the map that a model needs, whatever the run.
    """
    if name in ("none", "module"):
        return None, shape
    if name == WORDLLAMA:
        words = wordllama.make(shape)
        return words, features.output_shape(words, shape)
    # Keys that came later and are not given are left out: a map stays what it was.
    values = {"name": name} | {key: options.get(key) for key in _KEYS}
    values |= {key: options[key] for key in ("mirror", "size") if key in options}
    seed = public_seed(None, json.dumps(values, separators=(",", ":")), "features")
    encoder = features.make(features.Choice(name, **options), shape, seed, _private_folder())
    return encoder, features.output_shape(encoder, shape)


def _private_folder() -> Path | None:
    """Return where features of private samples are kept, for their owner alone; None without a home folder."""
    try:
        return cache_folder() / "features"
    except RuntimeError:
        return None


def encoded(d: Dataset, parts: Sequence[NDArray[np.int64]], encoder: nn.Module, device: torch.device) -> Dataset:
    """Put features in the place of samples."""
    if isinstance(encoder, features.FeatureMap):
        encoder.refuse_other_values(d)
    # A module of the user's may be more than its weights say: what it makes is not kept.
    known = isinstance(encoder, features.FeatureMap | wordllama.WordLlama)
    kept = _private_folder() if known else None
    nodes = [features.encode_once(encoder, d.x[rows], device, kept) for rows in parts]
    x = np.zeros((len(d.x), *nodes[0].shape[1:]), np.float32)
    for rows, own in zip(parts, nodes, strict=True):
        x[rows] = own
    x_test = None if d.x_test is None else features.encode_once(encoder, d.x_test, device, kept)
    return dataclasses.replace(d, x=x, x_test=x_test, vocabulary=None)


def read(path: Path) -> dict[str, NDArray[Any]] | None:
    """Return the arrays of a file, None where there is none to rely on, or where others may write."""
    try:
        if own_folder(lambda: path.parent) is None:
            return None
        with path.open("rb") as file, np.load(file) as kept:
            return dict(kept)
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error):
        return None


def keep(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a file at once: another process sees all of it or nothing."""
    with contextlib.suppress(OSError):
        if own_folder(lambda: path.parent, make=True) is not None:
            path.parent.chmod(0o700)
            replace(path, lambda temporary: _save(temporary, arrays))


def _save(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
