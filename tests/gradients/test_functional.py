from __future__ import annotations

import pytest
import torch
from modules import NOT_BY_TORCH_FUNC, RULED, UNRULED, around, build, cross_entropy, plain_gradients, samples

from privsgp.gradients import Layout
from privsgp.gradients.per_sample import Plain
from privsgp.gradients.stacked import Functional


@pytest.mark.parametrize("name", [name for name in RULED | UNRULED if name not in NOT_BY_TORCH_FUNC])
def test_it_gives_the_gradients_of_plain_autograd(name):
    model = build((RULED | UNRULED)[name])
    z, data = around(model, 2), samples(2, 3)
    g = Functional(model, Layout.of(model), cross_entropy)(z, *data)
    torch.testing.assert_close(g.dense(), plain_gradients(model, cross_entropy, z, *data), rtol=1e-10, atol=1e-12)


def test_it_leaves_the_model_alone():
    model = build(RULED["mlp"])
    before = Layout.of(model).flatten(model)
    g = Functional(model, Layout.of(model), cross_entropy)(around(model, 2), *samples(2, 3))
    assert isinstance(g.pieces[0], Plain)
    assert g.dense().shape[-1] == len(before)
    assert torch.equal(Layout.of(model).flatten(model), before)
    assert all(p.grad is None for p in model.parameters())
