"""Keyed dropout: the same coins for a sample whoever else was drawn, others at every step; frozen BatchNorm."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from modules import cross_entropy
from torch import nn

import privsgp
from privsgp.errors import Refused
from privsgp.gradients import stack
from privsgp.gradients.dropout import keyed, uniforms, with_keys
from privsgp.gradients.keys import sample_keys
from privsgp.gradients.rules.ruled import Ruled
from privsgp.gradients.stacked import Functional

X = torch.randn(6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 1, 0, 1, 0])
KEYS = torch.tensor([[11, 12, 13, 14, 15, 16]])


def _mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Dropout(0.5), nn.Linear(12, 2)).double()


class _Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.drop, self.out = nn.Conv1d(1, 4, 3), nn.Dropout1d(0.5), nn.Linear(24, 2)

    def forward(self, x):
        return self.out(self.drop(self.conv(x[:, None])).flatten(1))


def test_a_samples_gradient_is_its_own_whoever_else_was_drawn():
    for model, kind in ((_mlp(), Ruled), (_Convolved().double(), Functional)):
        gradient = stack(model, cross_entropy, (X, Y))
        assert isinstance(gradient, kind)
        z = gradient.layout.flatten(model)[None]
        together = gradient(z, X[None], Y[None], KEYS).dense()[0]
        for j in range(6):
            alone = gradient(z, X[None, j : j + 1], Y[None, j : j + 1], KEYS[:, j : j + 1]).dense()[0, 0]
            torch.testing.assert_close(together[j], alone, rtol=1e-9, atol=1e-12)
        other = gradient(z, X[None], Y[None], KEYS + 1).dense()[0]
        assert not torch.allclose(together, other)


def test_rule_and_torch_func_lose_the_same_units():
    model = _mlp()
    fast, plain = (stack(model, cross_entropy, (X, Y), rules=rules) for rules in (True, False))
    z = fast.layout.flatten(model)[None]
    torch.testing.assert_close(
        fast(z, X[None], Y[None], KEYS).dense(), plain(z, X[None], Y[None], KEYS).dense(), rtol=1e-9, atol=1e-12
    )


def test_coins_are_fair_and_those_of_layers_units_and_samples_are_their_own():
    drawn = uniforms(torch.arange(50), 3, 400).double() / 2**53
    assert abs(float(drawn.mean()) - 0.5) < 0.01
    assert abs(float(drawn.var()) - 1 / 12) < 0.01
    other = uniforms(torch.arange(50), 4, 400).double() / 2**53
    for a, b in ((drawn, other), (drawn[1:], drawn[:-1]), (drawn[:, 1:], drawn[:, :-1])):
        assert abs(float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])) < 0.03


def test_keys_differ_by_seed_node_step_and_sample():
    rows = np.arange(6).reshape(2, 3)
    found = [sample_keys(s, np.array([0, 1]), np.array([k, k]), rows) for s in (1, 2) for k in (0, 1)]
    assert len(torch.cat([keys.flatten() for keys in found]).unique()) == 24


def test_what_is_kept_makes_up_for_what_is_lost_and_without_keys_nothing_is():
    drop = keyed(nn.Dropout(0.25))
    x = torch.ones(400, 50)
    torch.testing.assert_close(drop(x), x)
    with with_keys(torch.arange(400)):
        assert set(drop(x).unique().tolist()) == {0.0, float(np.float32(4 / 3))}
        assert abs(float(drop(x).mean()) - 1) < 0.02
        with pytest.raises(RuntimeError, match="dropout of 3 rows"):
            drop(x[:3])
    torch.testing.assert_close(drop(x), x)


def test_a_run_with_dropout_is_the_same_however_its_nodes_are_laid_out(tmp_path):
    x, y = X.float().numpy().repeat(4, 0), Y.numpy().repeat(4)
    settings = {"seed": 3, "nodes": 2, "classes": 2, "privacy": {"epsilon": 4.0}}
    runs = []
    for number, name in enumerate(("privsgp", "privsgp", "privsgp-vr")):
        algorithm = {"name": name, "steps": 4, "batch": 3}
        result = privsgp.train(
            _mlp().float(), (x, y, x, y), out=tmp_path / str(number), algorithm=algorithm, **settings
        )
        runs.append(torch.cat([p.flatten() for p in result.model.parameters()]))
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=0)
    without = _mlp().float()
    without[2].p = 0.0
    dry = privsgp.train(
        without, (x, y), out=tmp_path / "dry", algorithm={"name": "privsgp", "steps": 4, "batch": 3}, **settings
    )
    assert not torch.equal(torch.cat([p.flatten() for p in dry.model.parameters()]), runs[0])


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (lambda: nn.LSTM(8, 8, 2, dropout=0.1, batch_first=True), "with dropout = 0.1 inside"),
        (lambda: nn.MultiheadAttention(8, 2, dropout=0.1), "with dropout = 0.1 inside"),
    ],
)
def test_coins_that_cannot_be_keyed_are_refused(layer, words):
    model = nn.Sequential(nn.Linear(8, 2)).double()
    model.add_module("inner", layer())
    with pytest.raises(Refused, match=words):
        stack(model, cross_entropy, (X, Y))


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
    model = _mlp()[:2]
    model.append(nn.Linear(12, 2).double())
    model = model if double else model.float()
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0]), reduction="none")
    x = X.numpy() if double else X.float().numpy()
    result = privsgp.train(
        model, (x, Y.numpy()), out=tmp_path / "run", loss=loss, seed=1, nodes=2, classes=2,
        privacy={"epsilon": 4.0}, algorithm={"name": "privsgp", "steps": 3, "batch": 2},
    )  # fmt: skip
    assert result.summary["steps"] == 3
