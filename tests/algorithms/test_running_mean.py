"""The mean of a table moves at every step; what it rounds by must not tell who is in it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from privsgp.algorithms import ALGORITHMS, Randomness, Settings
from privsgp.algorithms.block import Block, Drawn
from privsgp.gradients import stack

J, STEPS, OWN = 5_000, 300, 0.7
ULP = 2.0**-25  # of a float32 mean just below ¼


def _data():
    """Sample 0 is the record; 1 and 2 move the mean by half an ulp more than a whole number of them."""
    other = (max(2, int(0.05 / J / ULP)) + 0.5 + 2**-6) * ULP * J
    x = torch.zeros(1, J + 1, 4)
    x[0, :J, 0], x[0, :J, 3] = (0.25 - 0.4 * OWN / J) * J / (J - 3), 0.05
    x[0, 0, 0], x[0, 1], x[0, 2] = OWN, torch.tensor([other, 0.1, 0, 0]), torch.tensor([other, 0, 0.1, 0])
    return x, torch.zeros(1, J + 1, dtype=torch.int64)


def _z(on, step):
    """Neighbours choose z: whether samples 1 and 2 have a gradient of full length or none, whatever noise is in it."""
    weight = torch.zeros(2, 4)
    weight[1, 3], weight[1, 1], weight[1, 2] = 1e5, 1e5 if on[0] else -1e5, 1e5 if on[1] else -1e5
    return (weight + 10 * torch.randn(2, 4, generator=torch.Generator().manual_seed(step))).reshape(1, -1)


def _released(name, *, present):
    x, y = _data()
    gradient = stack(
        nn.Linear(4, 2, bias=False), lambda out, wanted: cross_entropy(out, wanted, reduction="none"),
        (torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1])),
    )  # fmt: skip
    settings = Settings(clip=1.0)
    mechanism = ALGORITHMS[name].mechanism(settings, sigma=1.0, batch=float(J), samples=J, kappa=0.0)

    class Absent(Block):
        def gradients(self, z, drawn, prepare=None):
            kept = Drawn(drawn.rows, drawn.mask & ((drawn.rows != 0) | present))
            return super().gradients(z, kept, prepare)

    block = Absent([mechanism], (x, y), gradient, Randomness(), None)
    algorithm = ALGORITHMS[name](block, settings)
    algorithm.begin(_z((0, 0), 0))
    drawn = Drawn(torch.tensor([[1, 2]]), torch.ones(1, 2, dtype=torch.bool))
    for step in range(STEPS):
        out = algorithm.direction(_z([(1, 0), (1, 1), (0, 0)][step % 3], step + 1), [drawn])
    return out.double()


@pytest.mark.parametrize("name", ["privsgp-sag", "privsgp-vr"])
def test_neighbours_cannot_make_roundings_add_up(name):
    moved = (_released(name, present=True) - _released(name, present=False)).norm()
    assert float(moved) * J / (math.sqrt(2) * math.hypot(OWN, 0.05)) <= 1.001
