"""What the rounding of a run's arithmetic may add to its sensitivity: the slack κ that is counted, and what it covers.

κ is for each gradient's norm and clip; half of it is left for sums (privacy.md, "Clipping"; docs/privacy.md, "Sums").
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch
from torch import nn

from privsgp.accounting.mechanisms import Anchored, Sag, Saga
from privsgp.errors import Refused
from privsgp.gradients.positions import cancelled
from privsgp.randomness.coins import capacity

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.engine.spec import Job

_EPS = torch.finfo(torch.float64).eps / 2  # what an addition rounds by
_CHUNK = 64  # samples whose gradients are added at once where all of a node's are
_EMULATED = ("CUBLAS_EMULATE_DOUBLE_PRECISION", "CUBLAS_EMULATION_STRATEGY")
_PLACED = (nn.Linear, nn.Embedding, nn.modules.conv._ConvNd)


def kappa(dtype: torch.dtype, device: torch.device, *, positions: int = 1) -> float:
    """Return the relative slack κ of the arithmetic in which gradients are measured and clipped (privacy.md).

    Where layers are used at many `positions`, which may cancel, it is larger (`gradient.positions`). Sums take less
    than half of it (`refuse_vast`): where noise is secret they are formed in float64 (`per_sample.PerSample`).
    """
    if device.type == "cuda" and (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32):
        return 2.0**-8
    if dtype == torch.float64:  # sums have no more bits here than what they are sums of
        return 2.0**-12 if positions > 1 else 2.0**-20
    return 2.0**-8 if positions > 1 or dtype != torch.float32 else 2.0**-12


def positions(model: nn.Module, made_up: Tensor) -> int:
    """Return at how many places of a sample, such as the `made_up` ones, the model uses a layer at most.

    It is two at least for a convolution, an embedding and a linear layer on rows of a sample, which are treated alike.
    """
    seen = [1]

    def note(layer: nn.Module, _given: object, out: Tensor) -> None:
        features = out.shape[-1] if isinstance(layer, (nn.Linear, nn.Embedding)) else out.shape[1]
        seen.append(max(out[0].numel() // features, 1 if isinstance(layer, nn.Linear) and out.ndim == 2 else 2))

    hooks = [layer.register_forward_hook(note) for layer in model.modules() if isinstance(layer, _PLACED)]
    like = next(model.parameters(), made_up)
    try:
        with torch.no_grad():
            model(made_up.to(like.device, like.dtype if made_up.is_floating_point() else made_up.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    return max(seen)


def refuse_coarser(job: Job) -> None:
    """Refuse to compute in a coarser arithmetic than the one the noise was calibrated for."""
    if not job.algorithm.private:
        return
    now = kappa(job.dtype, job.device, positions=positions(job.learning.model, job.learning.made_up()[0]))
    counted = min(mechanism.kappa for mechanism in job.mechanisms)
    if now > counted:
        raise Refused(
            f"κ = {counted:g} was counted, and this arithmetic has κ = {now:g}",
            "leave torch.backends.*.allow_tf32 as they are while a run is prepared and trained",
        )
    emulated = [name for name in _EMULATED if os.environ.get(name, "0") != "0"]
    if emulated and job.device.type == "cuda" and not job.simulation:
        raise Refused(f"{emulated[0]} = {os.environ[emulated[0]]!r}: cuBLAS may make up float64", "leave it unset")


def refuse_vast(job: Job, places: int) -> None:
    """Refuse secret noise where sums could round by more than half of κ; `places` as `positions` tells.

    The other half is for what a draw is above its expected size, and for the clip itself.
    """
    if job.simulation or not job.algorithm.private:
        return
    for m in set(job.protection.mechanisms):
        block = job.settings.block_size
        slots = capacity(m, job.nodes, block)
        off = rounding(m, slots, block, steps=job.steps, places=places)
        if off > m.kappa / 2:
            raise Refused(
                f"sums of {slots:,} gradients of layers at {places:,} positions, {job.steps:,} steps and {m.samples:,} "
                f"samples may round by {off:.2g} of the clip, and κ/2 = {m.kappa / 2:.2g}",
                "take a smaller algorithm.batch, fewer steps, fewer samples a node, or a `seed` for a simulation",
            )


def rounding(m: Mechanism, slots: int, block: int, *, steps: int, places: int) -> float:
    """Return by how much of G the sums of a run in float64 may differ, with and without a record, beyond its share.

    Guarantee: added in any order, s terms whose lengths sum up to ℓ round by at most s ℓ 2⁻⁵³. The gradients of t
    samples in the ball of radius G have t p terms at p positions, t c G long together where they may cancel c-fold; s
    of them, t at a time, round by (c p t s + s²/t) 2⁻⁵³ G, twice that with and without a record, and as much again
    for old entries. A mean that is moved K times rounds by K 2⁻⁵² G, and has a share of 1/J for each record.
    """
    off = _sum(slots, slots, places)
    if isinstance(m, Anchored):
        off = max(off, _sum(m.anchor.batch, slots, places))
    if isinstance(m, (Saga, Sag)):
        off += _sum(m.samples, _CHUNK + block, places) + 2 * _EPS * steps * m.samples
    return off


def _sum(samples: float, at_once: int, places: int) -> float:
    cancel = cancelled(torch.float64, places) if places > 1 else 1.0
    return 4 * _EPS * (cancel * places * min(at_once, samples) * samples + samples**2 / at_once)
