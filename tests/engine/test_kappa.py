"""The arithmetic a run computes in is never coarser than the one its noise was calibrated for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from privsgp.algorithms import ALGORITHMS, Settings
from privsgp.engine.job import at_many_positions, kappa, refuse_coarser
from privsgp.errors import Refused

CPU = torch.device("cpu")


def _job(counted, algorithm="privsgp-vr", dtype=torch.float32, model=None, shape=(3,)):
    chosen = ALGORITHMS[algorithm]
    mechanisms = [chosen.mechanism(Settings(), sigma=1.0, batch=5, samples=50, kappa=k) for k in counted]
    learning = SimpleNamespace(model=model or nn.Linear(3, 2), made_up=lambda: (torch.zeros(4, *shape), None))
    return SimpleNamespace(algorithm=chosen, mechanisms=mechanisms, dtype=dtype, device=CPU, learning=learning)


def test_what_was_counted_is_accepted():
    refuse_coarser(_job([kappa(torch.float32, CPU)] * 2))
    refuse_coarser(_job([2**-8]))
    refuse_coarser(_job([2**-20], dtype=torch.float64))


def test_one_node_counted_for_finer_arithmetic_is_refused():
    with pytest.raises(Refused, match=r"κ = 9.53674e-07 was counted, and this arithmetic has κ = 0.000244"):
        refuse_coarser(_job([2**-12, 2**-20]))


def test_a_method_without_noise_may_compute_as_it_likes():
    refuse_coarser(_job([0.0], "sgp"))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Conv1d(3, 2, 1), (3, 5)),
        (nn.Linear(3, 2), (5, 3)),
        (nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 1)), (4,)),
    ],
)
def test_layers_at_many_positions_need_more_slack(model, shape):
    with pytest.raises(Refused, match=r"κ = 0.000244141 was counted, and this arithmetic has κ = 0.0039"):
        refuse_coarser(_job([2**-12], model=model, shape=shape))
    refuse_coarser(_job([2**-8], model=model, shape=shape))
    assert not any(layer._forward_pre_hooks for layer in model.modules())


def test_an_embedding_is_used_at_many_positions():
    assert at_many_positions(nn.Sequential(nn.Embedding(5, 2), nn.Flatten()), torch.zeros(3, 4, dtype=torch.int64))
    assert not at_many_positions(nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), torch.zeros(4, 2, 3))
