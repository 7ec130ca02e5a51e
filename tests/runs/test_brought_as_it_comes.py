"""PyTorch habits from Python: several labels a sample, tokens and masks, encoders; or a refusal with a remedy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import privsgp
from privsgp.errors import Refused

N = 24
RNG = np.random.default_rng(0)
IDS, X, Y = RNG.integers(0, 20, (N, 6)), RNG.standard_normal((N, 8), dtype=np.float32), RNG.integers(0, 2, N)


def trained(tmp_path, model, x, y=None, **more):
    nodes = {} if isinstance(x, list) else {"nodes": more.pop("nodes", 2)}
    return privsgp.train(
        model, x if y is None else (x, y), out=tmp_path / "run", seed=0, **nodes, privacy={"epsilon": 3.0},
        algorithm={"name": "privsgp", "batch": 3, "steps": 2}, **more,
    )  # fmt: skip


def tagged(outputs, targets):
    return cross_entropy(outputs.transpose(1, 2), targets, reduction="none").mean(-1)


@pytest.mark.parametrize(("model", "x", "y", "loss"), [
    (nn.Sequential(nn.Embedding(20, 4), nn.Linear(4, 3)), IDS, RNG.integers(0, 3, (N, 6)), tagged),
    (nn.Conv2d(1, 3, 1), RNG.standard_normal((N, 1, 4, 4), dtype=np.float32), RNG.integers(0, 3, (N, 4, 4)),
     nn.CrossEntropyLoss(reduction="none")),
    (nn.Linear(8, 5), X, RNG.integers(0, 2, (N, 5)), nn.BCEWithLogitsLoss(reduction="none")),
    (nn.Linear(8, 1), X, RNG.integers(0, 9, N), lambda outputs, y: outputs[..., 0].exp() - y * outputs[..., 0]),
])  # fmt: skip
def test_several_whole_numbers_a_sample(tmp_path, model, x, y, loss):
    result = trained(tmp_path, model, x, y, loss=loss)
    assert result.summary["gradients"].startswith("by rules")
    assert result.card["target_shape"] == list(y.shape[1:])
    assert result.predict(x).shape[0] == N


def test_a_torch_loss_of_several_labels_is_their_mean():
    loss = privsgp.models.in_any_precision(nn.CrossEntropyLoss(reduction="none"), 2)
    outputs, y = torch.randn(5, 3, 4, 4), torch.randint(0, 3, (5, 4, 4))
    plain = [cross_entropy(o.flatten(1).T, t.flatten()) for o, t in zip(outputs, y, strict=True)]
    assert torch.allclose(loss(outputs, y), torch.stack(plain))


class _Masked(nn.Module):
    """Tokens and their mask in one array [N, 2, T]."""

    def __init__(self):
        super().__init__()
        self.embedding, self.out = nn.Embedding(20, 4), nn.Linear(4, 2)

    def forward(self, x):
        mask = x[:, 1].unsqueeze(-1)
        return self.out((self.embedding(x[:, 0]) * mask).sum(1) / mask.sum(1).clamp(min=1))


def test_tokens_and_mask_in_one_array(tmp_path):
    result = trained(tmp_path, _Masked(), np.stack([IDS, (IDS > 3).astype(np.int64)], 1), Y)
    assert result.summary["gradients"].startswith("by rules")


def test_features_that_look_tokens_up(tmp_path):
    encoder = nn.Sequential(nn.Embedding(20, 4), nn.Flatten())
    with pytest.raises(Refused, match="vocabulary"):
        trained(tmp_path, nn.Linear(24, 2), IDS, Y, features=encoder)
    result = trained(tmp_path, nn.Linear(24, 2), IDS, Y, features=encoder, vocabulary=20)
    again = privsgp.load(result.folder, model=nn.Linear(24, 2), features=encoder)
    np.testing.assert_array_equal(again.predict(IDS), result.predict(IDS))


@pytest.mark.parametrize("parameters", [1, 4])
def test_prelu_with_several_nodes(tmp_path, parameters):
    model = nn.Sequential(nn.Linear(8, 4), nn.PReLU(parameters), nn.Linear(4, 2))
    assert "PReLU" in trained(tmp_path, model, X, Y, nodes=4).summary["gradients"]


class _Columns:
    """What a data set of Hugging Face looks like."""

    def __init__(self, **columns):
        self.columns, self.column_names = columns, list(columns)

    def __getitem__(self, name):
        return iter(self.columns[name])


@pytest.mark.parametrize("several", [True, False])
def test_a_data_set_of_hugging_face(tmp_path, several):
    """Its token ids and mask are the array that `_Masked` takes; without a mask ids come alone."""
    found = _Columns(input_ids=IDS.tolist(), attention_mask=(IDS > 3).astype(int).tolist(), label=Y.tolist())
    both, alone = [found, found] if several else found, _Columns(input_ids=IDS.tolist(), label=Y.tolist())
    result = trained(tmp_path, _Masked(), both, nodes=2)
    assert result.card["input_shape"] == [2, 6]
    assert result.predict(np.stack([IDS, IDS > 3], 1).astype(np.int64)).shape == (N,)
    model = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(24, 2))
    assert trained(tmp_path / "alone", model, alone, nodes=2).card["input_shape"] == [6]


class _Lora(nn.Module):
    """What PEFT puts in the place of a linear layer."""

    def __init__(self, layer, rank):
        super().__init__()
        self.base_layer = layer.requires_grad_(requires_grad=False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(layer.in_features, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, layer.out_features, bias=False)})
        self.lora_dropout = nn.ModuleDict({"default": nn.Identity()})

    def forward(self, x):
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](self.lora_dropout["default"](x)))


def test_adapters_have_rules_and_small_messages(tmp_path):
    model = nn.Sequential(_Lora(nn.Linear(8, 16), 2), nn.ReLU(), nn.Linear(16, 2))
    summary = trained(tmp_path, model, X, Y).summary
    assert summary["gradients"].startswith("by rules")
    assert summary["dim"] == 2 * (8 + 16) + 34


class _Splits(dict):
    """What several splits of one look like."""

    column_names = ("input_ids", "label")


class _Output(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        return {"logits": self.out(x)}


class _Drops(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.hidden_dropout_prob = 0.1


@pytest.mark.parametrize(("model", "data", "what"), [
    (nn.Linear(8, 2), _Columns(text=[]), "input_ids"), (nn.Linear(8, 2), _Splits(train=0), "give one split"),
    (nn.Linear(8, 2), _Columns(input_ids=[[1], [1, 2]], label=Y), "pad"),
    (nn.Linear(8, 2), ({"a": X}, Y), r"numpy\.stack"),
    (_Output(), (X, Y), r"out\.logits"), (_Drops(8, 2), (X, Y), r"hidden_dropout_prob = 0\.1"),
    (nn.LazyLinear(2), (X, Y), "LazyLinear"), (nn.Linear(8, 5), (X, RNG.integers(0, 2, (N, 5))), "BCEWithLogitsLoss"),
])  # fmt: skip
def test_refusals_say_what_to_do(tmp_path, model, data, what):
    with pytest.raises(Refused, match=what):
        privsgp.train(model, data, out=tmp_path / "run", seed=0, nodes=2, privacy={"epsilon": 3.0})


class _Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x):
        packed = nn.utils.rnn.pack_padded_sequence(x.reshape(-1, 4, 2), [3] * len(x), batch_first=True)
        return self.out(self.rnn(packed)[1][-1])


@pytest.mark.filterwarnings("ignore")  # torch's own, of lengths under vmap
def test_packed_sequences_are_refused(tmp_path):
    with pytest.raises(Refused, match="PackedSequence"):
        trained(tmp_path, _Packed(), X, Y)
