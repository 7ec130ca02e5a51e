from __future__ import annotations

import numpy as np
import torch

from privsgp.data import from_arrays, stack

X = np.arange(1, 25, dtype=np.float32).reshape(6, 2, 2)
Y = np.array([0, 1, 2, 1, 2, 1])
PARTS = [np.array([4, 0, 2]), np.array([1])]


def test_rows_are_where_they_belong_and_the_rest_is_zero():
    stacked = stack(from_arrays(X, Y), PARTS)
    assert stacked.samples == [3, 1]
    assert stacked.inputs.shape == (2, 4, 2, 2)
    assert torch.equal(stacked.inputs[0, :3], torch.from_numpy(X[PARTS[0]]))
    assert torch.equal(stacked.inputs[1, :1], torch.from_numpy(X[PARTS[1]]))
    assert stacked.targets.tolist() == [[2, 0, 2, 0], [1, 0, 0, 0]]
    assert stacked.targets.dtype == torch.int64
    assert not stacked.inputs[1, 1:].any()


def test_the_dummy_row_is_nobodys():
    stacked = stack(from_arrays(X, Y), PARTS)
    assert stacked.inputs.shape[1] == max(stacked.samples) + 1
    assert not stacked.inputs[:, -1].any()
    assert not stacked.targets[:, -1].any()


def test_several_real_targets():
    stacked = stack(from_arrays(X, X[:, 0], task="regression"), PARTS)
    assert stacked.targets.dtype == torch.float32
    assert stacked.targets.shape == (2, 4, 2)
    assert torch.equal(stacked.targets[1, 0], torch.from_numpy(X[1, 0]))
