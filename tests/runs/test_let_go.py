"""A run that is over leaves nothing in memory: loops of runs hold one, whenever Python collects."""

from __future__ import annotations

import gc
import pickle
import weakref

import pytest
import torch

from privsgp import models
from privsgp.algorithms import ALGORITHMS, Settings
from privsgp.engine.trainer import Trainer
from privsgp.errors import Diverged, Interrupted, Refused
from privsgp.planner import stand_in
from privsgp.planner.rehearsal import Rehearsal, RehearsalSpec
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


def test_a_step_that_refers_back_is_let_go_too(tmp_path, uncollected, monkeypatch):
    """As those on a GPU do, whose launches are recorded."""
    gone = []

    class Recorded:
        def __init__(self, trainer):
            self.trainer, self.take = trainer, trainer.algorithm.step
            weakref.finalize(trainer, gone.append, "trainer")

        def step(self, k, s):
            return self.take(k, s)

    monkeypatch.setattr(Trainer, "_stepper", lambda self: Recorded(self).step)
    values = {"seed": 0, "data": {"name": "digits", "nodes": 4}, "privacy": {"sigma": 0.1}, "algorithm": {"steps": 2}}
    config = configs.parse(values)
    train.run(config, problems.load_problem(config, None), tmp_path)
    assert gone


def test_rehearsals_are_let_go(uncollected):
    samples = stand_in.make((16,), 4, samples=256)
    model = models.make("logistic", input_shape=(16,), outputs=4, seed=0)
    rehearsal = Rehearsal(model, models.per_sample("cross-entropy"), [samples, samples])
    spec = RehearsalSpec("privsgp-sag", Settings(), 0.01, 4.0)
    rehearsal.ends(spec, 4.0, 3)
    before = held()
    rehearsal.ends(spec, 4.0, 3)
    assert held() - before < rehearsal.x0.nbytes


@pytest.mark.parametrize("error", [Refused("x = 3", "take 4"), Interrupted(7), Diverged(2, "the loss is no number")])
def test_an_error_comes_out_of_another_process_as_it_went_in(error):
    """A pool of processes that could not read one would wait for ever."""
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
