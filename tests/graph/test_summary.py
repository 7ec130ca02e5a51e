from __future__ import annotations

import math

import pytest

from privsgp.graph import make, table
from privsgp.graph.assumptions import _power_of_ten


def test_the_papers_graph():
    rows = dict(table(make("exponential", 16), dim=50_890))
    assert rows["nodes"] == "16"
    assert rows["period"] == "4 steps"
    assert rows["λ = 1 − nε^(ΔB)"] == "1 − 2.44e-04"
    assert rows["bound on C (d = 50890)"] == "2.96e+07"
    assert rows["spectral gap per step"] == "1.0000: agreement becomes exact"


def test_a_random_graph_says_what_was_looked_at():
    rows = dict(table(make("random", 8)))
    assert rows["period"] == "none: every step differs"
    assert rows["B: steps until strongly connected"].endswith("(first 256 steps)")


def test_no_bound_where_lambda_is_zero():
    rows = dict(table(make("complete", 8)))
    assert rows["bound on C (d = 1)"] == "none: the lemma needs λ > 0"


@pytest.mark.parametrize(
    ("log_value", "text"),
    [
        (math.log(2.5), "2.5e+00"),
        (math.log(1e-7), "1e-07"),
        (-1000 * math.log(10), "1e-1000"),
        (math.log(9.999), "1e+01"),
    ],
)
def test_numbers_from_their_logarithm(log_value, text):
    assert _power_of_ten(log_value) == text
