from __future__ import annotations

import numpy as np
import pytest

from privsgp.data import from_arrays
from privsgp.errors import Refused

X = np.arange(12, dtype=np.float64).reshape(4, 3)
Y = np.array([0, 1, 2, 1])


def replaced(array, index, value):
    out = array.astype(np.float64)
    out[index] = value
    return out


def test_types_and_shapes():
    data = from_arrays(X, Y, X[:2], np.array([2.0, 0.0]), classes=3)
    assert (data.x.dtype, data.y.dtype, data.classes) == (np.float32, np.int64, 3)
    assert data.y_test is not None
    assert data.y_test.tolist() == [2, 0]
    assert np.array_equal(data.x, X)


def test_bytes_become_fractions():
    data = from_arrays(np.array([[0, 255], [51, 102]], np.uint8), np.array([0, 1]))
    assert np.allclose(data.x, [[0, 1], [0.2, 0.4]])


def test_regression_keeps_real_targets():
    data = from_arrays(X, X[:, :2], task="regression")
    assert data.classes is None
    assert data.y.dtype == np.float32
    assert data.y.shape == (4, 2)


def test_classes_are_counted_in_the_public_labels():
    assert from_arrays(X, np.array([0, 0, 1, 0]), X, np.array([0, 1, 2, 1])).classes == 3
    assert from_arrays(X, np.array([0, 0, 5, 0]), classes=10).classes == 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"x": replaced(X, (2, 1), np.nan)}, r"x\[2, 1\] = nan is not finite"),
        ({"x": replaced(X, (0, 0), -np.inf)}, r"x\[0, 0\] = -inf is not finite"),
        ({"x": replaced(X, (3, 2), 1e300)}, r"x\[3, 2\] = 1e\+300 is not finite in float32"),
        ({"x": X[:3]}, "x has 3 rows, .*y has 4"),
        ({"x": X[:0], "y": Y[:0]}, r"x has shape \(0, 3\)"),
        ({"x": X[:, 0]}, r"x has shape \(4,\)"),
        ({"x": X.astype(str)}, "x has dtype <U"),
        ({"y": np.array([0, 1, 1.5, 0])}, r"y\[2\] = 1.5 is no class number"),
        ({"y": np.array([0, np.nan, 1, 0])}, r"y\[1\] = nan"),
        ({"y": np.array([0, 1, 1, np.inf])}, r"y\[3\] = inf"),
        ({"y": np.array([1, -1, 1, 0])}, r"y\[1\] = -1 is outside 0..1"),
        ({"y": np.array([0, 1, 99, 2])}, "a label in y is 99 but none is 3"),
        ({"y": np.array([1, 2, 3, 1])}, "a label in y is 1 but none is 0"),
        ({"y": np.array([0, 3, 1, 2]), "x_test": X, "y_test": Y}, r"y\[1\] = 3 is outside 0..2"),
        ({"classes": 2}, r"y\[2\] = 2 is outside 0..1"),
        ({"classes": 3, "x_test": X, "y_test": Y + 1}, r"y_test\[2\] = 3 is outside 0..2"),
        ({"y": Y[:, None]}, r"y has shape \(4, 1\)"),
        ({"y": Y.astype(str)}, "y has dtype"),
        ({"x_test": X}, "only one of"),
        ({"x_test": X[:, :2], "y_test": Y}, r"x has shape \(3,\), one of x_test \(2,\)"),
        ({"y": replaced(Y, 1, np.nan), "task": "regression"}, r"y\[1\] = nan is not finite"),
        ({"y": X[:, :, None], "task": "regression"}, r"y has shape \(4, 3, 1\)"),
    ],
)
def test_refuses(arguments, said):
    with pytest.raises(Refused, match=said):
        from_arrays(**{"x": X, "y": Y} | arguments)
