"""One SAGA release against plain integration, and its certified supremum against pairs that can occur."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privsgp.accounting import saga
from privsgp.accounting.saga import Geometry, _Shape

EPSILONS = np.array([0.0, 0.01, 0.1, 0.5, 1.5, 4.0])
# What the grid of one pair adds to it: always upwards, but not the same for all pairs; most where δ is smallest.
GRID = np.array([1e-3, 1e-3, 1e-3, 5e-3, 0.01, 0.05])
SETTINGS = [
    (0.2, 2.0, 0.0167),
    (0.2, 1.0, 0.1),
    (0.01, 2.0, 0.004),
    (0.01, 0.5, 0.02),
    (0.7, 0.3, 0.8),
    (0.5, 1.5, 0.3),
    (0.01, 2.0, 0.013, 0.3),
    (0.2, 2.0, 0.4, 0.7),
    (0.2, 1.0, 0.3, 0.5),
    (0.5, 2.0, 0.5, 0.51),
]


def integrated(rate, s0, s1, epsilon, *, backward):
    """H_ε of (1−q) N(s0) + q N(s1) against N(0) in the plane: a plain sum over a fine grid."""
    reach = 9 + max(np.linalg.norm(s0), np.linalg.norm(s1))
    axis = np.linspace(-reach, reach, 1201)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    absent = np.exp(-(x**2 + y**2) / 2) / (2 * math.pi)
    present = sum(
        weight * np.exp(-((x - s[0]) ** 2 + (y - s[1]) ** 2) / 2) / (2 * math.pi)
        for weight, s in ((1 - rate, s0), (rate, s1))
    )
    one, other = (absent, present) if backward else (present, absent)
    return np.maximum(one - math.exp(epsilon) * other, 0).sum() * (axis[1] - axis[0]) ** 2


def shifts_in_the_plane(geometry, t, c):
    return geometry.shift * t, geometry.shift * (t + geometry.scale * c / geometry.rate)


def shape_of(t, c):
    return _Shape(float((t + c) @ (t + c)), float((t + c) @ c), float(c @ c))


def admissible(rng, reach):
    """Draw t and c in the plane, half of the time on the boundary."""
    while True:
        t, c = (v / np.linalg.norm(v) for v in rng.normal(size=(2, 2)))
        t *= rng.choice([1.0, math.sqrt(rng.random())])
        c *= reach * rng.choice([1.0, math.sqrt(rng.random())])
        if np.linalg.norm(t + c) <= 1:
            return t, c


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("setting", [(0.2, 2.0, 0.1), (0.5, 1.0, 0.6), (0.2, 2.0, 0.3, 0.6)])
def test_one_pair_is_its_integral_rounded_up(setting, backward):
    geometry = Geometry(*setting)
    rng = np.random.default_rng(1)
    for _ in range(3):
        t, c = admissible(rng, geometry.reach)
        s0, s1 = shifts_in_the_plane(geometry, t, c)
        for epsilon in (0.0, 0.1, 0.5):
            exact = integrated(geometry.rate, s0, s1, epsilon, backward=backward)
            found = geometry.at(shape_of(t, c), np.array([epsilon]), backward=backward)[0]
            assert exact * (1 - 1e-4) - 1e-9 <= found <= exact * 1.01 + 1e-7


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_no_admissible_pair_exceeds_the_certified_supremum(setting, backward):
    geometry = Geometry(*setting)
    bound = (geometry.backward if backward else geometry.forward)(EPSILONS)
    rng = np.random.default_rng(2)
    for _ in range(60):
        t, c = admissible(rng, geometry.reach)
        found = geometry.at(shape_of(t, c), EPSILONS, backward=backward)
        assert (found <= bound * (1 + 1e-9) + 1e-20).all()


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_the_supremum_is_attained_but_for_the_tolerance(setting, backward):
    geometry = Geometry(*setting)
    bound = (geometry.backward if backward else geometry.forward)(EPSILONS)
    places = np.concatenate((np.geomspace(1e-4, 1, 60), np.linspace(0, 2, 41)))
    best = np.max([geometry.at(geometry.shape(p), EPSILONS, backward=backward) for p in places], axis=0)
    assert (bound >= best - 1e-22).all()
    assert (bound <= best * (1 + 2 * saga.TOLERANCE + GRID) + 1e-22).all()


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(SETTINGS),
    st.booleans(),
    st.floats(0, 1),
    st.floats(0.01, 1),
    st.floats(0, 1),
    st.one_of(st.floats(-0.95, -0.01), st.floats(0.01, 10)),
    st.booleans(),
)
def test_a_raised_shape_is_above_its_piece(setting, second_half, start, width, inside, rho, backward):
    geometry = Geometry(*setting)
    stop = min(start + width, 1.0)
    offset = 1.0 if second_half else 0.0
    above = geometry.above(start + offset, stop + offset, rho)
    between = geometry.shape(start + inside * (stop - start) + offset)
    bound = geometry.at(above, EPSILONS, backward=backward)
    assert (geometry.at(between, EPSILONS, backward=backward) <= bound * (1 + GRID) + 1e-15).all()


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SETTINGS), st.integers(0, 2**32 - 1), st.booleans())
def test_hockey_sticks_grow_with_every_gram_entry(setting, seed, backward):
    """Kahane's inequality, which the module's step from |u| < 1 to |u| = 1 rests on."""
    rate, _, shift = setting[:3]
    rng = np.random.default_rng(seed)
    gram = np.cov(rng.normal(size=(2, 4))) * (shift / rate) ** 2
    larger = gram + np.diag(rng.random(2)) * gram.diagonal() * 0.5
    larger[0, 1] = larger[1, 0] = (
        gram[0, 1] + rng.random() * (math.sqrt(larger[0, 0] * larger[1, 1]) - gram[0, 1]) * 0.9
    )
    small, large = (_from_gram(rate, g, backward=backward) for g in (gram, larger))
    assert (small <= large * (1 + GRID) + 1e-15).all()


def _from_gram(rate, gram, *, backward):
    apart = math.sqrt(gram[0, 0] + gram[1, 1] - 2 * gram[0, 1])
    undrawn, drawn = (gram[0, 1] - gram[0, 0]) / apart, (gram[1, 1] - gram[0, 1]) / apart
    across = math.sqrt(max(gram[0, 0] - undrawn**2, 0) + 1e-12 * gram[0, 0])
    if drawn < 0:
        undrawn, drawn = -undrawn, -drawn
    return saga._divergence(rate, undrawn, drawn, across, EPSILONS, backward=backward)


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_mass_is_lost(setting):
    geometry = Geometry(*setting)
    for place in (0.3, 1.0, 2.0):
        undrawn, drawn, _ = geometry.shifts(geometry.shape(place))
        loss, present, absent, only = saga._atoms(geometry.rate, undrawn, drawn)
        assert present.sum() + only[0] == pytest.approx(1, abs=1e-12)
        assert absent.sum() + only[1] == pytest.approx(1, abs=1e-12)
        assert np.isfinite(loss).all()
        assert max(only) < 1e-20


@pytest.mark.parametrize("drawn", [50.0, 1e4])
def test_a_cut_tail_becomes_an_infinite_loss(drawn):
    """With next to no noise a drawn sample is seen for certain: with probability q, and no less."""
    _, _, _, only = saga._atoms(0.01, -0.5, drawn)
    assert only[0] == pytest.approx(0.01, rel=1e-6)


def test_ends_of_the_path():
    geometry = Geometry(0.2, 1.5, 0.1)
    assert geometry.shape(0.0) == _Shape(1.0, 0.0, 0.0)
    # E1: s0 = (G − R)/J, s1 = R/b + (G − R)/J.
    undrawn, drawn, across = geometry.shifts(geometry.shape(2.0))
    assert (undrawn, drawn) == pytest.approx((0.1 * -0.5, 0.1 * (1.5 / 0.2 - 0.5)))
    assert across < 1e-5 * drawn


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("setting", [s for s in SETTINGS if len(s) > 3 and s[1] == 2.0])
def test_no_two_gradients_in_the_ball_exceed_the_supremum_of_scaled_differences(setting, backward):
    """From the estimator's own words: t and g anywhere in the ball, s0 = t/J and s1 = t/J + θ(g − t)/b."""
    geometry = Geometry(*setting)
    bound = (geometry.backward if backward else geometry.forward)(EPSILONS)
    rng = np.random.default_rng(3)
    found = []
    for _ in range(60):
        t, g = (v / np.linalg.norm(v) * rng.choice([1.0, math.sqrt(rng.random())]) for v in rng.normal(size=(2, 2)))
        found.append(geometry.at(shape_of(t, g - t), EPSILONS, backward=backward))
        assert (found[-1] <= bound * (1 + 1e-9) + 1e-20).all()
    assert (np.max(found, axis=0) > 0.3 * bound)[:4].all()  # and some come near it
