"""Noise that pairs share, drawn on a GPU: it cancels and has the covariance that is counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from privsgp.accounting.compound import Shared
from privsgp.accounting.mechanisms import SampledMean
from privsgp.accounting.sharing import solve
from privsgp.randomness import pairwise
from privsgp.randomness.noise import Keyed, Secure
from privsgp.randomness.pair_streams import PairStreams
from privsgp.randomness.pairwise import PairwiseNoise

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

NODES, HONEST, D = 6, 4, 20_000


def _made(source):
    covariance = solve([1.0, 1.0, 2.0, 1.0, 1.0, 1.0], HONEST + 1, 2.0)
    made = PairwiseNoise(covariance, HONEST + 1)
    worth, k = covariance.effective(HONEST + 1), covariance.nodes - 1
    mechanisms = [Shared(SampledMean(sigma=sigma, clip=1.0, batch=2, samples=9), HONEST + 1, k) for sigma in worth]
    return covariance, made.of_nodes(range(NODES), mechanisms, source)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("secret", [False, True])
def test_on_a_gpu_it_cancels_and_has_the_covariance_that_is_counted(monkeypatch, secret, together):
    monkeypatch.setattr(pairwise, "_LONG", 0 if together else 1 << 60)
    covariance, added = _made(Secure() if secret else Keyed(1))
    found = []
    for k in range(5):
        g = torch.zeros(NODES, D, device="cuda")
        added.add_(g, range(NODES), k)
        found.append(g.double().cpu())
    samples = torch.cat(found, 1).numpy()
    wanted = covariance.among(range(NODES))
    assert np.allclose(np.cov(samples), wanted, atol=0.03 * wanted.max())
    assert samples.sum(0).std() == pytest.approx(np.sqrt(sum(covariance.own)), rel=0.03)


def test_two_sites_make_the_same_numbers_whatever_their_devices():
    on_cpu, on_gpu = (PairStreams({7: b"k" * 32}) for _ in range(2))
    a, b = torch.empty(1, 99, dtype=torch.float64), torch.empty(1, 99, dtype=torch.float64, device="cuda")
    on_cpu.fill_normal(a, [7], 3)
    on_gpu.fill_normal(b, [7], 3)
    assert torch.equal(a, b.cpu())
