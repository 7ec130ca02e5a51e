"""No code of a user's sees several samples at once where gradients are taken: it could reorder or mix them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from privsgp.errors import Refused
from privsgp.gradients import stack
from privsgp.gradients.layout import Layout
from privsgp.gradients.stacked import Functional

MADE_UP = torch.randn(4, 7, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])


def loss(outputs, targets):
    return cross_entropy(outputs, targets, reduction="none")


class Sorting(nn.Module):
    """Sorts its batch by the number of missing values for one layer, and back: as packing by length does."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(7, 16), nn.Linear(16, 3)

    def forward(self, x):
        order = (x == -9).sum(1).argsort(stable=True)
        return self.b(torch.tanh(self.a(x))[order])[order.argsort()]


class Attending(nn.Module):
    """Takes the batch for a sequence. At first the layer after it has weight zero."""

    def __init__(self):
        super().__init__()
        self.q, self.o, self.head = nn.Linear(7, 7), nn.Linear(7, 7), nn.Linear(7, 3)
        for layer in (self.o, self.head):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        return self.head(x + self.o(torch.softmax(self.q(x) @ x.mT, -1) @ x))


def samples():
    random = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, 6, 7, generator=random), torch.randint(0, 3, (2, 6), generator=random)
    x[0, :3, :2] = -9  # unlike what the probe sees
    x[0, 1, 2:6] = -9
    return x, y


def test_a_model_that_sorts_its_batch_has_each_samples_own_gradient():
    """Found: the rules took row r of a layer for sample r, and one record moved a message by 1.5 times the bound."""
    model, (x, y) = Sorting(), samples()
    layout = Layout.of(model)
    z = layout.flatten(model).expand(2, -1)
    alone = Functional(model, layout, loss).one_by_one(z, x, y)
    torch.testing.assert_close(stack(model, loss, MADE_UP)(z, x, y).dense(), alone)


def test_a_loss_that_sorts_its_batch_has_each_samples_own_gradient():
    def sorting(outputs, targets):
        order = outputs.detach().amax(1).argsort()
        return loss(outputs[order], targets[order]) * (1 + targets[order] * (outputs.detach().amax() > 1.5))

    model, (x, y) = nn.Sequential(nn.Linear(7, 3)), samples()
    layout = Layout.of(model)
    z = layout.flatten(model).expand(2, -1)
    probe = (0.01 * MADE_UP[0], torch.zeros(4, dtype=torch.int64))
    with pytest.raises(Refused, match="depends on the other samples"):
        stack(model, sorting, (MADE_UP[0], MADE_UP[1]))

    def rare(outputs, targets):
        return loss(outputs, targets) * (1 + (outputs.detach().amax() > 3))

    found = stack(model, rare, probe)(z, x, y).dense()
    torch.testing.assert_close(found, Functional(model, layout, rare).one_by_one(z, x, y))


def test_layers_that_start_at_zero_do_not_hide_that_samples_mix():
    with pytest.raises(Refused, match="depends on the other samples"):
        stack(Attending(), loss, MADE_UP)


@pytest.mark.parametrize("model", [nn.Linear(7, 3), nn.Sequential(nn.Linear(7, 4), nn.ReLU(), nn.Linear(4, 3))])
def test_layers_of_torch_take_all_samples_at_once(model):
    assert stack(model, loss, MADE_UP).how == "by rules"


def test_a_hook_is_code_of_the_users():
    model = nn.Sequential(nn.Linear(7, 4), nn.Tanh(), nn.Linear(4, 3))
    model[1].register_forward_hook(lambda _layer, _given, out: out * 2)
    assert "one sample at a time" in stack(model, loss, MADE_UP).how


@pytest.mark.parametrize("pre", [False, True])
def test_a_backward_hook_is_refused(pre):
    """Found: it saw the gradients of all samples, and could mix them where a probe's are not special."""
    model = nn.Sequential(nn.Linear(7, 4), nn.Tanh(), nn.Linear(4, 3))
    if pre:
        model[1].register_full_backward_pre_hook(lambda _layer, out: out)
    else:
        model[1].register_full_backward_hook(lambda _layer, inner, _out: inner)
    with pytest.raises(Refused, match="layer '1' has a backward hook"):
        stack(model, loss, MADE_UP)


class Casting(nn.Module):
    """Multiplies in bfloat16, as models for GPUs do."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(7, 4), nn.Linear(4, 3)

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.b(self.a(x)).float()


@pytest.mark.parametrize("model", [Casting(), nn.Sequential(nn.Linear(7, 4), nn.Linear(4, 3))])
def test_fewer_bits_by_autocast_are_refused(model):
    """Found: factors in bfloat16 went beyond the clip by more than κ."""
    around = torch.autocast("cpu", torch.bfloat16, enabled=not isinstance(model, Casting))
    with around, pytest.raises(Refused, match=r"computes in torch.bfloat16, and its weights are torch.float32"):
        stack(model, loss, MADE_UP)
