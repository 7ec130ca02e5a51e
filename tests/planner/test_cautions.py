from __future__ import annotations

import math

import pytest

from privsgp.planner.record import Expected, heavy_nodes, no_better
from privsgp.runs.problem import careless_delta


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
    assert "node 1" in careless_delta([10, 200], [1e-3, 1e-2], "node {}".format)[0]
    assert careless_delta([10], [1e-5], "node {}".format) == []


def test_signals_under_which_a_constant_guess_is_better_are_named():
    expected = [Expected("weak", 0.7, 0.69), Expected("strong", 0.5, 0.69)]
    (said,) = no_better(expected)
    assert "may not beat the base rate" in said
    assert said.endswith("weak")
    assert no_better(expected[1:]) == []
    assert "cannot beat the base rate" in no_better(expected[:1])[0]
