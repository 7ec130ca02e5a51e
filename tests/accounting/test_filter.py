import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsgp.accounting import accountant, calibration, rdp
from privsgp.accounting.counting import Filter
from privsgp.accounting.ledger import Header, Segment
from privsgp.accounting.mechanisms import Sag, Saga, SampledMean
from privsgp.errors import Refused

SAGA = Saga(sigma=1.0, clip=1.0, batch=240, samples=1200)
SAG = Sag(sigma=1.0, clip=1.0, batch=10, samples=500)


def segment(mechanism, charged, epsilon=1.0, delta=1e-5, relation="zero-out"):
    budget = None if epsilon is None else {"epsilon": epsilon, "delta": delta}
    header = Header(
        node=0, run="r", mechanism=mechanism.describe(), budget=budget, relation=relation, steps=charged, spare=0,
        simulation=False,
    )  # fmt: skip
    return Segment(header, charged=charged)


@given(epsilon=st.floats(0.1, 10), log_delta=st.floats(-12, -2))
def test_the_whole_cap_is_worth_the_whole_budget(epsilon, log_delta):
    limit = Filter(epsilon, 10**log_delta, epsilon)
    assert limit.epsilon_of(limit.cap) == pytest.approx(epsilon, rel=1e-9)


def test_a_lone_run_costs_a_little_more_than_without_the_filter():
    limit = Filter(1.0, 1e-5, 1.0)
    noise = calibration.under(limit, 0.0, SAGA, 575, "zero-out")
    alone = calibration.sigma(SAGA, 575, 1.0, 1e-5, "zero-out")
    assert alone < noise < 1.1 * alone


def test_two_runs_stay_within_the_budget_counted_by_any_order():
    limit = Filter(2.0, 1e-5, 1.0)
    first = segment(SAG.with_sigma(0.1), 200)
    spent = limit.spent([first])
    noise = calibration.under(limit, spent, SAG, 300, "zero-out")
    assert spent + limit.cost(SAG.with_sigma(noise), 300, "zero-out") <= limit.cap
    # both are Gaussians, so the exact ε of the pair is known
    shift = math.hypot(math.sqrt(200) / (500 * 0.1), math.sqrt(300) / (500 * noise))
    exact = accountant.epsilon(SAG.with_sigma(1 / (500 * shift)), 1, 1e-5).epsilon
    assert exact <= 2.0


def test_the_order_follows_from_the_first_budget_alone():
    runs = [segment(SAG.with_sigma(0.1), 10, epsilon=1.0)]
    assert Filter.over(runs, 2.0, 1e-5).order == Filter.over(runs, 5.0, 1e-5).order == Filter(1.0, 1e-5, 1.0).order


def test_nothing_left_is_refused_with_what_was_spent():
    limit = Filter(1.0, 1e-5, 1.0)
    with pytest.raises(Refused, match=r"has spent ε = .* of 1"):
        calibration.under(limit, limit.cap, SAG, 10, "zero-out")


def test_sampled_steps_with_little_noise_leave_nothing_and_the_refusal_says_why():
    """At an order that suits ε = 1 three steps cost 19; as a run by themselves they are 0.17 (docs/proofs/saga.md)."""
    little = SampledMean(sigma=0.216, clip=1.0, batch=4, samples=1000)
    limit = Filter(1.0, 1e-5, 1.0)
    spent = limit.spent([segment(little, 3)])
    assert limit.epsilon_of(spent) == pytest.approx(19.1, abs=0.1)
    assert accountant.epsilon(little, 3, 1e-5).epsilon == pytest.approx(0.167, abs=0.001)
    with pytest.raises(Refused, match="order 18") as refused:
        calibration.under(limit, spent, little, 10, "zero-out")
    assert "--resume" in refused.value.remedy


@pytest.mark.parametrize(
    ("runs", "delta", "words"),
    [
        ([segment(SAG, 5, epsilon=None)], 1e-5, "named no budget"),
        ([segment(SAG, 5)], 1e-6, "the ledger began with 1e-05"),
    ],
)
def test_what_cannot_be_continued(runs, delta, words):
    with pytest.raises(Refused, match=words):
        Filter.over(runs, 2.0, delta)


def test_group_privacy_has_no_filter():
    with pytest.raises(Refused, match="replace-one"):
        Filter(1.0, 1e-5, 1.0).cost(SAGA, 3, "replace-one")
    assert Filter(1.0, 1e-5, 1.0).cost(SampledMean(sigma=1, clip=1, batch=5, samples=10), 3, "replace-one") > 0


def test_no_noise_costs_everything():
    assert math.isinf(Filter(1.0, 1e-5, 1.0).cost(SAG.with_sigma(0.0), 1, "zero-out"))
    assert Filter(1.0, 1e-5, 1.0).cost(SAG, 0, "zero-out") == 0.0
    assert Filter(1.0, 1e-5, 1.0).order in rdp.ORDERS


def test_what_was_spent_is_the_same_on_every_python(monkeypatch):
    """`sum` of ten times 0.1 is 1 from Python 3.12 on, and was less before: the noise of the next run hangs on it."""
    monkeypatch.setattr(Filter, "cost", lambda *_: 0.1)
    assert Filter(1.0, 1e-5, 1.0).spent([segment(SAGA, 1)] * 10) == 0.9999999999999999
