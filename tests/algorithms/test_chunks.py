"""Where all of a node's gradients are added, no more are added at once than the bound on rounding rests on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from privsgp.algorithms import ALGORITHMS, Randomness
from privsgp.algorithms.block import Block
from privsgp.gradients import Layout, rounding, stack
from privsgp.models import per_sample
from settings import settings_of

J = 5000  # more than anybody would take at once


def _added_at_once(name):
    """The most rows whose gradients are taken by one call, when a run begins and when it is resumed."""
    model, loss, seen = nn.Linear(3, 2), per_sample("cross-entropy"), []

    class Counted(Block):
        def gradients(self, z, drawn, prepare=None):
            seen.append(drawn.rows.shape[1])
            return super().gradients(z, drawn, prepare)

    inputs, targets = torch.zeros(1, J + 1, 3), torch.zeros(1, J + 1, dtype=torch.int64)
    given = settings_of(name, batch=10.0)
    mechanism = ALGORITHMS[name].mechanism(given, sigma=1.0, batch=10.0, samples=J, kappa=0.0)
    gradient = stack(model, loss, (torch.randn(4, 3), targets[0, :4]))
    block = Counted([mechanism], (inputs, targets), gradient, Randomness(), None)
    algorithm, z = ALGORITHMS[name](block, given), Layout.of(model).flatten(model)[None]
    algorithm.begin(z)
    first = max(seen)
    seen.clear()
    algorithm.restored(z)
    return {first, max(seen)}


@pytest.mark.parametrize("name", ["privsgp-vr", "privsgp-sag", "soteriafl-saga", "soteriafl-svrg"])
def test_loops_over_all_samples_add_as_many_at_once_as_the_bound_says(name):
    assert _added_at_once(name) == {rounding.CHUNK}


def test_the_bound_rests_on_the_chunk(monkeypatch):
    def bound():
        return rounding.table_error(J, steps=1, positions=9)

    at_64 = bound()
    monkeypatch.setattr(rounding, "CHUNK", 4096)
    assert bound() > 60 * at_64
