from __future__ import annotations

import pytest
import torch

from privsgp.planner.choose import smoothness
from privsgp.planner.rehearsal import Rehearsal
from privsgp.planner.stand_in import Samples


def quadratic(curvature):
    """f_j(x) = (a/2)(x − y_j)² in one dimension: everything is known."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 3.0)
    y = torch.tensor([-1.0, 1.0]).repeat(50)[:, None]
    samples = Samples(torch.ones(100, 1), y, torch.ones(4, 1), y[:4])
    return Rehearsal(model, lambda out, target: curvature / 2 * (out - target).square().sum(-1), [samples])


def test_the_smoothness_of_a_quadratic():
    assert smoothness(quadratic(0.7), clip=1e6, distance=1.0) == pytest.approx(0.7, rel=1e-4)
