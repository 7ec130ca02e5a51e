"""The paper's claims as statements: each holds for results made for it, and fails for others."""

from __future__ import annotations

import math
from functools import partial

import pytest

from privsgp_research import claims
from privsgp_research.claims import Found, Spread


def results(*accuracies, sd=0.0, losses=None, line=""):
    """Return curves named "0", "1", … of two seeds each."""
    losses = losses or [1 - a for a in accuracies]
    return {
        str(i): Found(f"curve {i}", _two(a, sd), _two(loss, sd), line, float(i))
        for i, (a, loss) in enumerate(zip(accuracies, losses, strict=True))
    }


def _two(mean, sd):
    return Spread((mean - sd / 2**0.5, mean + sd / 2**0.5))


@pytest.mark.parametrize(
    ("accuracies", "losses", "holds"),
    [
        ((0.8, 0.81, 0.795), (1.0, 1.09, 1.05), True),
        ((0.8, 0.83), (1.0, 1.0), False),
        ((0.8, 0.8), (1.0, 1.2), False),
    ],
)
def test_comparable_is_within_two_points_and_a_tenth_of_the_loss(accuracies, losses, holds):
    found = results(*accuracies, losses=losses)
    verdict = claims.comparable(list(found), found)
    assert verdict[0] == holds
    assert f"curve 1: {100 * accuracies[1]:.2f} ± 0.00 %, loss {losses[1]:.3f}" in verdict[1]


def test_the_best_has_the_highest_accuracy_and_the_lowest_loss():
    found = results(0.7, 0.9, 0.8)
    assert claims.best("1", found)[0]
    verdict = claims.best("2", found)
    assert not verdict[0]
    assert "curve 2: 80.00 ± 0.00 %" in verdict[1]
    assert verdict[1].endswith("the highest accuracy has curve 1, the lowest loss curve 1")
    for key in ("1", "2"):
        unclear = claims.best(key, results(0.7, 0.9, 0.8, sd=0.2))
        assert not unclear[0]
        assert "the highest accuracy has curve 1, by less than the standard errors, the lowest loss" in unclear[1]
    split = claims.best("1", results(0.7, 0.9, 0.8, losses=[0.1, 0.5, 0.5]))
    assert not split[0]
    assert split[1].endswith("the highest accuracy has curve 1, the lowest loss curve 0")


def test_a_line_rises_unless_it_falls_by_more_than_chance():
    assert claims.rising("K*", results(0.7, 0.8, 0.8, line="K*"))[0]
    falls = results(0.7, 0.8, 0.75, line="K*")
    assert "falls at curve 2" in claims.rising("K*", falls)[1]
    assert not claims.rising("K*", falls)[0]
    assert claims.rising("K*", results(0.7, 0.8, 0.75, line="K*", sd=0.1))[0]


def test_ahead_is_ahead_in_accuracy_and_in_loss_by_more_than_chance():
    assert claims.ahead("0", results(0.8, 0.7, 0.6))[0]
    assert not claims.ahead("0", results(0.8, 0.7, 0.9))[0]
    assert not claims.ahead("0", results(0.8, 0.7, sd=0.2))[0]
    assert not claims.ahead("0", results(0.8, 0.7, losses=[0.5, 0.4]))[0]


@pytest.mark.parametrize("claim", [partial(claims.best, "2"), partial(claims.ahead, "2")])
def test_a_claim_whose_own_curve_was_left_out_cannot_be_judged(claim):
    verdict = claim(results(0.8, 0.7))
    assert verdict[0] is None
    assert verdict[1] == "the claim's own curve was left out; curve 0: 80.00 ± 0.00 %; curve 1: 70.00 ± 0.00 %"


@pytest.mark.parametrize(
    "claim",
    [
        partial(claims.best, "0"),
        partial(claims.ahead, "0"),
        partial(claims.comparable, ["0", "1"]),
        partial(claims.rising, "K*"),
    ],
)
def test_one_curve_alone_cannot_be_judged(claim):
    verdict = claim(results(0.8, line="K*"))
    assert verdict[0] is None
    assert verdict[1] == f"{claims.ALONE}; curve 0: 80.00 ± 0.00 %"


def test_a_curve_is_read_from_a_figure_s_json():
    curve = {"label": "K = 3", "line": "K*", "x": 0.5, "accuracy": {"each": [0.5]}, "train_loss": {"each": [2e6]}}
    assert Found.of(curve) == Found("K = 3", Spread((0.5,)), Spread((2e6,)), "K*", 0.5)
    assert claims.ahead("0", {"0": Found.of(curve), "1": Found.of(curve)})[1].startswith("K = 3: 50.00 %, loss 2e+06")
    assert Found.of(curve | {"train_loss": None}).with_loss == "K = 3: 50.00 %"


def test_what_diverged_is_behind():
    found = results(0.8, 0.0)
    found["1"] = Found("gone", _two(0.0, 0.0), Spread((math.inf,)))
    assert claims.ahead("0", found)[0]
    assert not claims.ahead("1", found)[0]
