"""Evaluation: x̄ = Σx / Σw in float64, the consensus error of the paper, means over any number of samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from privsgp.algorithms import State
from privsgp.engine.evaluate import Evaluator, average, consensus_error
from privsgp.gradients import Layout


def _state(seed, nodes=5, dim=7, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    x, w = torch.from_numpy(rng.normal(size=(nodes, dim))).to(dtype), torch.from_numpy(rng.uniform(0.2, 2, nodes))
    return State(x, w, x / w.to(dtype)[:, None])


@given(st.integers(0, 2**32 - 1))
def test_average_and_consensus_error_are_the_formulas(seed):
    s = _state(seed)
    x, w = s.x.numpy(), s.w.numpy()
    mean = x.sum(0) / w.sum()
    np.testing.assert_allclose(average(s).numpy(), mean, rtol=1e-13, atol=1e-13)
    apart = np.mean([np.linalg.norm(x[i] / w[i] - mean) ** 2 for i in range(len(w))])
    np.testing.assert_allclose(consensus_error(s), apart, rtol=1e-12)


def test_the_average_is_summed_in_float64():
    x = torch.tensor([[1e8], [1.0], [-1e8]])
    assert (x[0] + x[1] + x[2]).item() == 0  # float32 loses the small one
    s = State(x, torch.ones(3, dtype=torch.float64), x)
    assert average(s).item() == torch.tensor(1 / 3).item()
    assert average(s).dtype == torch.float32


def test_nodes_that_agree_have_no_consensus_error():
    w = torch.tensor([0.5, 1.5], dtype=torch.float64)
    z = torch.tensor([[1.0, -2.0]] * 2)
    assert consensus_error(State(z * w.float()[:, None], w, z)) == pytest.approx(0, abs=1e-13)


@pytest.mark.parametrize("samples", [1, 2047, 2048, 2049, 5000])
def test_a_mean_over_many_samples_is_the_mean(samples):
    model = nn.Linear(3, 2)
    layout = Layout.of(model)
    generator = torch.Generator().manual_seed(samples)
    inputs, targets = torch.randn(samples, 3, generator=generator), torch.randint(2, (samples,), generator=generator)
    x = torch.randn(8, generator=generator)
    loss = nn.CrossEntropyLoss(reduction="none")
    weight, bias = x[:6].reshape(2, 3), x[6:]
    got = Evaluator(model, layout, job=None, world=None).mean(loss, x, inputs, targets)
    expected = loss(inputs @ weight.T + bias, targets).double().mean().item()
    assert got == pytest.approx(expected, rel=1e-6)
