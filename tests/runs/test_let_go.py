"""A run that is over leaves nothing in memory: loops of runs hold one, whenever Python collects."""

from __future__ import annotations

import gc
import pickle

import pytest
import torch

from privsgp.algorithms import ALGORITHMS
from privsgp.errors import Diverged, Interrupted, Refused
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs import train


def held():
    """Return the bytes of all tensors that are reachable or wait for the collector."""
    found = {id(one.untyped_storage()): one for one in gc.get_objects() if type(one) is torch.Tensor}
    return sum(one.untyped_storage().nbytes() for one in found.values())


@pytest.fixture
def uncollected():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_nothing_of_a_run_waits_for_the_collector(name, tmp_path, uncollected):
    own = {"privacy": {"sigma": 0.1}} if ALGORITHMS[name].private else {}
    values = {
        "seed": 0, "data": {"name": "digits", "nodes": 6}, "graph": {"name": "ring"},
        "algorithm": {"name": name, "batch": 4, "steps": 3, "step_size": 0.1},
        "engine": {"checkpoint_every": 0, "evaluate_every": 3},
    } | own  # fmt: skip
    config = configs.parse(values)
    problem = problems.load_problem(config, None)
    train.run(config, problem, tmp_path / "first")  # what is kept once for all runs
    before = held()
    weights = sum(p.numel() for p in problem.model.parameters()) * 4
    train.run(config, problem, tmp_path / "second")
    assert held() - before < weights


@pytest.mark.parametrize("error", [Refused("x = 3", "take 4"), Interrupted(7), Diverged(2, "the loss is no number")])
def test_an_error_comes_out_of_another_process_as_it_went_in(error):
    """A pool of processes that could not read one would wait for ever."""
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
