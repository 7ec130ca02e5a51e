"""The paper's formula, with its own numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsgp.accounting import accountant
from privsgp.accounting.mechanisms import Sag, Saga, SampledMean
from privsgp.errors import Refused
from privsgp.research import published

RESNET = Saga(sigma=0.0, clip=10.0, batch=1, samples=3125)


def test_the_paper_s_resnet_numbers():
    assert published.sigma(RESNET, 3120, 3.0, 1e-5) == pytest.approx(0.2259, abs=1e-4)


@given(st.floats(0.01, 100), st.integers(1, 10**6), st.floats(1e-12, 0.5), st.floats(0.1, 10))
def test_it_is_theorem_2(epsilon, steps, delta, c2):
    sigma = published.sigma(RESNET, steps, epsilon, delta, c2=c2)
    assert sigma == pytest.approx(3 * c2 * 10.0 * math.sqrt(steps * math.log(1 / delta)) / (3125 * epsilon))


def test_plain_sgp_has_a_third_of_the_noise():
    plain = SampledMean(sigma=0.0, clip=10.0, batch=1, samples=3125)
    assert 3 * published.sigma(plain, 100, 1.0, 1e-5) == pytest.approx(published.sigma(RESNET, 100, 1.0, 1e-5))


@pytest.mark.parametrize("bad", [{"epsilon": 0.0}, {"epsilon": math.nan}, {"delta": 1.0}, {"steps": -1}, {"c2": 0.0}])
def test_refuses_by_name(bad):
    good = {"steps": 10, "epsilon": 1.0, "delta": 1e-5, "c2": 0.3}
    with pytest.raises(Refused, match=next(iter(bad))):
        published.sigma(RESNET, **good | bad)


def test_knows_no_formula_for_other_methods():
    with pytest.raises(Refused, match="Sag"):
        published.sigma(Sag(sigma=1.0, clip=1.0, batch=1, samples=10), 10, 1.0, 1e-5)
    with pytest.raises(Refused, match="ldp-svrg"):
        published.sigma(RESNET, 10, 1.0, 1e-5, algorithm="ldp-svrg")


MNIST = {"sigma": 0.0, "batch": 128, "samples": 6000}


def test_soteriafl_s_constants():
    """Its code: σ = √(12 G² T ln(1/δ)) / (m ε) for SGD, 96 in place of 12 for SVRG."""
    told = math.sqrt(12 * 150 * math.log(1e3)) / 6000
    plain = SampledMean(clip=1.0, **MNIST)
    assert published.sigma(plain, 150, 1.0, 1e-3, algorithm="soteriafl-sgd") == pytest.approx(told)
    for name in ("soteriafl-svrg", "soteriafl-saga"):
        found = published.sigma(Saga(clip=1.0, **MNIST), 150, 1.0, 1e-3, algorithm=name)
        assert found == pytest.approx(told * math.sqrt(8))


def test_dp2_sgd_composes_the_classical_gaussian_mechanism():
    mechanism = SampledMean(clip=2.0, sigma=0.0, batch=10, samples=100)
    found = published.sigma(mechanism, 4, 2.0, 1e-5, algorithm="dp2-sgd")
    assert found == pytest.approx(2 * 2.0 / 10 * math.sqrt(2 * math.log(1.25 / (1e-5 / 4))) / (2.0 / 4))
    assert accountant.epsilon(mechanism.with_sigma(found), 4, 1e-5, "replace-one").epsilon < 2.0
    with pytest.raises(Refused, match="epsilon = 5"):
        published.sigma(mechanism, 4, 5.0, 1e-5, algorithm="dp2-sgd")
