"""Where a table lies, beside the computation or in the machine's memory, and how its rows are read and written.

The choice follows from sizes alone, which are public, and is logged before anything is computed.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from privsgp import devices
from privsgp.errors import Refused
from privsgp.files import in_units
from privsgp.kernels import at_once

if TYPE_CHECKING:
    from torch import Tensor

_SHARE = 0.75  # of what is free; steps need the rest
_LOG = logging.getLogger(__name__)


def place(size: int, words: str, device: torch.device) -> torch.device:
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


def gather(table: Tensor, rows: Tensor) -> Tensor:
    """Return table[i, rows[i, j]] on the device of `rows`, wherever the table lies."""
    return table.flatten(0, 1).index_select(0, _flat(table, rows)).view(*rows.shape, *table.shape[2:]).to(rows.device)


def gather_like(table: Tensor, rows: Tensor, like: Tensor, factor: Tensor | None = None) -> Tensor:
    """Return `gather`'s numbers, times `factor` [m, b], in the precision of `like` and laid out as it is."""
    samples_first = like.stride(0) < like.stride(1)
    if table.device == rows.device and like.is_floating_point() and at_once(table.flatten(2)):
        from privsgp.kernels.rows import take

        m, b, numbers = *rows.shape, table[0, 0].numel()
        out = like.new_empty(b, m, numbers).transpose(0, 1) if samples_first else like.new_empty(m, b, numbers)
        take(table.flatten(2), rows.contiguous(), out, factor)
        return out.view(m, b, *table.shape[2:])
    if samples_first:
        flat = _flat(table, rows).view(rows.shape).t().flatten()
        found = table.flatten(0, 1).index_select(0, flat).to(rows.device, like.dtype)
        found = found.view(rows.shape[1], rows.shape[0], *table.shape[2:]).transpose(0, 1)
    else:
        found = gather(table, rows).to(like.dtype)
    return found if factor is None else found * _column(factor, found).to(found.dtype)


def put(table: Tensor, rows: Tensor, value: Tensor, factor: Tensor) -> None:
    """Do `scatter`, with 0 for samples whose factor [m, b] is 0."""
    flat = value.flatten(2)
    if table.device == rows.device and value.is_floating_point() and at_once(table.flatten(2)) and at_once(flat):
        from privsgp.kernels import rows as kernels

        kernels.put(table.flatten(2), rows.contiguous(), flat, factor)
    else:
        scatter(table, rows, value.masked_fill(_column(factor, value) == 0, 0))


def rounded(f: Tensor, dtype: torch.dtype) -> Tensor:
    """Return f [m, b, …] as `dtype` has it, in its own precision."""
    flat = f.flatten(2)
    if dtype == torch.bfloat16 and at_once(flat):
        from privsgp.kernels import rows

        return rows.rounded(flat).view(f.shape)
    return f.to(dtype).to(f.dtype)


def _column(factor: Tensor, like: Tensor) -> Tensor:
    return factor.view(*factor.shape, *[1] * (like.ndim - 2))


def scatter(table: Tensor, rows: Tensor, value: Tensor) -> None:
    """table[i, rows[i, j]] = value[i, j]; a row that occurs twice must get the same value."""
    flat, value = _flat(table, rows).view(rows.shape), value.to(table.dtype)
    if value.stride(0) < value.stride(1):
        flat, value = flat.t(), value.transpose(0, 1)
    table.flatten(0, 1).index_copy_(0, flat.flatten(), value.flatten(0, 1).to(table.device))


def clear(table: Tensor, rows: Tensor) -> None:
    """table[i, rows[i, j]] = 0."""
    table.flatten(0, 1).index_fill_(0, _flat(table, rows), 0)


def _flat(table: Tensor, rows: Tensor) -> Tensor:
    """Number the rows of all nodes' tables through, [m · b]."""
    there = rows if rows.device == table.device else rows.to(table.device)
    starts = _kept_starts if devices.device_of(table).in_host_memory else _starts  # in a recorded step nothing is kept
    return (there + starts(rows.shape[0], table.shape[1], table.device)).flatten()


def _starts(nodes: int, rows: int, device: torch.device) -> Tensor:
    """Return where each node's rows begin, [m, 1]."""
    return torch.arange(nodes, device=device)[:, None] * rows


_kept_starts = lru_cache(64)(_starts)  # the same step after step, and small calls are what threads wait for
