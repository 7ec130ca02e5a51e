from __future__ import annotations

import pytest
import torch
from torch import nn

from privsgp.errors import Refused
from privsgp.gradients.stacked import refuse_mixing_layers
from privsgp.models import make


def dim(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "d"),
    [
        ("cnn", (1, 28, 28), 26_010),
        ("cnn", (28, 28), 26_010),
        ("cnn", (3, 32, 32), 550_570),
        ("cnn", (2, 16, 21), 12_698),
        ("resnet18", (3, 32, 32), 11_173_962),
        ("resnet18", (9, 8), 11_172_810),
    ],
)
def test_dimensions(name, shape, d):
    model = make(name, input_shape=shape, outputs=10, seed=0)
    assert dim(model) == d
    assert model(torch.zeros(2, *shape)).shape == (2, 10)
    refuse_mixing_layers(model)


def test_the_first_image_does_not_change_when_another_comes():
    model = make("resnet18", input_shape=(3, 8, 8), outputs=4, seed=0)
    x = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-4, atol=1e-5)


def test_resnet18_has_its_eighteen_layers():
    model = make("resnet18", input_shape=(3, 32, 32), outputs=10, seed=0)
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    assert sum(layer.kernel_size == (3, 3) for layer in convolutions) + 1 == 18
    assert [layer.stride for layer in convolutions if layer.kernel_size == (1, 1)] == [(2, 2)] * 3
    assert all(layer.bias is None for layer in convolutions)


def test_the_same_seed_gives_the_same_bits():
    first, second, other = (make("cnn", input_shape=(28, 28), outputs=10, seed=seed) for seed in (5, 5, 6))
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert not any(map(torch.equal, first.parameters(), other.parameters()))


@pytest.mark.parametrize(("name", "shape"), [("cnn", (784,)), ("cnn", (1, 12, 28)), ("resnet18", (3, 4, 32))])
def test_what_is_no_image_is_refused(name, shape):
    with pytest.raises(Refused, match=rf"model.name = '{name}' does not take inputs of shape") as refusal:
        make(name, input_shape=shape, outputs=10, seed=0)
    assert "'mlp' takes any input" in refusal.value.remedy
