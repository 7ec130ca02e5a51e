"""Noise drawn before it is needed: while messages travel, or by a second thread while gradients are computed.

The numbers are those the source gives at that step anyway.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from privsgp.devices import device_of
from privsgp.randomness.noise import clock_offset, clocks_parted
from privsgp.randomness.rough import Roughly

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.randomness.noise import Prefetchable
    from privsgp.randomness.rough import Rough


class PrefetchedNoise:
    """Standard normals of a source, of which one step's of a block can be drawn beforehand.

    Guarantee: that of the source it draws from; what was drawn ahead is handed out once, and secret noise not at all
    where the clocks show that the machine may have been put back to a snapshot since: then it is drawn again.
    """

    def __init__(self, source: Prefetchable, nodes: range) -> None:
        self.source, self.nodes = source, nodes
        self._two = torch.get_num_threads() > 1  # asked now: `leave_one_core` makes it one where two are in use
        self._drawn: tuple[int, int] | None = None
        self._offset = 0.0  # of the clocks, when it was drawn
        self._given = 0  # rows of what was drawn that were handed out
        self._normals = torch.empty(0)
        self._rough: Rough | None = None
        self._drawing: threading.Thread | None = None
        self._begun: tuple[int, int] | None = None

    @property
    def secret(self) -> bool:
        """Whether nobody else can draw the same."""
        return self.source.secret

    @property
    def can_be_rough(self) -> bool:
        """Whether the source can be drawn roughly."""
        return isinstance(self.source, Roughly) and self.source.can_be_rough

    def prepare(self, like: torch.Tensor, step: int, attempt: int) -> None:
        """Draw the noise of a step for rows shaped like `like`."""
        self._offset = clock_offset()
        if device_of(like).in_host_memory and self.can_be_rough:
            self._rough = None  # two steps' would be too much
            self._rough = _rough(self.source, self.nodes, like.shape[1], step, attempt)
        else:
            dtype = torch.float64 if self.secret else like.dtype
            if self._normals.shape != like.shape:
                self._normals = torch.empty(like.shape, dtype=dtype, device=like.device)
            self.source.fill_normal(self._normals, self.nodes, step, attempt)
        self._drawn, self._given = (step, attempt), 0

    def begin(self, like: torch.Tensor, step: int, attempt: int) -> None:
        """Let a second thread draw the noise of a step, unless it is there already or there is but one core to use."""
        if (step, attempt) in (self._drawn, self._begun):
            return
        if device_of(like).in_host_memory and self._two:
            self._finish()
            self._begun = step, attempt
            self._drawing = threading.Thread(target=self.prepare, args=(like, step, attempt))
            self._drawing.start()

    def _finish(self) -> None:
        if self._drawing is not None:
            self._drawing.join()
            self._drawing = self._begun = None

    def fill_normal(self, out: torch.Tensor, nodes: Sequence[int], step: int, attempt: int = 0) -> None:
        """Fill row r of `out` with the standard normals of node `nodes[r]`."""
        rows = self._ready(nodes, step, attempt)
        if rows is None:
            self.source.fill_normal(out, nodes, step, attempt)
        elif self._rough is not None:
            out.copy_(torch.from_numpy(self._rough.rows(*rows).everything()))
        else:
            out.copy_(self._normals[slice(*rows)])

    def rough(self, nodes: Sequence[int], columns: int, step: int, attempt: int) -> Rough:
        """Return the same for `add_rough_`, of a source that can be drawn roughly."""
        rows = self._ready(nodes, step, attempt)
        if rows is None or self._rough is None:
            return _rough(self.source, nodes, columns, step, attempt)
        return self._rough.rows(*rows)

    def _ready(self, nodes: Sequence[int], step: int, attempt: int) -> tuple[int, int] | None:
        """Return which rows of what was drawn are now handed out; None where the source has to be asked."""
        self._finish()
        first = nodes[0] - self.nodes.start
        if self.secret and self._drawn is not None and clocks_parted(self._offset):
            self.source.undraw("noise", self.nodes[self._given :], *self._drawn)
            self._drawn = None
        if self._drawn != (step, attempt) or first != self._given:  # the source knows what may be drawn again
            return None
        self._given = first + len(nodes)
        if self._given == len(self.nodes):
            self._drawn = None
        return first, self._given


def _rough(source: Prefetchable, nodes: Sequence[int], columns: int, step: int, attempt: int) -> Rough:
    if not isinstance(source, Roughly):
        raise TypeError(f"{type(source).__name__} cannot be drawn roughly")
    return source.rough(nodes, columns, step, attempt)
