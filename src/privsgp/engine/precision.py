"""Refuses a run whose arithmetic rounds by more than the slack κ that its noise was calibrated for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from privsgp.devices import device_of
from privsgp.errors import Refused
from privsgp.gradients.rounding import kappa, sum_error, table_error
from privsgp.gradients.rules.ruled import positions
from privsgp.randomness.coins import capacity

if TYPE_CHECKING:
    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.engine.spec import RunSpec


def refuse_coarser(spec: RunSpec) -> None:
    """Refuse to compute in a coarser arithmetic than the one the noise was calibrated for."""
    if not spec.algorithm.private:
        return
    now = kappa(spec.dtype, spec.device, positions=positions(spec.learning.model, spec.learning.made_up()[0]))
    counted = min(mechanism.kappa for mechanism in spec.mechanisms)
    if now > counted:
        raise Refused(
            f"κ = {counted:g} was counted, and this arithmetic has κ = {now:g}",
            "leave torch.backends.*.allow_tf32 as they are while a run is prepared and trained",
        )
    emulated = device_of(spec.device).emulates_float64
    if emulated and not spec.simulation:
        raise Refused(f"{emulated} = {os.environ[emulated]!r}: cuBLAS may make up float64", "leave it unset")


def refuse_vast(spec: RunSpec, places: int) -> None:
    """Refuse secret noise where sums could round by more than half of κ; `places` as `positions` tells.

    The other half is for what a draw is above its expected size, and for the clip itself.
    """
    if spec.simulation or not spec.algorithm.private:
        return
    for m in set(spec.protection.mechanisms):
        block = spec.settings.block_size
        slots = capacity(m, spec.nodes, block)
        off = rounding_error(m, slots, block, steps=spec.steps, places=places)
        if off > m.kappa / 2:
            raise Refused(
                f"sums of {slots:,} gradients of layers at {places:,} positions, {spec.steps:,} steps and "
                f"{m.samples:,} samples may round by {off:.2g} of the clip, and κ/2 = {m.kappa / 2:.2g}",
                "take a smaller algorithm.batch, fewer steps, fewer samples a node, or a `seed` for a simulation",
            )


def rounding_error(m: Mechanism, slots: int, block: int, *, steps: int, places: int) -> float:
    """Return by how much of G a run's sums in float64 may differ, with and without a record, beyond its share."""
    off = sum_error(max(slots, m.largest_batch), slots, places)
    if m.has_table:
        off += table_error(m.samples, block, steps=steps, positions=places)
    return off
