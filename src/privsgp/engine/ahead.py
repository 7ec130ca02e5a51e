"""Noise drawn ahead of its step, while messages travel. The numbers are those the source gives at that step anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from privsgp.privacy.noise import Source


class Ahead:
    """A source of randomness that can draw the noise of one step of a block beforehand.

    Guarantee: that of the source it draws from; what was drawn ahead is handed out once.
    """

    def __init__(self, source: Source, nodes: range) -> None:
        self.source, self.nodes = source, nodes
        self._drawn: tuple[int, int] | None = None
        self._normals = torch.empty(0)

    @property
    def secret(self) -> bool:
        """Whether nobody else can draw the same."""
        return self.source.secret

    def prepare(self, like: torch.Tensor, step: int, attempt: int) -> None:
        """Draw the noise of a step for rows shaped like `like`."""
        dtype = torch.float64 if self.secret else like.dtype
        if self._normals.shape != like.shape:
            self._normals = torch.empty(like.shape, dtype=dtype, device=like.device)
        self.source.fill_normal(self._normals, self.nodes, step, attempt)
        self._drawn = step, attempt

    def fill_normal(self, out: torch.Tensor, nodes: Sequence[int], step: int, attempt: int = 0) -> None:
        """Fill row r of `out` with the standard normals of node `nodes[r]`."""
        if self._drawn != (step, attempt):
            self.source.fill_normal(out, nodes, step, attempt)
            return
        first = nodes[0] - self.nodes.start
        out.copy_(self._normals[first : first + len(nodes)])
        if nodes[-1] == self.nodes[-1]:
            self._drawn = None

    def uniforms(self, node: int, step: int, count: int, attempt: int = 0) -> npt.NDArray[np.uint64]:
        """Return `count` coins."""
        return self.source.uniforms(node, step, count, attempt)
