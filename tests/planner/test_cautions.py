from __future__ import annotations

from privsgp.planner.record import _Expected, no_better
from privsgp.runs.problem import careless_delta


def test_a_delta_that_allows_publication():
    assert "node 1" in careless_delta([10, 200], [1e-3, 1e-2], "node {}".format)[0]
    assert careless_delta([10], [1e-5], "node {}".format) == []


def test_signals_under_which_a_constant_guess_is_better_are_named():
    expected = [_Expected("weak", 0.7, 0.69), _Expected("strong", 0.5, 0.69)]
    (said,) = no_better(expected)
    assert "may not beat the base rate" in said
    assert said.endswith("weak")
    assert no_better(expected[1:]) == []
    assert "cannot beat the base rate" in no_better(expected[:1])[0]
