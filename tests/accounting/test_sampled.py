"""The worst pair of replaced samples is the opposite one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsgp.accounting.curve import Sampled

AXIS = np.linspace(-9, 9, 361)
X, Y = np.meshgrid(AXIS, AXIS, indexing="ij")


def mixture(rate, shift):
    normal = np.exp(-(X**2 + Y**2) / 2)
    return ((1 - rate) * normal + rate * np.exp(-((X - shift[0]) ** 2 + (Y - shift[1]) ** 2) / 2)) / (2 * math.pi)


@settings(max_examples=30)
@given(
    st.sampled_from([0.1, 0.5, 0.9]),
    st.tuples(st.floats(0, 1), st.floats(0, 2 * math.pi)),
    st.tuples(st.floats(0, 1), st.floats(0, 2 * math.pi)),
    st.sampled_from([0.0, 0.3, 1.0]),
)
def test_no_two_gradients_are_further_apart_than_opposite_ones(rate, one, other, epsilon):
    shifts = [1.2 * r * np.array([math.cos(a), math.sin(a)]) for r, a in (one, other)]
    gain = mixture(rate, shifts[0]) - math.exp(epsilon) * mixture(rate, shifts[1])
    found = np.maximum(gain, 0).sum() * (AXIS[1] - AXIS[0]) ** 2
    assert found <= Sampled(rate, 1.2, replace=True).forward(np.array([epsilon]))[0] + 1e-5


def test_directions_of_zero_out():
    sampled, epsilon = Sampled(0.1, 2.0), np.array([0.0, 0.5])
    assert sampled.forward(epsilon)[0] == pytest.approx(sampled.backward(epsilon)[0])
    # Absence is never surer than −ln(1 − q).
    assert sampled.backward(epsilon)[1] == 0 < sampled.forward(epsilon)[1]
