"""Features of samples: made of each sample alone; encoders that mix samples are refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from privsgp.errors import Refused
from privsgp.features.encode import encode, frozen, output_shape

CPU = torch.device("cpu")
X = np.random.default_rng(0).standard_normal((300, 5), np.float32)
MADE_UP = torch.from_numpy(X[:4])


def _linear():
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Linear(5, 3).requires_grad_(requires_grad=False)


class _Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class _Tossed(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


def test_features_are_what_the_map_makes_of_each_sample_in_half_precision():
    module = _linear()
    made = encode(module, X, CPU)
    assert made.shape == (300, 3)
    np.testing.assert_allclose(made, module(torch.from_numpy(X)).numpy(), rtol=1e-3)
    np.testing.assert_array_equal(made, made.astype(np.float16))


def test_what_is_not_finite_counts_as_zero_and_what_is_huge_is_held():
    x = np.array([[np.nan, 1.0], [1e30, -1e30]], np.float32)
    np.testing.assert_array_equal(encode(nn.Identity(), x, CPU), [[0.0, 1.0], [65504.0, -65504.0]])


def test_batch_norm_in_evaluation_mode_is_a_fixed_map():
    module = nn.Sequential(_linear(), nn.BatchNorm1d(3), nn.Dropout(0.5)).train()
    still = frozen(module, MADE_UP)
    assert not still.training
    assert module.training
    assert not any(p.requires_grad for p in still.parameters())
    assert output_shape(still, (5,)) == (3,)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (_Centred(), "depend on the other samples"),
        (_Tossed(), "depend on the other samples"),
        (nn.Flatten(0), "something else than one row per sample"),
    ],
)
def test_an_encoder_that_is_no_map_of_each_sample_is_refused(module, words):
    with pytest.raises(Refused, match=words):
        frozen(module, MADE_UP)
