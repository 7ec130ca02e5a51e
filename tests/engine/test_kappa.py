"""The arithmetic a run computes in is never coarser than the one its noise was calibrated for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from privsgp.algorithms import ALGORITHMS, Settings
from privsgp.engine.job import kappa, refuse_coarser
from privsgp.errors import Refused

CPU = torch.device("cpu")


def _job(counted, algorithm="privsgp-vr", dtype=torch.float32):
    chosen = ALGORITHMS[algorithm]
    mechanisms = [chosen.mechanism(Settings(), sigma=1.0, batch=5, samples=50, kappa=k) for k in counted]
    return SimpleNamespace(algorithm=chosen, mechanisms=mechanisms, dtype=dtype, device=CPU)


def test_what_was_counted_is_accepted():
    refuse_coarser(_job([kappa(torch.float32, CPU)] * 2))
    refuse_coarser(_job([2**-8]))
    refuse_coarser(_job([1e-12], dtype=torch.float64))


def test_one_node_counted_for_finer_arithmetic_is_refused():
    with pytest.raises(Refused, match=r"κ = 1e-12 was counted, and this arithmetic has κ = 1e-06"):
        refuse_coarser(_job([1e-6, 1e-12]))


def test_a_method_without_noise_may_compute_as_it_likes():
    refuse_coarser(_job([0.0], "sgp"))
