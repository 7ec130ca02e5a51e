"""Dropout is refused while it drops; frozen BatchNorm and any precision are welcome."""

from __future__ import annotations

import pytest
import torch
from modules import cross_entropy
from torch import nn

import privsgp
from privsgp.errors import Refused
from privsgp.gradients import stack

X = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 1, 0, 1, 0])


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (lambda: nn.Dropout(0.5), "Dropout with p = 0.5"),
        (lambda: nn.LSTM(8, 8, 2, dropout=0.1, batch_first=True), "with dropout = 0.1 inside"),
        (lambda: nn.MultiheadAttention(8, 2, dropout=0.1), "with dropout = 0.1 inside"),
    ],
)
def test_dropout_is_refused_until_eval(layer, words):
    model = nn.Sequential(nn.Linear(8, 2)).double()
    model.add_module("inner", layer())
    with pytest.raises(Refused, match=words) as refused:
        stack(model, cross_entropy, (X, Y))
    assert "call eval()" in refused.value.remedy


def test_a_dropout_in_evaluation_mode_lets_everything_through():
    model = nn.Sequential(nn.Linear(8, 2), nn.Dropout(0.5).eval()).double()
    gradient, plain = (stack(m, cross_entropy, (X, Y)) for m in (model, nn.Sequential(model[0])))
    z = plain.layout.flatten(nn.Sequential(model[0]))[None]
    torch.testing.assert_close(gradient(z, X[None], Y[None]).dense(), plain(z, X[None], Y[None]).dense())


def test_batch_norm_with_frozen_statistics_is_a_fixed_map():
    model = nn.Sequential(nn.Linear(8, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double()
    model[1].running_mean += 0.3
    with pytest.raises(Refused, match="averages over the batch") as refused:
        stack(model, cross_entropy, (X, Y))
    assert "call eval()" in refused.value.remedy
    model[1].eval()
    gradient = stack(model, cross_entropy, (X, Y))
    z = gradient.layout.flatten(model)[None]
    before = model[1].running_mean.clone()
    together = gradient(z, X[None], Y[None]).dense()[0]
    alone = gradient(z, X[None, :1], Y[None, :1]).dense()[0, 0]
    torch.testing.assert_close(together[0], alone, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(model[1].running_mean, before, rtol=0, atol=0)


@pytest.mark.parametrize("double", [False, True])
def test_a_loss_with_weights_of_classes_and_any_precision(tmp_path, double):
    model = nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 2))
    model = model.double() if double else model
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0]), reduction="none")
    x = X.numpy() if double else X.float().numpy()
    result = privsgp.train(
        model, (x, Y.numpy()), out=tmp_path / "run", loss=loss, seed=1, nodes=2, classes=2,
        privacy={"epsilon": 4.0}, algorithm={"name": "privsgp", "steps": 3, "batch": 2},
    )  # fmt: skip
    assert result.summary["steps"] == 3
