"""The numbers of pairs whose ends are two sites, and the keys that they are made under."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from privsgp.devices import device_of
from privsgp.errors import Refused
from privsgp.randomness.noise import Streams
from privsgp.randomness.snapshot import clock_offset, refuse_old_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from privsgp.randomness.noise import Rows


class PairStreams(Streams):
    """The normals of pairs whose ends are in different processes, each under a key that only these two have.

    Guarantee: of one (pair, step) the numbers are handed out once, and steps of a pair go forward. If the machine's
    clocks show that its memory may be old, none are used: a peer may have seen what they hid before.

    Assumes: keys are of this life of the process alone. Numbers are made on the host, so that both ends' are the same
    whatever their devices.
    """

    remedy = "start all processes again: they then share other secrets"

    def __init__(self, keys: dict[int, bytes]) -> None:
        super().__init__({str(pair): key for pair, key in keys.items()})
        self._last: dict[int, int] = {}
        self._offset = clock_offset()

    def __reduce_ex__(self, protocol: object) -> Any:  # noqa: ANN401 - it never returns
        raise Refused("pair streams cannot be copied or pickled", "keys stay in one object's memory")

    def fill_normal(self, out: Tensor, nodes: Sequence[int], step: int) -> None:
        """Fill row r of `out` [m, d] with the standard normals of pair `nodes[r]`; each can be drawn once."""
        refuse_old_memory(self._offset, self.remedy)
        for pair in nodes:
            if step <= self._last.get(pair, -1):
                remedy = f"two messages under one pair's numbers show their difference; {self.remedy}"
                raise Refused(f"noise of pair {pair}, step {step}: already used", remedy)
            self._last[pair] = step
        host = out if device_of(out).in_host_memory else torch.empty(out.shape, dtype=torch.float64)
        self._fill(host.numpy(), nodes, step, np.float64)
        if host is not out:
            out.copy_(host)

    def _read(self, rows: Rows, purpose: str, nodes: Sequence[int], step: int, block: int = 0) -> None:
        del purpose
        for row, pair in zip(rows, nodes, strict=True):
            super()._read([row], str(pair), [pair], step, block)


def derived(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """Return the key of a pair's stream: HKDF-SHA256."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, salt=salt, info=info).derive(secret)
