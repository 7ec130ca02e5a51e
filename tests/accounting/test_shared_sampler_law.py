"""The numbers in docs/proofs/pairwise.md, computed again; lengths are in units of own noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from privsgp.accounting import sampler_cost
from privsgp.accounting.compound import Shared
from privsgp.accounting.mechanisms import SampledMean

NEAR, LAST = 6.4, 10.2  # radii: up to the first a ratio is bounded, beyond the second there are no numbers


def off(r: float) -> float:
    """Return by how much a computed pair of numbers may be off at radius r: step 1 of the sampler, in the plane."""
    rounding = min(2.0**-53 * (2 / r + 30 * r), 2.0**-26)
    return math.sqrt(2) * (rounding + 1.1 * 2.0**-75 * math.exp(r * r / 2) / r)


def mean(f, low: float, high: float) -> float:
    """Return the integral of f(r) over the law of a radius."""
    points = np.geomspace(max(low, 2.0**-40), high, 60)
    law = [integrate.quad(lambda r: f(r) * r * math.exp(-r * r / 2), a, b)[0] for a, b in zip(points, points[1:])]  # noqa: B905, RUF007
    return math.fsum(law)


def test_the_mean_square_by_which_a_pairs_numbers_are_off():
    assert mean(lambda r: off(r) ** 2, 0.0, NEAR) <= 2.0**-94


def test_a_density_whose_logarithm_bends_little_is_low_and_so_is_the_mean_of_one_over_r():
    """−∇² ln f ≤ c: f ≤ c/2π, so E[1/r] ≤ cρ + 1/ρ for every ρ, 2√c at best."""
    c = 1 + 2 * sampler_cost.LARGEST_PAIR**2
    for centre in (0.0, 0.3, 1.0, 3.0):  # Gaussians of this curvature, wherever their centre is, are the steepest
        rice = stats.rice(centre * math.sqrt(c), scale=1 / math.sqrt(c))
        mean_inverse = integrate.quad(lambda r, law=rice: law.pdf(r) / r if r else 0.0, 0, 12, limit=400)[0]
        assert mean_inverse <= 2 * math.sqrt(c)


def test_what_a_pairs_numbers_are_off_by_on_average_given_all_that_is_seen():
    inverse = 2 * math.sqrt(1 + 2 * sampler_cost.LARGEST_PAIR**2)
    largest = 2.0**-53 * (2 * inverse + 30 * NEAR) + 1.1 * 2.0**-75 * math.exp(NEAR**2 / 2) / NEAR
    assert math.sqrt(2) * largest <= 2.0**-44
    assert sampler_cost._PAIR_WIDEST == 11 * 2.0**-44  # 10.3 of own noise, and second orders


def test_total_variation_beyond_the_near_numbers():
    slope, beyond = sampler_cost._PAIR_TAIL
    assert 2 * 0.4 * mean(off, NEAR, LAST) <= slope  # both ends; a shift of η costs 2Φ(η/2) − 1 ≤ 0.4 η
    assert math.exp(-(LAST**2) / 2) <= beyond * 1.01
    eta = np.linspace(1e-9, 3, 100)
    assert np.all(2 * stats.norm.cdf(eta / 2) - 1 <= 0.4 * eta)


def test_total_variation_of_own_noise():
    """Points beyond 7.4 that change their cell of a side of at least 2^−4.5, and what lies beyond 10.2."""
    side = 2.0**-4.5
    changing = mean(lambda r: 4 * 1.1 * 2.0**-75 * math.exp(r * r / 2) / r / side, 7.4, LAST)
    rounding = mean(lambda r: 4 * 2.0**-53 * (2 / r + 30 * r) / side, 7.4, LAST)
    each, summed = sampler_cost._OWN_TAIL
    assert changing + rounding + math.exp(-(LAST**2) / 2) + math.exp(-(10.3**2) / 2) <= each
    assert mean(lambda _r: 4 * 2.0**-53 / side, 7.4, LAST) <= summed


def test_rounding_of_a_sum_of_pairs_is_little_beside_what_they_are_off_by():
    """k additions of numbers whose partial sums have variance j λ²: 2⁻¹⁰⁷ k³ λ² beside k² λ² 2⁻⁹⁴."""
    for k in (1, 49, 999):
        assert 2.0**-106 * k * sum(range(1, k + 1)) <= 2 * k * 2.0**-13 * (k**2 * 2.0**-94)


def test_rounding_of_a_gradient_and_its_pairs_fits_what_is_counted_of_their_length():
    """It moves the mean, by 2⁻⁵³ for a sum of length 1; beside what edges of cells cost. (a + b)² ≤ 5/4 a² + 5 b²."""
    edges, shift = 150 * 2.0**-53, 2.0**-53
    assert 1.25 * 2 * edges**2 + 5 * 2 * shift**2 <= sampler_cost._SUMMED
    assert 2 * sampler_cost._EACH >= 1.25 * (2e-24 + 2 * 5.4e-25)  # of a pair of coordinates: step 4 of the sampler
    assert edges + 11 * shift <= sampler_cost._WIDEST[1]
    beyond = mean(lambda _r: 4 * 2.0**-53 / 2.0**-4.5 + 11 * shift, 7.4, LAST)
    assert beyond <= sampler_cost._OWN_TAIL[1]


@pytest.mark.parametrize(("honest", "partners"), [(2, 1), (38, 49), (300, 399)])
def test_the_cost_is_the_claims_formula(honest, partners):
    d, K, least = 50_000, 600, 0.01
    m = Shared(SampledMean(sigma=0.05, clip=1.0, batch=50, samples=100, coordinates=d), honest, partners, least)
    cost, most, B = sampler_cost.Cost.of(m, K, 0.0), sampler_cost.LARGEST_PAIR, (1 + 2 * 100 / 50) * 1.0 / least
    h, k = honest, partners
    V = 2 * K * h * (
        (d + 1) * 2.0**-78 + 2.0**-89 * (B**2 + 4 * d * k * most**2) + (d / 2 + 1) * k**2 * most**2 * 2.0**-93
    )  # fmt: skip
    assert cost.variance == pytest.approx(V)
    assert cost.widest == pytest.approx(h * (2.0**-30 + 2.0**-45 * (B + 21 * k * most)) + 11 * h * k * most * 2.0**-44)
    tau = K * h * (d / 2 + 1) * (2.0**-64.9 + 2.0**-85 * (B + 21 * k * most) + k / 2 * (2.0**-72 * most + 2.0**-75))
    assert cost.variation == pytest.approx(tau)
    assert cost.tail == 0.0
    assert cost.tail_at(1.0) == pytest.approx((1 + math.e) * tau)


def test_sums_that_are_drawn_at_once_stay_within_what_is_counted_of_pairs():
    """√n (v_i − v̄) of n ≥ 4 nodes: no longer than k numbers can be, and off by no more, given all that is seen."""
    most, beyond = sampler_cost.LARGEST_PAIR, 1.1 * 2.0**-75 * math.exp(NEAR**2 / 2) / NEAR
    for n in (4, 5, 6, 8, 12, 50, 1000, 10**5):
        k, few = n - 1, 2 * math.sqrt(n) * (1 - 1 / n)
        inverse = 2 * math.sqrt(1 + k * most**2)
        off_by = math.sqrt(2) * (2.0**-53 * (2 * inverse + 30 * NEAR) + beyond)
        assert few * off_by <= k * 2.0**-44
        assert few * LAST <= 10.3 * k
    assert 2 * math.sqrt(3) * (2 / 3) * LAST > 10.3 * 2  # three nodes: not so


@pytest.mark.parametrize(("n", "h"), [(4, 1), (4, 4), (7, 3), (12, 9)])
def test_who_knows_some_of_the_numbers_drawn_at_once_leaves_no_less_than_who_knows_all_their_pairs(n, h):
    unknown = math.sqrt(n) * (np.eye(n) - 1 / n)[:h, :h]  # of v_1 … v_h, in the noise of these h nodes
    pairs = h * np.eye(h) - 1.0  # the Laplacian of all pairs of h nodes
    assert np.linalg.eigvalsh(unknown @ unknown.T - pairs).min() >= -1e-12
