"""Rényi divergences against plain integration, and as the bound that privacy-loss distributions never exceed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privsgp.accounting import pld, renyi_bound
from privsgp.accounting.curve import Sampled
from privsgp.accounting.saga import Geometry

LOW = [0, 1, 4, 10]  # places of ORDERS small enough for a plain sum
SETTINGS = [(0.2, 2.0, 0.0167), (0.2, 0.5, 0.1), (0.02, 1.0, 0.02), (0.6, 1.5, 0.3)]
SETTINGS += [(0.01, 2.0, 0.013, 0.3), (0.2, 1.0, 0.3, 0.5)]  # θ < 1


def integrated(order, rate, undrawn, drawn, across):
    """log ∫ P^α Q^{1−α} in the plane."""
    axis = np.linspace(-30, 30, 1501)
    x, y = np.meshgrid(axis, np.linspace(-30, 30, 301), indexing="ij")

    def log_normal(a, b):
        return -((x - a) ** 2 + (y - b) ** 2) / 2

    present = np.logaddexp(math.log1p(-rate) + log_normal(undrawn, across), math.log(rate) + log_normal(drawn, across))
    area = (axis[1] - axis[0]) * 0.2 / (2 * math.pi)
    return math.log(np.exp(order * present + (1 - order) * log_normal(0, 0)).sum() * area)


def gram(geometry, place):
    undrawn, drawn, across = geometry.shifts(geometry.shape(place))
    return undrawn**2 + across**2, drawn**2 + across**2, undrawn * drawn + across**2


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_ends_of_the_path_are_those_of_the_geometry(setting):
    """Vectors t and c here, shapes of u = t + c and c there."""
    for pair, place in zip(renyi_bound._ends(*(*setting, 1.0)[:4]), (0.0, 1.0, 2.0), strict=True):
        np.testing.assert_allclose(pair, gram(Geometry(*setting), place), rtol=1e-6, atol=1e-9 * max(pair))


@pytest.mark.parametrize("place", [0.0, 0.6, 1.0, 2.0])
def test_the_closed_form_is_the_integral(place):
    geometry = Geometry(0.3, 1.5, 0.2)
    shape = geometry.shape(place)
    moments = renyi_bound._moments(0.3, gram(geometry, place))
    for k in LOW:
        assert moments[k] == pytest.approx(integrated(renyi_bound.ORDERS[k], 0.3, *geometry.shifts(shape)), rel=1e-6)


@pytest.mark.parametrize(("undrawn", "drawn"), [(0.0, 0.8), (-0.2, 0.9), (0.3, 0.5)])
def test_the_quadrature_is_the_integral(undrawn, drawn):
    moments = renyi_bound._backward(0.3, undrawn, drawn)
    for k in LOW:
        assert moments[k] == pytest.approx(integrated(1 - renyi_bound.ORDERS[k], 0.3, undrawn, drawn, 0.0), rel=1e-6)
    assert (moments <= renyi_bound._closed(0.3, undrawn, drawn) * (1 + 1e-9)).all()


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_worst_moment_is_at_an_end_of_either_half(setting):
    geometry = Geometry(*setting)
    along = np.max([renyi_bound._moments(geometry.rate, gram(geometry, p)) for p in np.linspace(0, 2, 41)], axis=0)
    ends = np.max(
        [renyi_bound._moments(geometry.rate, pair) for pair in renyi_bound._ends(*(*setting, 1.0)[:4])], axis=0
    )
    assert (along <= ends * (1 + 1e-9)).all()


@pytest.mark.parametrize("setting", SETTINGS)
def test_backward_pieces_are_above_their_pairs(setting):
    geometry = Geometry(*setting)
    for start, stop in ((0.0, 0.25), (0.5, 0.75), (1.0, 1.3), (1.7, 2.0)):
        bound = renyi_bound._backward_piece(geometry, start, stop)
        for place in np.linspace(start, stop, 5):
            undrawn, drawn, across = geometry.shifts(geometry.shape(place))
            assert (
                renyi_bound._backward(geometry.rate, undrawn, drawn) + renyi_bound.gaussian(across)
                <= bound * (1 + 1e-9)
            ).all()


@pytest.mark.parametrize("count", [1, 1000])
@pytest.mark.parametrize("setting", SETTINGS)
def test_saga_never_exceeds_renyi(setting, count):
    geometry = Geometry(*setting)
    composed, renyi = pld.compose([(geometry, count)]), renyi_bound.Renyi(count * renyi_bound.saga(*setting))
    for delta in (1e-8, 1e-5, 1e-2):
        for loss in composed.losses:  # P‖Q, then Q‖P
            assert loss.epsilon(delta) <= renyi.epsilon(delta) * (1 + 1e-6) + 1e-6


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(("rate", "mu", "count"), [(0.2, 0.08, 575), (0.01, 1.0, 1000), (0.5, 2.0, 10)])
def test_sampled_gaussians_never_exceed_renyi(rate, mu, count, replace):
    renyi = renyi_bound.Renyi(count * renyi_bound.sampled(rate, mu, replace=replace))
    composed = pld.compose([(Sampled(rate, mu, replace), count)])
    for delta in (1e-8, 1e-5, 1e-2):
        assert composed.epsilon(delta) <= renyi.epsilon(delta)


def test_epsilon_and_delta_are_inverse():
    renyi = renyi_bound.Renyi(50 * renyi_bound.gaussian(0.1))
    assert renyi.delta(renyi.epsilon(1e-5)) == pytest.approx(1e-5, rel=1e-6)
    assert renyi_bound.Renyi(0 * renyi_bound.ORDERS).epsilon(0.5) == 0
