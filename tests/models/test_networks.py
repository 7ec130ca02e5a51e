from __future__ import annotations

import pytest
import torch
from torch import nn

from privsgp.data import schema as schemas
from privsgp.errors import Refused
from privsgp.models import make


def dim(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "hidden", "d"),
    [("mlp", 64, 50_890), ("mlp", [64], 50_890), ("mlp", [32, 16], 25_818), ("logistic", 64, 7_850)],
)
def test_dimensions(name, hidden, d):
    model = make(name, input_shape=(1, 28, 28), outputs=10, seed=0, hidden=hidden)
    assert dim(model) == d
    assert model(torch.zeros(5, 1, 28, 28)).shape == (5, 10)


def test_mlp_is_the_textbook_one():
    model = make("mlp", input_shape=(3,), outputs=2, seed=0, hidden=[4, 5])
    one, two, three = (layer for layer in model if isinstance(layer, torch.nn.Linear))
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model(x), three(torch.relu(two(torch.relu(one(x))))))


def test_the_same_seed_gives_the_same_bits_and_torchs_own_initialisation():
    first, second = (make("mlp", input_shape=(8,), outputs=3, seed=5) for _ in range(2))
    other = make("mlp", input_shape=(8,), outputs=3, seed=6)
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert not any(map(torch.equal, first.parameters(), other.parameters()))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        assert torch.equal(first[1].weight, torch.nn.Linear(8, 64).weight)


@pytest.mark.parametrize("name", ["logistic", "linear", "mlp"])
def test_a_linear_model_of_a_table_starts_at_zero(name):
    schema = schemas.parse({"target": {"classes": ["no", "yes"], "column": "y"}, "columns": {"x": {"type": "yes/no"}}})
    made = make(name, input_shape=(1,), outputs=2, seed=0, schema=schema)
    assert all(not parameter.any() for parameter in made.parameters()) == (name != "mlp")


def test_torchs_global_generator_is_left_alone():
    before = torch.get_rng_state()
    make("linear", input_shape=(8,), outputs=1, seed=2**80 + 1)
    assert torch.equal(before, torch.get_rng_state())


def test_refuses():
    with pytest.raises(Refused, match=r"model.name = 'resnet' is unknown\n.*mlp"):
        make("resnet", input_shape=(8,), outputs=2, seed=0)
    for hidden in (0, [], [4, -1]):
        with pytest.raises(Refused, match=r"model.hidden = "):
            make("mlp", input_shape=(8,), outputs=2, seed=0, hidden=hidden)


@pytest.mark.parametrize(("name", "kind"), [("relu", nn.ReLU), ("sigmoid", nn.Sigmoid), ("tanh", nn.Tanh)])
def test_an_activation_changes_nothing_but_itself(name, kind):
    plain, other = (
        make("mlp", input_shape=(4,), outputs=3, seed=1, hidden=[5, 6], activation=a) for a in ("relu", name)
    )
    assert [type(layer) for layer in other][2::2] == [kind, kind]
    assert all(torch.equal(p, q) for p, q in zip(plain.parameters(), other.parameters(), strict=True))
