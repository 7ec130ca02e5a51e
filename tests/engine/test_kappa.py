"""The arithmetic a run computes in is never coarser than the one its noise was calibrated for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from privsgp.algorithms import ALGORITHMS, Settings
from privsgp.engine.spec import refuse_coarser
from privsgp.errors import Refused
from privsgp.gradients.rounding import kappa
from privsgp.gradients.rules.layer import StackedLayer, StackedLinear
from privsgp.gradients.rules.ruled import RULES, positions

CPU = torch.device("cpu")


def _spec(counted, algorithm="privsgp-vr", dtype=torch.float32, model=None, shape=(3,)):
    chosen = ALGORITHMS[algorithm]
    mechanisms = [chosen.mechanism(Settings(), sigma=1.0, batch=5, samples=50, kappa=k) for k in counted]
    learning = SimpleNamespace(places=positions(model or nn.Linear(3, 2), torch.zeros(4, *shape)))
    return SimpleNamespace(
        algorithm=chosen, mechanisms=mechanisms, dtype=dtype, device=CPU, learning=learning, simulation=False
    )


def test_what_was_counted_is_accepted():
    refuse_coarser(_spec([kappa(torch.float32, CPU)] * 2))
    refuse_coarser(_spec([2**-8]))
    refuse_coarser(_spec([2**-20], dtype=torch.float64))


def test_one_node_counted_for_finer_arithmetic_is_refused():
    with pytest.raises(Refused, match=r"computed for κ = 9.53674e-07, and the arithmetic now has κ = 0.000244"):
        refuse_coarser(_spec([2**-12, 2**-20]))


@pytest.mark.parametrize("name", ["CUBLAS_EMULATE_DOUBLE_PRECISION", "CUBLAS_EMULATION_STRATEGY"])
def test_float64_that_is_made_up_is_no_float64(name, monkeypatch):
    monkeypatch.setenv(name, "1")
    spec = _spec([2**-8])
    spec.device, spec.simulation = torch.device("cuda"), False
    with pytest.raises(Refused, match=f"{name} = '1': cuBLAS may emulate float64"):
        refuse_coarser(spec)
    spec.simulation = True
    refuse_coarser(spec)


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_float32_in_fewer_bits_is_no_float32(precision, monkeypatch):
    spec = _spec([2**-8], model=nn.Linear(3, 2), shape=(5, 3))
    spec.simulation = False
    refuse_coarser(spec)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        with pytest.raises(Refused, match="a CPU may multiply float32 in fewer bits"):
            refuse_coarser(spec)
    finally:
        torch.set_float32_matmul_precision(before)
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    with pytest.raises(Refused, match="ONEDNN_DEFAULT_FPMATH_MODE = 'BF16': a CPU may"):
        refuse_coarser(spec)
    spec.simulation = True
    refuse_coarser(spec)


def test_a_method_without_noise_may_compute_as_it_likes():
    refuse_coarser(_spec([0.0], "sgp"))


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Conv1d(3, 2, 1), (3, 5)),
        (nn.Linear(3, 2), (5, 3)),
        (nn.Sequential(nn.Unflatten(1, (2, 2)), nn.Linear(2, 1)), (4,)),
    ],
)
def test_layers_at_many_positions_need_more_slack(model, shape):
    with pytest.raises(Refused, match=r"computed for κ = 0.000244141, and the arithmetic now has κ = 0.0039"):
        refuse_coarser(_spec([2**-12], model=model, shape=shape))
    refuse_coarser(_spec([2**-8], model=model, shape=shape))
    assert not any(layer._forward_pre_hooks for layer in model.modules())


@pytest.mark.parametrize(
    ("model", "made_up", "places"),
    [
        (nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(8, 3)), torch.zeros(3, 4, dtype=torch.int64), 4),
        (nn.Sequential(nn.Embedding(5, 2), nn.Flatten()), torch.zeros(3, 1, dtype=torch.int64), 2),
        (nn.Sequential(nn.Flatten(), nn.Linear(6, 2)), torch.zeros(4, 2, 3), 1),
        (nn.Sequential(nn.Linear(3, 2), nn.Flatten(), nn.Linear(20, 1)), torch.zeros(4, 5, 2, 3), 10),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 3, 3)), torch.zeros(4, 1, 8, 7), 30),
    ],
)
def test_how_often_a_layer_is_used_on_a_sample(model, made_up, places):
    assert positions(model, made_up) == places


class Own(nn.Module):
    """Somebody's linear layer, which is none of torch's."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(outputs, inputs))

    def forward(self, x):
        return x @ self.weight.T


class Renamed(nn.Linear):
    """A subclass with a forward of its own has no rule."""

    def forward(self, x):
        return super().forward(x)


class Undeclared(StackedLayer):
    """A rule that does not say whether its layer is used at many positions."""

    forward = StackedLinear.forward
    piece = StackedLinear.piece


class Declared(Undeclared):
    """A rule that says that it is not."""

    positional = False


ON_ROWS = nn.Sequential(nn.Unflatten(1, (5, 3)), Own(3, 2), nn.Flatten(), nn.Linear(10, 2))


@pytest.mark.parametrize(("rule", "places"), [(None, 2), (Undeclared, 10), (StackedLinear, 5), (Declared, 1)], ids=str)
def test_a_rule_declares_whether_its_layer_is_used_at_many_positions(rule, places, monkeypatch):
    if rule is not None:
        monkeypatch.setitem(RULES, Own, rule)
    assert positions(ON_ROWS, torch.zeros(4, 15)) == places
    assert kappa(torch.float32, CPU, positions=places) == (2.0**-12 if rule is Declared else 2.0**-8)


@pytest.mark.parametrize("layer", [Own(3, 2), Renamed(3, 2), nn.GRU(3, 2), nn.Bilinear(3, 3, 2)], ids=str)
def test_a_layer_without_a_rule_is_taken_as_if_it_were(layer):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x, x) if isinstance(layer, nn.Bilinear) else self.layer(x)

    assert positions(Model(), torch.zeros(4, 3)) == 2


def test_a_weight_that_is_used_without_its_layer_may_be_used_anywhere():
    class Borrows(nn.Linear):
        def __init__(self):
            super().__init__(3, 3)
            self.lent = nn.Linear(3, 3)

        def forward(self, x):
            return x @ self.lent.weight

    model = nn.Sequential(Borrows(), nn.Linear(3, 2))
    model[0].weight = model[0].bias = None
    assert positions(model, torch.zeros(4, 3)) == 2


def test_scales_and_shifts_are_summed_before_they_are_measured():
    assert positions(nn.Sequential(nn.LayerNorm(3), nn.Flatten(), nn.Linear(15, 2)), torch.zeros(4, 5, 3)) == 1
    assert positions(nn.Sequential(nn.Flatten(), nn.Tanh()), torch.zeros(4, 5, 3)) == 1
