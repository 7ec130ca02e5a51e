"""Recurrent layers, written out, have the gradients of torch's own layers by plain autograd."""

from __future__ import annotations

import pytest
import torch
from modules import cross_entropy
from torch import nn

from privsgp.gradients import stack
from privsgp.gradients.unrolled import unrolled

X = torch.randn(4, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 1, 0])


class Last(nn.Module):
    """Reads outputs and last states of a recurrent layer."""

    def __init__(self, kind, **options):
        super().__init__()
        self.rnn = kind(3, 4, **options)
        self.out = nn.Linear(8 if options.get("bidirectional") else 4, 2)
        self.first = options.get("batch_first", True)

    def forward(self, x):
        y, last = self.rnn(x if self.first else x.transpose(0, 1))
        h = last[0] if isinstance(last, tuple) else last
        y = y if self.first else y.transpose(0, 1)
        return self.out(y.mean(1)) + h.sum((0, 2))[:, None]


class Begun(nn.Module):
    """Gives its layer a first state."""

    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.rnn(x, torch.ones(1, x.shape[0], 4, dtype=x.dtype))[0][:, -1])


def _plain(model, z):
    """Take one backward pass after another through torch's own layers."""
    layout_order = [p for p in model.parameters() if p.requires_grad]
    rows = []
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(z, layout_order)
    for x, y in zip(X, Y, strict=True):
        gradients = torch.autograd.grad(cross_entropy(model(x[None]), y[None]).sum(), layout_order)
        rows.append(torch.cat([g.flatten() for g in gradients]))
    return torch.stack(rows)


CASES = [
    lambda: Last(nn.LSTM, batch_first=True),
    lambda: Last(nn.GRU, batch_first=True),
    lambda: Last(nn.RNN, batch_first=True, nonlinearity="relu"),
    lambda: Last(nn.RNN, batch_first=True, bias=False),
    lambda: Last(nn.LSTM, batch_first=True, num_layers=2, bidirectional=True),
    lambda: Last(nn.GRU, batch_first=True, num_layers=2),
    lambda: Last(nn.LSTM, batch_first=False),
    Begun,
]
NAMES = ["lstm", "gru", "relu", "no-bias", "deep", "two-layers", "time-first", "begun"]


@pytest.mark.parametrize("build", CASES, ids=NAMES)
def test_gradients_are_those_of_torchs_own_layers(build):
    torch.manual_seed(1)
    model = build().double()
    gradient = stack(model, cross_entropy, (X, Y))
    z = gradient.layout.flatten(model)
    both = torch.stack([z, 0.5 * z])
    found = gradient(both, torch.stack([X, X]), torch.stack([Y, Y])).dense()
    for row, own in zip(found, both, strict=True):
        torch.testing.assert_close(row, _plain(model, own), rtol=1e-9, atol=1e-12)


def test_frozen_parameters_have_no_share():
    model = Last(nn.LSTM, batch_first=True).double()
    model.rnn.weight_hh_l0.requires_grad_(requires_grad=False)
    gradient = stack(model, cross_entropy, (X, Y))
    z = gradient.layout.flatten(model)
    torch.testing.assert_close(gradient(z[None], X[None], Y[None]).dense()[0], _plain(model, z), rtol=1e-9, atol=1e-12)


def test_what_is_unrolled_has_the_same_parameters():
    model = Last(nn.GRU, batch_first=False, num_layers=2).double()
    made = unrolled(model)
    assert list(made.state_dict()) == list(model.state_dict())
    torch.testing.assert_close(made(X), model(X))
    alone = nn.LSTM(3, 4, batch_first=True).double()
    torch.testing.assert_close(unrolled(alone)(X), alone(X))
