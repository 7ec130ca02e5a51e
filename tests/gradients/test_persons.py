"""A person's gradient is the mean of the row gradients: against a plain loop in float64, and padding is no one's."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call

from privsgp import models
from privsgp.gradients import Layout
from privsgp.gradients.persons import Persons, Rows
from privsgp.gradients.stacked import stack

ROWS, IN = 3, 20
MODELS = {
    "mlp": lambda: nn.Sequential(nn.Linear(IN, 16), nn.ReLU(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 2)),
    "conv": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 4, 5)), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)
    ),
    "linear": lambda: nn.Linear(IN, 2),
}


def persons(model, dtype=torch.float64, loss="cross-entropy", counts=((1, 3, 2), (3, 1, 1))):
    torch.manual_seed(0)
    x, per_row = torch.randn(2, 3, ROWS, IN, dtype=dtype), models.per_sample(loss)
    real = torch.arange(ROWS) < torch.tensor(counts)[..., None]
    if loss == "mse":
        y = torch.randn(2, 3, ROWS, 2, dtype=dtype).masked_fill(~real[..., None], torch.nan)
    else:
        y = torch.randint(0, 2, (2, 3, ROWS)).masked_fill(~real, -1)
    x = x.masked_fill(~real[..., None], 0)
    model = model.to(dtype)
    probe = torch.randn(9, IN, dtype=dtype), y[0, 1, :1].nan_to_num(0).expand(9, *y.shape[3:]).clone()
    z = Layout.of(model).flatten(model) * torch.tensor([[1.0], [0.7]], dtype=dtype)
    return Persons(stack(model, per_row, probe)), z, x, y, per_row


def plain(model, z, x, y, loss):
    """One person after the other, one row after the other, padding left out."""
    layout, found = Layout.of(model), []
    for i in range(len(x)):
        for rows, targets in zip(x[i], y[i], strict=True):
            views = {name: v.detach().requires_grad_() for name, v in layout.views(z[i]).items()}
            values = [
                loss(functional_call(model, views, (row[None],)), target[None])[0]
                for row, target in zip(rows, targets, strict=True)
                if not (target.isnan().any() if target.is_floating_point() else target < 0)
            ]
            grads = torch.autograd.grad(sum(values) / len(values), list(views.values()))
            found.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(found).view(*x.shape[:2], -1)


@pytest.mark.parametrize("loss", ["cross-entropy", "mse"])
@pytest.mark.parametrize("name", MODELS)
def test_a_persons_gradient_is_the_mean_of_the_row_gradients(name, loss):
    model = MODELS[name]()
    gradient, z, x, y, per_row = persons(model, loss=loss)
    expected, mask = plain(model, z, x, y, per_row), torch.ones(2, 3, dtype=torch.bool)
    for exact in (False, True):
        g = gradient(z, x, y)
        torch.testing.assert_close(g.dense(), expected)
        torch.testing.assert_close(g.norm(), expected.norm(dim=-1), rtol=1e-6, atol=1e-9)
        g.clip_(0.05, mask, exact=exact)
        clipped = expected * (0.05 / expected.norm(dim=-1, keepdim=True)).clamp(max=1)
        torch.testing.assert_close(g.sum(), clipped.sum(1), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_shares_of_the_mean(name):
    gradient, z, x, y, _ = persons(MODELS[name](), counts=((1, 3, 2), (3, 2, 1)))
    rows = gradient.by_row(z, x.flatten(1, 2), y.clamp(min=0).flatten(1, 2)).dense().unflatten(1, (3, ROWS))
    weights = torch.rand(2, 3, ROWS).double().masked_fill(y < 0, 0)
    weights /= weights.sum(-1, keepdim=True)
    torch.testing.assert_close(gradient(z, x, y, weights).dense(), (weights[..., None] * rows).sum(2))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, ROWS), min_size=6, max_size=6), st.floats(-1e6, 1e6), st.sampled_from(sorted(MODELS)))
def test_padding_influences_no_gradient(counts, filler, name):
    gradient, z, x, y, _ = persons(MODELS[name](), counts=(counts[:3], counts[3:]))
    other = torch.where((y < 0)[..., None], filler, x)
    wider = torch.cat([x, torch.full_like(x[:, :, :1], filler)], 2), torch.cat([y, torch.full_like(y[..., :1], -1)], 2)
    one = gradient(z, x, y)
    for changed in (gradient(z, other, y), gradient(z, *wider)):
        torch.testing.assert_close(changed.dense(), one.dense(), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(changed.norm(), one.norm(), rtol=1e-9, atol=1e-12)


def test_rows_that_cancel_are_never_longer_than_counted():
    torch.manual_seed(1)
    delta, a = torch.randn(1, 50, 2, 40), torch.randn(1, 50, 2, 60)
    delta[:, :, 1], a[:, :, 1] = -delta[:, :, 0], a[:, :, 0] * (1 + 1e-6 * torch.randn(1, 50, 60))
    piece = Rows(delta.clone(), a, True)
    counted = piece.squared_norm(exact=True).sqrt()
    factor = (1e-3 / counted).clamp(max=1)
    piece.scale_(factor)
    true = Rows(piece.delta.double(), a.double(), True).dense().norm(dim=-1)
    assert (true <= 1e-3).all()
    out = torch.empty(1, piece.size, dtype=torch.float64)
    piece.sum_into(out, exact=True)
    assert out.norm() <= 50 * 1e-3
