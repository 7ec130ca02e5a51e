"""Compressors: right on average, no more variance than they say, and the bytes they count."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from privsgp.research.soteriafl import _CompressionOptions

KINDS = [
    {},
    {"kept": 0.3},
]


def bits(k):
    return np.random.Philox(key=5, counter=[0, 0, 0, k])


@pytest.mark.parametrize("settings", KINDS)
def test_it_is_unbiased_and_varies_as_it_says(settings):
    v = torch.randn(2, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    C = _CompressionOptions(**settings).make(10)
    samples = torch.stack([C(v.clone(), bits(k)) for k in range(4000)])
    spread = (samples - v).square().sum(-1).mean(0)
    length = v.square().sum(-1)
    np.testing.assert_allclose(samples.mean(0), v, atol=5 * float((length * max(C.omega, 1e-9) / 4000).sqrt().max()))
    assert (spread <= 1.05 * C.omega * length).all()
    if settings:
        np.testing.assert_allclose(spread, C.omega * length, rtol=0.05)
        assert {int(row.count_nonzero()) for rows in samples for row in rows} == {3}


@pytest.mark.parametrize("settings", KINDS)
def test_nodes_have_coins_of_their_own_and_the_same_bits_give_the_same_message(settings):
    v = torch.ones(2, 40, dtype=torch.float64) + torch.arange(40) / 40
    C = _CompressionOptions(**settings).make(40)
    once, again, later = C(v.clone(), bits(1)), C(v.clone(), bits(1)), C(v.clone(), bits(2))
    assert torch.equal(once, again)
    if settings:
        assert not torch.equal(once[0], once[1])
        assert not torch.equal(once, later)


@pytest.mark.parametrize("settings", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_stays_nothing(settings, dtype):
    zero = torch.zeros(3, 7, dtype=dtype)
    out = _CompressionOptions(**settings).make(7)(zero.clone(), bits(0))
    assert torch.equal(out, zero)


def test_a_message_has_the_bytes_of_what_is_in_it():
    def size(**settings):
        return _CompressionOptions(**settings).make(1000).kept * 4

    assert size() == 4000
    assert size(kept=0.05) == 200
    assert size(kept=1e-9) == 4
