from __future__ import annotations

import json
import math

import pytest

from privsgp import graph as graphs
from privsgp.accounting import calibration
from privsgp.accounting.mechanisms import Saga
from privsgp.planner.record import messages_per_step
from privsgp.planner.settle import described
from privsgp.planner.theorems import Constants, bound, formula_rows, from_constants

RESNET = Constants(25, 2.8, 500_000, 780_000)


def resnet(**changes):
    given = {"samples": 3125, "batch": 1.0, "budget": (3.0, 1e-5), "published_c2": 0.3724} | changes
    return from_constants(RESNET, graphs.make("exponential", 16), 11_173_962, 10.0, **given)


def test_the_papers_plan():
    found = resnet()
    assert found["steps"] == 3120
    assert found["sigma"] == pytest.approx(0.2259, abs=5e-5)
    assert found["bound"] == pytest.approx(3.061e6, rel=1e-3)
    assert found["least_steps_log10"] > 25.8
    assert len(found["warnings"]) == 2
    json.dumps(found, allow_nan=False)


def test_the_certified_minimum_is_a_minimum():
    found = resnet(published_c2=None, batch=625.0)
    assert found["sigma"] > 0

    def value(K):
        sigma = calibration.sigma(Saga(sigma=0.0, clip=10.0, batch=625.0, samples=3125), K, 3.0, 1e-5)
        return bound(RESNET, 16, 11_173_962, K, [sigma**2] * 16)

    assert found["bound"] == pytest.approx(value(found["steps"]), rel=0.02)
    assert found["bound"] <= min(value(found["steps"] // 2), value(found["steps"] * 2))


def test_a_complete_graph_has_no_k_hat():
    formula = from_constants(
        RESNET, graphs.make("complete", 4), 10, 1.0, samples=50, batch=1.0, budget=(1.0, 1e-5), published_c2=0.4
    )
    assert formula["least_steps_log10"] is None


def test_a_plan_is_plain_json(small_plan):
    found = json.loads(json.dumps(small_plan.as_json(), allow_nan=False))
    assert found["steps"] == small_plan.chosen.steps
    assert len(found["sigma"]) == len(found["epsilon"]) == 4
    assert found["sigma"][3] < found["sigma"][0] / 3  # twice the samples and twice the budget
    assert found["estimated_on"]["kind"] == "synthetic"
    assert found["bytes_sent_per_node"] == found["steps"] * (4 * 68 + 8)
    assert {m["method"] for m in found["methods"]} == {"privsgp", "privsgp-sag"}


def test_predicted_deviation_of_the_average(small_plan):
    c = small_plan.chosen
    plain = c.step_size * math.sqrt(c.steps / 4) * c.noise.common(c.steps)
    assert small_plan.deviation(c) == pytest.approx(math.sqrt(c.response) * plain)


def test_the_table_of_a_plan(small_plan):
    rows = dict(small_plan.rows())
    assert rows["steps K*"] == str(small_plan.chosen.steps)
    assert "nothing was spent" in rows["rehearsed on"]
    assert "…" in rows["noise σ"]
    assert len(small_plan.method_rows()) == 2
    assert dict(formula_rows(resnet()))["steps K*"].startswith("3120")


def test_a_report_shows_what_was_planned(small_plan):
    found = json.loads(json.dumps(small_plan.as_json()))
    said = described(found)
    assert found["why"] in said
    assert f"{small_plan.chosen.steps:,} steps" in said


def test_messages_to_one_peer_and_to_all():
    assert messages_per_step(graphs.make("exponential", 16), 10) == 1
    assert messages_per_step(graphs.make("complete", 16), 10) == 15
