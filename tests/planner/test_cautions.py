from __future__ import annotations

import math

import pytest

from privsgp.planner.record import Expected, heavy_nodes, no_better
from privsgp.planner.theorems import below_theorem, careless_delta, outside_theorem_3


def test_below_k_hat():
    (said,) = below_theorem(3120, math.log(6.6e5))
    assert "3120" in said
    assert "6.6e+05" in said
    assert below_theorem(10, math.log(9)) == []


@pytest.mark.parametrize("log_least", [math.log(1.1e49), math.inf])
def test_a_k_hat_beyond_all_runs_is_no_number(log_least):
    (said,) = below_theorem(10, log_least)
    assert "no run reaches" in said
    assert "e49" not in said


def test_theorem_3_names_the_constant_it_would_need():
    (said,) = outside_theorem_3(3120, 3125, 3.0)
    assert f"{3 * 3125**2 / 3120:.3g}" in said
    assert outside_theorem_3(1e8, 100, 1.0) == []


def test_a_node_that_drags_all_others():
    sigmas = [0.1] * 9 + [1.0]
    (said,) = heavy_nodes(sigmas, [(1.0, 1e-5)] * 9 + [(0.1, 1e-5)])
    total = 9 * 0.01 + 1
    assert "node 9, at ε = 0.1, brings" in said
    assert f"{math.sqrt(0.09 / total) * 10 / 9:.2f} times as large" in said
    assert f"{10 / math.sqrt(901 * total):.2f} times" in said


@pytest.mark.parametrize("sigmas", [[0.1] * 10, [0.1], [0.0, 0.0]])
def test_equals_drag_nobody(sigmas):
    assert heavy_nodes(sigmas, [(1.0, 1e-5)] * len(sigmas)) == []


def test_a_delta_that_allows_publication():
    assert "node 1" in careless_delta([10, 200], [(1, 1e-3), (1, 1e-2)])[0]
    assert careless_delta([10], [(1, 1e-5)]) == []


def test_signals_under_which_a_constant_guess_is_better_are_named():
    expected = [Expected("weak", 0.7, 0.69), Expected("strong", 0.5, 0.69)]
    (said,) = no_better(expected)
    assert "may not beat the base rate" in said
    assert said.endswith("weak")
    assert no_better(expected[1:]) == []
    assert "cannot beat the base rate" in no_better(expected[:1])[0]
