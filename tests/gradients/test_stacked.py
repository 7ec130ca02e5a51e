from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from modules import NO_LAYER_FITS, RULED, UNRULED, around, build, cross_entropy, mlp, plain_gradients, probe, samples
from torch import nn
from torch.nn import functional

from privsgp.errors import Refused
from privsgp.gradients import stack
from privsgp.gradients.rules.mixed import Mixed
from privsgp.gradients.rules.ruled import Ruled
from privsgp.gradients.stacked import Functional

OWN_FORWARD = ("asks", "residual", "views", "three dimensions")


@pytest.mark.parametrize(
    ("name", "way"),
    [(n, Mixed if n in OWN_FORWARD else Ruled) for n in RULED]
    + [(n, Functional if n in NO_LAYER_FITS else Mixed) for n in UNRULED],
)
def test_the_rule_is_taken_where_it_holds_and_gives_the_true_gradients_everywhere(name, way):
    model = build((RULED | UNRULED)[name])
    gradient = stack(model, cross_entropy, probe())
    assert type(gradient) is way
    z, data = around(model, 2), samples(2, 3)
    torch.testing.assert_close(
        gradient(z, *data).dense(), plain_gradients(model, cross_entropy, z, *data), rtol=1e-10, atol=1e-12
    )


def test_rules_can_be_switched_off():
    assert type(stack(build(RULED["mlp"]), cross_entropy, probe(), rules=False)) is Functional


@pytest.mark.parametrize(
    ("layer", "what", "remedy"),
    [
        (lambda: nn.BatchNorm1d(5), "layer '1' is a BatchNorm1d", "GroupNorm"),
        (lambda: nn.BatchNorm1d(5, track_running_stats=False).eval(), "layer '1' is a BatchNorm1d", "GroupNorm"),
        (lambda: nn.SyncBatchNorm(5), "layer '1' is a SyncBatchNorm", "GroupNorm"),
        (lambda: nn.InstanceNorm1d(5, track_running_stats=True), "layer '1' is a InstanceNorm1d", "GroupNorm"),
        (lambda: nn.FeatureAlphaDropout(0.25), r"layer '1' is a FeatureAlphaDropout with p = 0\.25", "p = 0"),
        (lambda: nn.AlphaDropout(0.1), r"layer '1' is a AlphaDropout with p = 0\.1", "p = 0"),
    ],
)
def test_layers_that_mix_samples_are_refused_by_name(layer, what, remedy):
    model = nn.Sequential(nn.Linear(6, 5), layer(), nn.Linear(5, 3)).double()
    with pytest.raises(Refused, match=what) as refusal:
        stack(model, cross_entropy, probe())
    assert remedy in refusal.value.remedy


def test_a_model_that_is_itself_such_a_layer_is_refused():
    with pytest.raises(Refused, match="the model is a BatchNorm1d"):
        stack(nn.BatchNorm1d(6).double(), cross_entropy, probe())


def test_a_dropout_that_drops_nothing_is_welcome():
    model = build(lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.0), nn.Linear(5, 3)))
    assert type(stack(model, cross_entropy, probe())) is Ruled


class Own(nn.Module):
    """A linear layer and whatever a user does with its output."""

    def __init__(self, operation):
        super().__init__()
        self.layer, self.operation = nn.Linear(6, 3), operation

    def forward(self, x):
        return self.operation(self.layer(x))


@pytest.mark.parametrize(
    "operation",
    [
        lambda h: h - h.mean(0),
        lambda h: h / len(h),
        lambda h: functional.softmax(h, 0),
        lambda h: h + h.roll(1, 0),
        functional.dropout,
    ],
)
@pytest.mark.parametrize("rules", [True, False])
def test_a_forward_that_mixes_samples_is_refused(operation, rules):
    model = build(lambda: Own(operation))
    with pytest.raises(Refused, match="depends on the other samples of its batch") as refusal:
        stack(model, cross_entropy, probe(), rules=rules)
    assert "each sample alone" in refusal.value.remedy


