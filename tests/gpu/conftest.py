"""A small run for the tests on a GPU."""

from __future__ import annotations

import math

import pytest
import torch

from privsgp import graph, models
from privsgp.algorithms import ALGORITHMS
from privsgp.clock import Times, Waiting
from privsgp.engine.spec import Learning, NodeBudgets, RunSpec
from privsgp.gradients.rounding import kappa
from settings import settings_of


@pytest.fixture
def small_job():
    """A job of 5 nodes with 40 samples each, on the GPU; without a seed its noise is secret."""

    def make(algorithm, steps=12, *, seed=0, model="mlp", shape=(6,), **settings):
        device, n, J = torch.device("cuda"), 5, 40
        chosen, settings = ALGORITHMS[algorithm], settings_of(algorithm, clip=1.0, **settings)
        slack = kappa(torch.float32, device, positions=2 if model == "cnn" else 1)
        sigma = 0.05 if chosen.private else 0.0
        mechanism = chosen.mechanism(settings, sigma=sigma, batch=8, samples=J, kappa=slack)
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(n, J + 1, *shape, generator=generator).to(device)
        targets = torch.randint(3, (n, J + 1), generator=generator).to(device)
        return RunSpec(
            name="small",
            seed=seed,
            shared_hash="small",
            learning=Learning(
                models.make(model, input_shape=shape, outputs=3, hidden=5, seed=0),
                models.per_sample("cross-entropy"), None, inputs, targets, None, [J] * n,
            ),
            protection=NodeBudgets(
                [mechanism] * n, [None] * n, [1e-5] * n, "zero-out", "certified", None, lambda *_: math.nan
            ),
            algorithm=chosen,
            settings=settings,
            graph=graph.make("exponential", n),
            clock=Waiting(Times(n), graph.make("exponential", n), 0.0),
            steps=steps,
            step_size=lambda k: 0.5 / (1 + k),
            device=device,
            dtype=torch.float32,
            evaluate_every=steps,
            checkpoint_every=steps,
        )  # fmt: skip

    return make


@pytest.fixture
def _tensor_cores():
    """TF32 for a test; pytest's monkeypatch cannot put cuBLAS's switch back."""
    convolutions, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = convolutions.allow_tf32, products.allow_tf32
    convolutions.allow_tf32 = products.allow_tf32 = True
    yield
    convolutions.allow_tf32, products.allow_tf32 = before
