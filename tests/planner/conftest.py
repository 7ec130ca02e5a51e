"""A small planner that all tests of finished plans share: 4 nodes, logistic regression on stand-in data."""

from __future__ import annotations

import pytest

from privsgp import graph as graphs
from privsgp import models
from privsgp.algorithms import Settings
from privsgp.planner import stand_in
from privsgp.planner.choose import planner
from privsgp.planner.noise import Method, Network
from privsgp.planner.record import Plan, Source
from privsgp.planner.rehearsal import Rehearsal


@pytest.fixture(scope="session")
def small_planner():
    samples = stand_in.make((16,), 4, samples=256)
    model = models.make("logistic", input_shape=(16,), outputs=4, seed=0)
    rehearsal = Rehearsal(model, models.per_sample("cross-entropy"), [samples, samples])
    network = Network([200, 200, 200, 400], [(1.0, 1e-5)] * 3 + [(2.0, 1e-5)], spare=0.02)
    return planner(network, rehearsal, 1.0)


@pytest.fixture(scope="session")
def small_plan(small_planner):
    chosen = small_planner.choose(Method("privsgp-sag", Settings()), 32.0, None, None)
    asked = {"steps": "auto", "step_size": "auto", "batch": 32.0}
    graph = graphs.make("ring-directed", 4)
    return Plan(small_planner, graph, Source("synthetic", "synthetic"), chosen, asked)
