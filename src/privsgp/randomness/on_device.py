"""Noise on a GPU: it is drawn there, with a copy of its key in the GPU's memory, where Triton can be imported."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import torch

from privsgp.devices import device_of, have_triton
from privsgp.errors import Refused
from privsgp.randomness.noise import refuse_wide, spacing, spacings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from privsgp.randomness.noise import Secure, Source, Streams

LONGEST = 1 << 30  # columns that a GPU draws


def add_noise_(g: torch.Tensor, source: Source, nodes: Sequence[int], step: int, sigma: Sequence[float]) -> None:
    """Add N(0, σ_r² I) to each row of `g` [m, d] in place, as `noise.add_noise_` says."""
    noised = torch.empty(g.shape, dtype=torch.float64 if source.secret else g.dtype, device=g.device)
    source.fill_normal(noised, nodes, step)
    noised.mul_(torch.tensor(sigma, dtype=noised.dtype, device=g.device)[:, None]).add_(g)
    if source.secret:
        snap_(noised, sigma)
    g.copy_(noised)


def fill_seeded(out: torch.Tensor, seed: int, nodes: Sequence[int], step: int) -> None:
    """Fill rows with the normals of a simulation, by a generator that was made for a GPU."""
    refuse_wide(step=step)
    here, key = torch.tensor(list(nodes), device=out.device), philox_key(seed, out.device)

    def kernel(rows: torch.Tensor) -> None:
        from privsgp.kernels import push

        push.fill_normal(rows, here, key, step)

    _fill(out, out.dtype, kernel)


def fill_secret(out: torch.Tensor, drawn: Streams, nodes: Sequence[int], step: int) -> None:
    """Fill rows with the normals of a draw, which are those of its key."""

    def kernel(rows: torch.Tensor) -> None:
        from privsgp.kernels import chacha

        for node in nodes:
            refuse_wide(node=node, step=step)
        here = torch.tensor(list(nodes), dtype=torch.int64, device=rows.device)
        chacha.fill_normal(rows, here, _device_key(drawn, rows.device), step)

    _fill(out, torch.float64, kernel)


def step_(
    x: torch.Tensor, g: torch.Tensor, source: Secure, nodes: range, step: int, *,
    levels: torch.Tensor, step_size: float,
) -> None:  # fmt: skip
    """Take γ times g [m, d] with its noise, rounded to its grid, from x, in one kernel; see `chacha.step`.

    Guarantee: that of `noise.add_noise_`; nothing waits for the device.
    """
    from privsgp.kernels import chacha

    for node in (nodes[0], nodes[-1]):
        refuse_wide(node=node, step=step)
    _, drawn = source.claim("noise", nodes, step)
    here = _numbers(nodes.start, nodes.stop, x.device)
    chacha.step(x, g, here, levels, _device_key(drawn, x.device), step, step_size)


@lru_cache(8)
def philox_key(seed: int, device: torch.device) -> torch.Tensor:
    """Return the key of the noise that a GPU draws (see `privsgp.kernels.push`), one int64 on the device."""
    digest = hashlib.blake2b(f"privsgp 1 noise philox {seed}".encode()).digest()
    return torch.tensor([int.from_bytes(digest[:8]) >> 1], device=device)


def snap_(y: torch.Tensor, sigma: Sequence[float]) -> None:
    """Round each row of the noised `y` [m, d] to its public grid, in place; `noise.spacing` says why.

    Guarantee: in exact arithmetic this is post-processing and costs no privacy. In float64 a coordinate falls into
    another cell than in exact arithmetic only if it lies within its rounding error, 2⁻⁵³ (|g| + 30 |σN|) for most, of
    a cell's edge. That changes a cell's probability by a factor within 10⁻¹² of 1, mostly; `sampler_cost` counts it.

    Assumes: `y` was summed in float64; log, sqrt, cos and sin err by at most 4 ulp. No claim about timing.
    """
    grids = spacings(sigma)
    if len(grids) != len(y):
        raise ValueError(f"{len(grids)} σ for {len(y)} rows")
    start = 0
    for grid, equal in groupby(grids.tolist()):
        stop = start + len(list(equal))
        if grid:
            y[start:stop].div_(grid).round_().mul_(grid).add_(0.0)  # −0 would tell more than its cell
        start = stop


def levels(sigma: Sequence[float], device: torch.device) -> torch.Tensor:
    """Return each σ, the spacing of its grid and one over that, [m, 3]: what `step_` wants."""
    grid = [spacing(s) for s in sigma]
    return torch.tensor(list(zip(sigma, grid, [1 / s for s in grid], strict=True)), dtype=torch.float64, device=device)


def _device_key(drawn: Streams, device: torch.device) -> torch.Tensor:
    """Return a copy of a draw's key on a device; from page-locked memory nobody waits for it.

    It is the draw's own: that of the source may be another thread's already.
    """
    key = torch.from_numpy(np.frombuffer(drawn.key("noise"), "<i4").copy())
    return key.pin_memory().to(device, non_blocking=True) if device_of(device).has_cudnn else key.to(device)


@lru_cache(8)
def _numbers(start: int, stop: int, device: torch.device) -> torch.Tensor:
    """Return start … stop − 1 on a device: those of a run's nodes, step after step."""
    return torch.arange(start, stop, device=device)


def _fill(out: torch.Tensor, dtype: torch.dtype, kernel: Callable[[torch.Tensor], None]) -> None:
    """Let a kernel fill `out`, or contiguous rows of its own precision that are copied there."""
    if not have_triton() or out.shape[1] >= LONGEST:
        what = f"noise of {out.shape[1]:,} numbers a node on {out.device}"
        raise Refused(what, f"install Triton; a GPU draws fewer than {LONGEST:,} numbers a node, a CPU any number")
    fits = out.is_contiguous() and out.dtype == dtype
    rows = out if fits else torch.empty(out.shape, dtype=dtype, device=out.device)
    kernel(rows)
    if rows is not out:
        out.copy_(rows)
