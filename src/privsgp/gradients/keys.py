"""The key of each drawn sample, from which its dropout follows (`dropout.py`): a hash of public numbers.

It is that of the run's public seed, the node, the step and the number of the sample, and of nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

ODD = (-7046029254386353131, -4658895280553007687, -7723592293110705685)  # of splitmix64 (Steele et al. 2014)


def mixed(x: Tensor) -> Tensor:
    """Return splitmix64's finaliser; shifts of negative numbers bring ones along, which are masked off."""
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * ODD[1]
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * ODD[2]
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def sample_keys(seed: int, nodes: NDArray[np.int64], steps: NDArray[np.int64], rows: NDArray[np.int64]) -> Tensor:
    """Return the key of each drawn sample, [m, b]: of node nodes[i], at its step steps[i], the sample rows[i, j]."""
    start = torch.tensor([seed % 2**63], dtype=torch.int64)
    key = mixed(start + torch.from_numpy(nodes) * ODD[0])
    key = mixed(key + torch.from_numpy(steps) * ODD[0])
    return mixed(key[:, None] + torch.from_numpy(rows) * ODD[0])
