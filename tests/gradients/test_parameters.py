from __future__ import annotations

import torch
from modules import build, frozen_middle, mlp
from torch import nn

from privsgp.gradients import Layout


def test_the_order_is_that_of_named_parameters():
    model = mlp(6, 5, 3)
    layout = Layout.of(model)
    assert layout.names == ("0.weight", "0.bias", "2.weight", "2.bias")
    assert layout.dim == 53
    assert torch.equal(layout.flatten(model), nn.utils.parameters_to_vector(model.parameters()))


def test_views_are_the_parameters_of_every_node_and_share_memory():
    layout = Layout.of(mlp(6, 5, 3))
    x = torch.arange(2.0 * 53).view(2, 53)
    views = layout.views(x)
    assert views["2.weight"].shape == (2, 3, 5)
    assert torch.equal(views["0.bias"], x[:, 30:35])
    for view in views.values():
        view.zero_()
    assert not x.any()
    assert layout.views(x[0])["0.weight"].shape == (5, 6)


def test_views_of_a_flat_model_are_its_parameters():
    model = build(lambda: mlp(4, 3, 2))
    layout = Layout.of(model)
    views = layout.views(layout.flatten(model))
    assert all(torch.equal(views[name], p) for name, p in model.named_parameters())


def test_frozen_parameters_are_constants():
    layout = Layout.of(frozen_middle())
    assert layout.names == ("0.weight", "0.bias", "4.weight", "4.bias")
    assert layout.dim == 35 + 15


def test_a_tied_parameter_is_there_once():
    model = mlp(6, 6, 6)
    model[2].weight = model[0].weight
    assert Layout.of(model).names == ("0.weight", "0.bias", "2.bias")
