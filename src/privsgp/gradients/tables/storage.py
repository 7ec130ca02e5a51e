"""Storage of tables, on the device or in the machine's memory, and access to their rows.

The choice follows from sizes alone, which are public, and is logged before anything is computed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from privsgp import devices
from privsgp.devices import at_once
from privsgp.errors import Refused
from privsgp.files import in_units
from privsgp.gradients.per_sample import broadcast, numbered

if TYPE_CHECKING:
    from torch import Tensor

_SHARE = 0.75  # of what is free; steps need the rest
_LOG = logging.getLogger(__name__)


def table_device(size: int, words: str, device: torch.device) -> torch.device:
    """Return where a table of `size` bytes lies: on the device, or in memory if the device has no room."""
    free = {device: devices.free_on(device), torch.device("cpu"): devices.free_memory()}
    for where, room in free.items():
        if size <= _SHARE * room:
            name = "on the device" if where == device else "in memory"
            _LOG.info("table: %s = %s, %s (%s free)", words, in_units(size), name, in_units(room))
            return where
    raise Refused(
        f"a table of {words} takes {in_units(size)}, and {in_units(max(free.values()))} are free",
        f"a table may take {_SHARE:.0%} of that: take algorithm.table_dtype = 'bfloat16', fewer samples a node, or "
        "'privsgp', which keeps no table",
    )


def put(table: Tensor, rows: Tensor, value: Tensor, factor: Tensor) -> None:
    """Do `scatter`, with 0 for samples whose factor [m, b] is 0."""
    flat = value.flatten(2)
    if table.device == rows.device and value.is_floating_point() and at_once(table.flatten(2)) and at_once(flat):
        from privsgp.kernels import rows as kernels

        kernels.put(table.flatten(2), rows.contiguous(), flat, factor)
    else:
        scatter(table, rows, value.masked_fill(broadcast(factor, value) == 0, 0))


def rounded(f: Tensor, dtype: torch.dtype) -> Tensor:
    """Return f [m, b, …] as `dtype` has it, in its own precision."""
    flat = f.flatten(2)
    if dtype == torch.bfloat16 and at_once(flat):
        from privsgp.kernels import rows

        return rows.rounded(flat).view(f.shape)
    return f.to(dtype).to(f.dtype)


def scatter(table: Tensor, rows: Tensor, value: Tensor) -> None:
    """table[i, rows[i, j]] = value[i, j]; a row that occurs twice must get the same value."""
    order, value = numbered(table, rows), value.to(table.dtype)
    if value.stride(0) < value.stride(1):
        order, value = order.t(), value.transpose(0, 1)
    table.flatten(0, 1).index_copy_(0, order.flatten(), value.flatten(0, 1).to(table.device))


def clear(table: Tensor, rows: Tensor) -> None:
    """table[i, rows[i, j]] = 0."""
    table.flatten(0, 1).index_fill_(0, numbered(table, rows).flatten(), 0)
