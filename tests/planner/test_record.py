from __future__ import annotations

import dataclasses
import json

import pytest

from privsgp import graph as graphs
from privsgp.algorithms import Settings
from privsgp.planner.noise import Method
from privsgp.planner.planning import described
from privsgp.planner.record import messages_per_step
from privsgp.transport.rounding import width


def test_a_plan_is_plain_json(small_plan):
    found = json.loads(json.dumps(small_plan.as_json(), allow_nan=False))
    assert found["steps"] == small_plan.chosen.steps
    assert len(found["sigma"]) == len(found["epsilon"]) == 4
    assert found["sigma"][3] < found["sigma"][0] / 3  # twice the samples and twice the budget
    assert found["estimated_on"]["kind"] == "synthetic"


def test_the_table_of_a_plan(small_plan):
    rows = dict(small_plan.rows())
    assert rows["steps K*"] == str(small_plan.chosen.steps)
    assert "nothing was spent" in rows["rehearsed on"]
    assert "…" in rows["noise σ"]


def test_a_report_shows_what_was_planned(small_plan):
    found = json.loads(json.dumps(small_plan.as_json()))
    said = described(found)
    assert f"{small_plan.chosen.steps:,} steps" in said


def test_messages_to_one_peer_and_to_all():
    assert messages_per_step(graphs.make("exponential", 16), 10) == 1
    assert messages_per_step(graphs.make("complete", 16), 10) == 15


def test_open_steps_are_whole_messages(small_planner):
    method = Method("privsgp-sag", Settings(local_steps=7))
    choice = small_planner.choose(method, 32.0, None, None)
    plain = small_planner.choose(Method("privsgp-sag", Settings()), 32.0, None, None)
    assert choice.steps % 7 == 0
    assert 0 < plain.steps - choice.steps < 7
    assert choice.step_size == pytest.approx(plain.step_size)


def test_few_bits_and_local_steps_take_fewer_bytes_and_less_time(small_plan):
    slow, d = dataclasses.replace(small_plan, link=0.01), small_plan.planner.rehearsal.layout.dim
    few = dataclasses.replace(slow, bits=4)
    assert few.between_sites["bytes"] == pytest.approx(slow.between_sites["bytes"] * width(4, d) / (8 * (d + 1)))
    assert few.between_sites["seconds"] < slow.between_sites["seconds"]
    shown = dict(slow.rows())["fewer bytes"]
    assert shown.startswith(dict(dataclasses.replace(slow, bits=8).rows())["sent by a site"].split(" with")[0])
    assert "fewer bytes" not in dict(dataclasses.replace(slow, link=1e6).rows())
