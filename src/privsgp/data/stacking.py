"""The data of a block of nodes as one array per quantity, so that m nodes take a step in one batched operation.

Nodes have different J_i: all are padded with zeros to the longest. One more row, the last, belongs to nobody: padding
slots of a batch point to it and never to a real sample (privacy.md, Randomness).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from privsgp.data.dataset import Dataset


@dataclass(frozen=True, eq=False)
class Stacked:
    """`inputs` [m, Jmax + 1, ...], `targets` [m, Jmax + 1, ...] and the number of real rows of each node, J_i."""

    inputs: torch.Tensor
    targets: torch.Tensor
    samples: list[int]

    @property
    def dummy(self) -> int:
        """The row that belongs to nobody: zeros, target 0."""
        return self.inputs.shape[1] - 1


def stack(dataset: Dataset, parts: Sequence[NDArray[np.int64]]) -> Stacked:
    """Node r of the block holds the rows `parts[r]` of the data set, in that order."""
    samples = [len(rows) for rows in parts]
    shape = (len(parts), max(samples) + 1)
    inputs = torch.zeros(shape + dataset.x.shape[1:], dtype=torch.float32)
    whole = dataset.classes is not None
    targets = torch.zeros(shape + dataset.y.shape[1:], dtype=torch.int64 if whole else torch.float32)
    for node, rows in enumerate(parts):
        inputs.numpy()[node, : len(rows)] = dataset.x[rows]
        targets.numpy()[node, : len(rows)] = dataset.y[rows]
    return Stacked(inputs, targets, samples)
