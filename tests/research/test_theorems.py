from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsgp.accounting.mechanisms import Saga
from privsgp.research import published
from privsgp_research.theorems import (
    Constants,
    best_steps,
    hardness,
)

# The paper's ResNet-18 numbers (Experiments); c₂ is ours (privacy.md, "Facts to check in tests").
RESNET = Constants(smoothness=25, gap=2.8, heterogeneity=500_000, norm=780_000)
D, G, J, N, C2 = 11_173_962, 10.0, 3125, 16, 0.3724

positive = st.floats(1e-2, 1e3)
constants = st.builds(Constants, positive, positive, positive, positive)
budget = st.tuples(st.floats(0.1, 10), st.floats(1e-9, 0.1))


def bound(constants, n, d, K, variances):
    """Theorem 1: (13F⁰ + 6L‖x⁰‖² + 18Lb² + 24L (d/n) Σσ_i²) / √(nK)."""
    noise = 24 * constants.smoothness * d * math.fsum(variances) / n
    return (constants.start + noise) / math.sqrt(n * K)


def noise_scale(K, G, J, budget, c2):
    """Theorem 2: σ_i = 3 c₂ G √(K ln(1/δ_i)) / (J ε_i)."""
    return published.sigma(Saga(sigma=0, clip=G, batch=1, samples=J), 1, *budget, c2) * math.sqrt(K)


def best_bound(constants, d, G, budgets, J, c2):
    """Corollary 1: 12 c₂ G √(6Ld (13F⁰ + 6L‖x⁰‖² + 18Lb²) Σ ln(1/δ_i)/ε_i²) / (nJ), what the bound is at the best K."""
    inside = 6 * constants.smoothness * d * constants.start * hardness(budgets, J)
    return 12 * c2 * G * math.sqrt(inside) / len(budgets)


def best_variance(constants, d):
    """(1/n) Σσ_i² at the best K: (13F⁰ + 6L‖x⁰‖² + 18Lb²) / (24Ld), whatever the budgets are."""
    return constants.start / (24 * constants.smoothness * d)


def resnet_steps(epsilon, n=N):
    return best_steps(RESNET, D, G, [(epsilon, 1e-5)] * n, [J] * n, C2)


def test_the_papers_k():
    assert resnet_steps(3) == pytest.approx(3120, abs=0.5)


def test_the_papers_sigma():
    assert noise_scale(resnet_steps(3), G, J, (3, 1e-5), C2) == pytest.approx(0.2259, abs=5e-5)


@pytest.mark.parametrize(("epsilon", "steps"), [(1, 347), (1.5, 780), (2, 1387), (2.5, 2167), (3.5, 4247), (4, 5547)])
def test_k_grows_with_the_square_of_epsilon(epsilon, steps):
    assert resnet_steps(epsilon) == pytest.approx(steps, abs=0.6)


@given(constants, budget, st.integers(1, 50))
def test_sigma_at_the_best_k_does_not_depend_on_epsilon(constants, budget, n):
    K = best_steps(constants, D, G, [budget] * n, [J] * n, C2)
    assert noise_scale(K, G, J, budget, C2) ** 2 == pytest.approx(best_variance(constants, D))


def test_theorem_1_by_hand():
    small = Constants(smoothness=2, gap=1, heterogeneity=3, norm=4)
    assert small.start == 13 + 6 * 2 * 4 + 18 * 2 * 3
    assert bound(small, n=4, d=5, K=9, variances=[1, 2, 3, 4]) == pytest.approx((169 + 24 * 2 * 5 * 10 / 4) / 6)


@given(constants, st.lists(st.tuples(budget, st.integers(50, 5000)), min_size=1, max_size=8))
def test_the_closed_form_minimises_the_bound(constants, nodes):
    budgets, sizes = [b for b, _ in nodes], [j for _, j in nodes]

    def value(K):
        variances = [noise_scale(K, G, j, b, C2) ** 2 for b, j in nodes]
        return bound(constants, len(nodes), 1000, K, variances)

    K = best_steps(constants, 1000, G, budgets, sizes, C2)
    assert value(K) == pytest.approx(best_bound(constants, 1000, G, budgets, sizes, C2))
    assert value(K) < min(value(0.98 * K), value(1.02 * K), value(K / 50), value(K * 70))


def test_theorem_1_holds_beyond_all_steps_in_use():
    """K̂(C, q) is at least its last term, 64 J⁴ (1+J)² L² n / 9."""
    assert 64 * J**4 * (1 + J) ** 2 * RESNET.smoothness**2 * N / 9 == pytest.approx(6.627e25, rel=1e-3)


def test_the_remarks_order():
    def at(n, d, samples, epsilon, delta):
        return best_bound(RESNET, d, G, [(epsilon, delta)] * n, [samples] * n, C2)

    here = at(16, 1000, 3125, 3, 1e-5)
    order = math.sqrt(1000 * math.log(1e5)) / (4 * 3125 * 3)
    assert here / order == pytest.approx(at(4, 10, 60, 0.5, 1e-3) / (math.sqrt(10 * math.log(1e3)) / (2 * 60 * 0.5)))
    alone = math.sqrt(1000 * math.log(1e5)) / (3125 * 3)
    assert at(1, 1000, 3125, 3, 1e-5) / alone == pytest.approx(here / order)


def test_hardness_adds_up_over_different_nodes():
    both = hardness([(1, 1e-5), (2, 1e-3)], [10, 20])
    assert both == pytest.approx(math.log(1e5) / 100 + math.log(1e3) / 1600)