def test_a_loss_that_averages_over_the_batch_is_refused():
    with pytest.raises(Refused, match=r"shape \(\) for 4 samples") as refusal:
        stack(mlp(6, 3).double(), nn.CrossEntropyLoss(), probe())
    assert "one number per sample" in refusal.value.remedy


def test_a_loss_with_several_values_a_sample_is_refused():
    with pytest.raises(Refused, match=r"shape \(4, 3\) for 4 samples"):
        stack(mlp(6, 3).double(), lambda outputs, _targets: outputs.square(), probe())


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: cross_entropy(out, y) / cross_entropy(out, y).detach().sum(),
        lambda out, y: cross_entropy(out, y) * torch.bincount(y, minlength=3)[y],
    ],
)
def test_a_loss_that_mixes_samples_is_refused(loss):
    with pytest.raises(Refused, match="depends on the other samples of its batch"):
        stack(mlp(6, 3).double(), loss, probe())


def test_a_model_without_trainable_parameters_is_refused():
    model = mlp(6, 3).requires_grad_(requires_grad=False)
    with pytest.raises(Refused, match="no trainable parameter") as refusal:
        stack(model, cross_entropy, probe())
    assert "requires_grad" in refusal.value.remedy


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        h = self.layer(x)
        return h if h.sum() > -1e9 else -h


def test_what_torch_func_cannot_differentiate_is_refused_with_the_reason():
    with pytest.raises(Refused, match=r"torch\.func cannot differentiate") as refusal:
        stack(Branches().double(), cross_entropy, probe())
    assert "branches that depend on data" in refusal.value.remedy


def test_the_model_and_the_probe_are_left_alone():
    model, (inputs, targets) = build(RULED["mlp"], dtype=torch.float32), probe(dtype=torch.float32)
    before = [t.clone() for t in (*model.parameters(), inputs, targets)]
    stack(model, cross_entropy, (inputs, targets))
    assert all(torch.equal(a, b) for a, b in zip((*model.parameters(), inputs, targets), before, strict=True))


def test_a_model_whose_layers_have_rules_starts_without_the_compiler():
    """torch.func loads it with its first gradient, which takes more than a second."""
    script = (
        "import sys, torch; from privsgp.gradients import stack; from privsgp.models import per_sample; "
        "stack(torch.nn.Linear(4, 3), per_sample('cross-entropy'), (torch.randn(4, 4), torch.arange(4) % 3)); "
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


class Doubled(nn.Linear):
    """A subclass of a layer with a rule, and a forward of its own."""

    def __init__(self):
        super().__init__(6, 3)

    def forward(self, x):
        return 2 * super().forward(x)


class Positions(nn.Module):
    """An embedding of positions, which are the same for all samples, as in models of Hugging Face."""

    def __init__(self):
        super().__init__()
        self.positions, self.layer = nn.Embedding(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x) + self.positions(torch.arange(6)[None]).mean(1)


def test_the_way_and_its_reason_are_in_words():
    hows = {name: stack(build((RULED | UNRULED)[name]), cross_entropy, probe()).how for name in (*RULED, *UNRULED)}
    assert hows["mlp"] == "by rules"
    assert "where no rule fits: attend (MultiheadAttention), attend.out_proj (" in hows["attention"]
    assert "the model (OwnParameter)" in hows["own parameter"]
    assert hows["uses weight"].endswith("uses the weights of a layer without calling it, or changes the layer")
    assert stack(build(Doubled), cross_entropy, probe()).how.endswith("has no rule, or is called several times")
    assert "on one sample at a time" in stack(build(Positions), cross_entropy, probe()).how


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(3)), "layer '0' is a LazyLinear, whose weights have no shape"),
        (lambda: torch.compile(nn.Linear(6, 3)), "the model is compiled"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile's own
def test_models_that_are_no_plain_modules_are_refused(model, what):
    with pytest.raises(Refused, match=what):
        stack(model(), cross_entropy, probe())
