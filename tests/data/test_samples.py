"""What people bring from Python: data sets of torch, lists of sites, tokens, mapped files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import privsgp
from privsgp.errors import Refused

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
TOKENS = RNG.integers(0, 11, (40, 5))
SETTINGS = {
    "seed": 1, "classes": 2, "privacy": {"epsilon": 5.0}, "graph": "ring",
    "algorithm": {"name": "privsgp", "steps": 3, "batch": 5},
}  # fmt: skip


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.position, self.out = nn.Embedding(11, 4), nn.Embedding(5, 4), nn.Linear(4, 2)

    def forward(self, x):
        places = torch.arange(x.shape[1], device=x.device).expand(x.shape)
        return self.out((self.table(x) + self.position(places)).mean(1))


class Endless(IterableDataset):
    def __iter__(self):
        yield from ()


def _weights(result):
    return torch.cat([p.flatten() for p in result.model.parameters()])


@pytest.mark.parametrize("given", [TensorDataset, lambda *t: DataLoader(TensorDataset(*t), batch_size=7, shuffle=True)])
def test_a_torch_data_set_is_the_arrays_it_gives(tmp_path, given):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    plain = privsgp.train(model, (X, Y), out=tmp_path / "a", nodes=2, **SETTINGS)
    brought = given(torch.from_numpy(X), torch.from_numpy(Y))
    torch.testing.assert_close(
        _weights(privsgp.train(model, brought, out=tmp_path / "b", nodes=2, **SETTINGS)),
        _weights(plain),
        rtol=0,
        atol=0,
    )


def test_a_list_of_sites_is_a_mapping_by_number(tmp_path):
    torch.manual_seed(0)
    model, sites = (
        nn.Linear(3, 2),
        [(X[:25], Y[:25]), TensorDataset(torch.from_numpy(X[25:]), torch.from_numpy(Y[25:]))],
    )
    listed = privsgp.train(model, sites, out=tmp_path / "a", **SETTINGS)
    numbered = privsgp.train(model, dict(enumerate(sites)), out=tmp_path / "b", **SETTINGS)
    torch.testing.assert_close(_weights(listed), _weights(numbered), rtol=0, atol=0)
    assert listed.summary["samples"] == [25, 15]


def test_tokens_stay_whole_and_train_at_a_certified_budget(tmp_path):
    torch.manual_seed(0)
    result = privsgp.train(Words(), (TOKENS, Y, TOKENS, Y), out=tmp_path / "run", nodes=2, **SETTINGS)
    assert max(result.summary["epsilon_spent"]) <= 5.0
    assert result.model(torch.from_numpy(TOKENS)).shape == (40, 2)


def test_tokens_that_no_row_stands_for_are_refused(tmp_path):
    for model, x, words in [
        (Words(), np.where(TOKENS == 3, 11, TOKENS), "outside the vocabulary, 0..10"),
        (Words(), TOKENS.astype(np.float32), "the model does not take samples"),
    ]:
        with pytest.raises(Refused, match=words):
            privsgp.train(model, (x, Y), out=tmp_path / "run", nodes=2, **SETTINGS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Endless(), "no items by number"),
        (X, "data is a ndarray"),
        ((X, Y, X), "tuple of 3"),
        (([[1.0, 2.0], [3.0]], [0, 1]), "x is no array"),
        (((TOKENS, X), Y), "several inputs"),
        (({"words": TOKENS, "numbers": X}, Y), "several inputs"),
        ([(X, Y, X, Y), (X, Y)], "node 0 has test data"),
    ],
)
def test_what_is_none_of_these_is_refused(tmp_path, given, words):
    with pytest.raises(Refused, match=words):
        privsgp.train(nn.Linear(3, 2), given, out=tmp_path / "run", **SETTINGS)


def test_a_run_on_a_mapped_file_is_the_run_on_the_array(tmp_path):
    np.save(tmp_path / "x.npy", X)
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    held = privsgp.train(model, (X, Y), out=tmp_path / "a", nodes=2, **SETTINGS)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    read = privsgp.train(model, (mapped, Y), out=tmp_path / "b", nodes=2, **SETTINGS)
    torch.testing.assert_close(_weights(read), _weights(held), rtol=0, atol=0)
    saga = SETTINGS | {"algorithm": {"name": "privsgp-vr", "steps": 3, "batch": 5}}
    sites = {0: (np.load(tmp_path / "x.npy", mmap_mode="r")[:20], Y[:20]), 1: (X[20:], Y[20:])}
    both = [privsgp.train(model, data, out=tmp_path / f"c{i}", **saga) for i, data in enumerate([sites, {
        0: (X[:20], Y[:20]), 1: (X[20:], Y[20:])}])]  # fmt: skip
    torch.testing.assert_close(_weights(both[0]), _weights(both[1]), rtol=0, atol=0)
