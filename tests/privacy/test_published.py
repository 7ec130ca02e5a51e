"""The paper's formula, with its own numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsgp.errors import Refused
from privsgp.privacy import published
from privsgp.privacy.mechanism import Sag, Saga, SampledMean

RESNET = Saga(sigma=0.0, clip=10.0, batch=1, samples=3125)


def test_the_paper_s_resnet_numbers():
    assert published.sigma(RESNET, 3120, 3.0, 1e-5) == pytest.approx(0.2259, abs=1e-4)


@given(st.floats(0.01, 100), st.integers(1, 10**6), st.floats(1e-12, 0.5), st.floats(0.1, 10))
def test_both_ways_are_inverse(epsilon, steps, delta, c2):
    sigma = published.sigma(RESNET, steps, epsilon, delta, c2=c2)
    assert published.epsilon(RESNET.with_sigma(sigma), steps, delta, c2=c2) == pytest.approx(epsilon)


def test_plain_sgp_has_a_third_of_the_noise():
    plain = SampledMean(sigma=0.0, clip=10.0, batch=1, samples=3125)
    assert 3 * published.sigma(plain, 100, 1.0, 1e-5) == pytest.approx(published.sigma(RESNET, 100, 1.0, 1e-5))


def test_no_noise_is_no_privacy():
    assert published.epsilon(RESNET, 100, 1e-5) == math.inf


@pytest.mark.parametrize("bad", [{"epsilon": 0.0}, {"epsilon": math.nan}, {"delta": 1.0}, {"steps": -1}, {"c2": 0.0}])
def test_refuses_by_name(bad):
    good = {"steps": 10, "epsilon": 1.0, "delta": 1e-5, "c2": 0.3}
    with pytest.raises(Refused, match=next(iter(bad))):
        published.sigma(RESNET, **good | bad)


def test_knows_no_formula_for_other_methods():
    with pytest.raises(Refused, match="Sag"):
        published.epsilon(Sag(sigma=1.0, clip=1.0, batch=1, samples=10), 10, 1e-5)
