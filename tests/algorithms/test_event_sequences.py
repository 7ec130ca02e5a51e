"""What leaves in a step, by method: a step's events are values, and their order is the method's promise."""

from __future__ import annotations

import tomllib

import pytest

import runs
from privsgp.algorithms import ALGORITHMS
from privsgp.engine.drive import drive
from privsgp.engine.folder import Folder
from privsgp.engine.trainer import Trainer
from privsgp.runs import build
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs.resolve import resolve

EVENTS = {
    "directed": ["Release", "Exchange"],
    "undirected": ["Exchange", "Release"],  # what was released at the step before, and x⁰ at first
    "server": ["Release", "ToServer"],
    "alone": ["Release"],
}
BY_TURNS = ["Meet", "Release"] * 4  # four nodes, each of which averages what others have released


def events(folder, name, steps=3, **more):
    """Return the names of the events of each of the first steps."""
    values = tomllib.loads(runs.SMALL)
    values["algorithm"] = {"name": name, "steps": 9, "step_size": 0.1} | more
    values["graph"] = {"name": "ring"} if ALGORITHMS[name].network == "undirected" else {}
    if not ALGORITHMS[name].private:
        del values["privacy"]
    config = configs.parse(values)
    place = Folder(folder)
    place.prepare()
    place.identify({})
    run, seen = Trainer(build.build_run(resolve(config, problems.load_problem(config))), place), []
    run._begin()

    def watched(k, event):
        seen[-1].append(type(event).__name__)
        return run.driver(k, event)

    with run.budget_guard:
        for k in range(steps):
            assert run.budget_guard.reserve(k)
            seen.append([])
            run.state = drive(run.step(k, run.state), k, watched)
    return seen


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_the_events_of_a_step(tmp_path, name):
    method = ALGORITHMS[name]
    assert events(tmp_path, name) == [BY_TURNS if method.asynchronous else EVENTS[method.network]] * 3


@pytest.mark.parametrize("name", ["privsgp", "privsgp-vr", "privsgp-sag"])
def test_a_message_of_local_steps_comes_after_a_release_for_each(tmp_path, name):
    assert events(tmp_path, name, local_steps=3) == [["Release"], ["Release"], ["Release", "Exchange"]]
