from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from modules import build, cross_entropy, mlp, probe, samples
from torch import nn

from privsgp.gradients import Layout, PerSample, stack
from privsgp.gradients.per_sample import Outer, Plain, squared_norm
from privsgp.models import per_sample

KAPPA = {torch.float32: 1e-6, torch.float64: 1e-12}
dtypes = st.sampled_from([torch.float32, torch.float64])


def gradients(seed, nodes=2, batch=3, dtype=torch.float64, scale=1.0):
    """Three layers: the data's, a hidden one without bias, and one without a rule."""
    generator = torch.Generator().manual_seed(seed)

    def normal(size):
        return scale * torch.randn(nodes, batch, size, generator=generator, dtype=dtype)

    return PerSample(
        [
            Outer(normal(4), normal(5), bias=True, input_is_data=True),
            Outer(normal(2), normal(4), bias=False),
            Plain(normal(6)),
        ]
    )


def everyone(g):
    return torch.ones(g.norm().shape, dtype=torch.bool)


@given(seed=st.integers(0, 2**32), dtype=dtypes)
def test_what_is_read_off_the_factors_is_true_of_the_gradients(seed, dtype):
    g = gradients(seed, dtype=dtype)
    dense = g.dense()
    assert dense.shape == (2, 3, 24 + 8 + 6)
    assert g.norm().dtype == torch.float64
    torch.testing.assert_close(g.norm(), dense.double().norm(dim=-1), rtol=1e-6, atol=0)
    torch.testing.assert_close(g.sum(), dense.sum(1))


def test_an_outer_product_lies_as_a_layers_parameters_do():
    """weight[o, i] = δ_o a_i row by row, then the bias δ."""
    piece = Outer(torch.tensor([[[2.0, 3.0]]]), torch.tensor([[[1.0, 10.0, 100.0]]]), bias=True)
    assert piece.dense().tolist() == [[[2, 20, 200, 3, 30, 300, 2, 3]]]
    assert PerSample([piece]).sum().tolist() == [[2, 20, 200, 3, 30, 300, 2, 3]]


@given(seed=st.integers(0, 2**32), dtype=dtypes, radius=st.floats(1e-3, 1e2), size=st.floats(1e-2, 1e2))
def test_the_clip_is_one_factor_over_the_whole_gradient(seed, dtype, radius, size):
    g = gradients(seed, dtype=dtype, scale=size)
    before, norm = g.dense(), g.norm()
    g.clip_(radius, everyone(g))
    factor = (radius / norm).clamp(max=1)
    torch.testing.assert_close(g.dense(), (before * factor[..., None]).to(dtype), rtol=4 * KAPPA[dtype], atol=0)
    assert (g.norm() <= radius * (1 + KAPPA[dtype])).all()
    assert (g.norm() >= norm.clamp(max=radius) * (1 - KAPPA[dtype])).all()
    torch.testing.assert_close(g.sum(), g.dense().sum(1), rtol=1e-5, atol=1e-6 * radius)


@given(seed=st.integers(0, 2**32), keep=st.lists(st.booleans(), min_size=6, max_size=6))
def test_masked_slots_contribute_exactly_nothing(seed, keep):
    g = gradients(seed)
    mask = torch.tensor(keep).view(2, 3)
    before = g.dense()
    g.clip_(math.inf, mask)
    assert torch.equal(g.dense(), before.where(mask[..., None], 0))
    torch.testing.assert_close(g.sum(), g.dense().sum(1), rtol=1e-12, atol=1e-14)
    assert not g.sum()[~mask.any(1)].any()


@given(seed=st.integers(0, 2**32), dtype=dtypes)
def test_an_infinite_clip_is_the_identity(seed, dtype):
    g = gradients(seed, dtype=dtype)
    before = g.dense()
    g.clip_(math.inf, everyone(g))
    assert torch.equal(g.dense(), before)


@pytest.mark.parametrize("radius", [1e-3, 1.0, math.inf])
def test_zero_stays_zero(radius):
    g = gradients(0, scale=0.0)
    g.clip_(radius, everyone(g))
    assert torch.equal(g.dense(), torch.zeros(2, 3, 24 + 8 + 6, dtype=torch.float64))


@settings(max_examples=300)
@given(
    seed=st.integers(0, 2**32), radius=st.sampled_from([1e-3, 1.0, 100.0]), bias=st.booleans(),
    delta=st.floats(-45, 38.5), a=st.floats(-45, 38.5), plain=st.floats(-45, 38.5),
)  # fmt: skip
def test_no_size_of_gradient_escapes_the_ball(seed, radius, bias, delta, a, plain):
    """Neighbours choose z, so they choose the sizes: none may mark a sample by overflow, or by a coarse factor."""
    generator = torch.Generator().manual_seed(seed)

    def normal(size, exponent):
        values = torch.randn(1, 4, size, generator=generator, dtype=torch.float64)
        return (values * 10.0**exponent).float()

    g = PerSample([Outer(normal(3, delta), normal(7, a), bias), Plain(normal(5, plain))])
    g.clip_(radius, everyone(g))
    exact = PerSample(
        [Outer(g.pieces[0].delta.double(), g.pieces[0].input.double(), bias), Plain(g.pieces[1].delta.double())]
    )
    assert (exact.dense().norm(dim=-1) <= radius * (1 + KAPPA[torch.float32])).all()
    assert g.sum().isfinite().all()


def test_squares_beyond_float32_are_clipped_and_not_lost():
    g = PerSample([Outer(torch.full((1, 1, 2), 3e11), torch.full((1, 1, 2), 2e11), bias=False)])
    g.clip_(1.0, everyone(g))
    torch.testing.assert_close(g.dense(), torch.full((1, 1, 4), 0.5))


def test_the_norm_of_a_million_weights_is_not_lost_in_rounding():
    g = PerSample([Plain(0.1 + 0.01 * torch.rand(1, 1, 10**6, generator=torch.Generator().manual_seed(0)))])
    g.clip_(1.0, everyone(g))
    assert abs(g.dense().double().norm() - 1) <= KAPPA[torch.float32]


def poison(outputs, targets):
    """A loss that is not a number for samples of class 2."""
    return cross_entropy(outputs, targets) * torch.where(targets == 2, math.nan, 1.0)


def huge_targets(outputs, targets):
    return per_sample("mse")(outputs, torch.where(targets == 2, 3e38, 1.0)[..., None].expand(outputs.shape))


@pytest.mark.parametrize("rules", [True, False])
@pytest.mark.parametrize("loss", [poison, huge_targets])
@pytest.mark.parametrize("radius", [0.5, math.inf])
def test_a_sample_whose_loss_overflows_counts_as_zero_and_disturbs_no_other(loss, rules, radius):
    model = build(lambda: mlp(6, 5, 3), dtype=torch.float32)
    gradient = stack(model, loss, (probe(dtype=torch.float32)[0], torch.zeros(4, dtype=torch.int64)), rules=rules)
    z = Layout.of(model).flatten(model).repeat(2, 1)
    inputs, targets = samples(2, 8, dtype=torch.float32)
    bad = targets == 2
    assert 0 < bad.sum() < 16
    with_it, without, healthy = (gradient(z, inputs, t) for t in (targets, targets, targets.where(~bad, 0)))
    assert not with_it.norm().isfinite().all()
    with_it.clip_(radius, everyone(with_it))
    without.clip_(radius, ~bad)
    healthy.clip_(radius, ~bad)
    assert torch.equal(with_it.dense(), healthy.dense())
    assert torch.equal(with_it.sum(), without.sum())
    assert torch.equal(with_it.sum(), healthy.sum())


def test_an_infinite_activation_counts_as_zero_and_disturbs_no_other():
    """A finite sample that overflows on the way: 3e38 · w leaves float32 for |w| > 1.1."""
    model = build(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), dtype=torch.float32)
    gradient = stack(model, cross_entropy, probe(dtype=torch.float32))
    z = 10 * Layout.of(model).flatten(model).repeat(2, 1)
    inputs, targets = samples(2, 4, dtype=torch.float32)
    mask = torch.ones(2, 4, dtype=torch.bool)
    mask[0, 1] = False
    expected = gradient(z, inputs, targets)
    expected.clip_(0.5, mask)
    inputs[0, 1] = 3e38
    g = gradient(z, inputs, targets)
    assert not g.pieces[1].input[0, 1].isfinite().all()
    g.clip_(0.5, torch.ones_like(mask))
    assert torch.equal(g.dense(), expected.dense())
    assert torch.equal(g.sum(), expected.sum())


@pytest.mark.parametrize("columns", [5, 64, 160, 784])
@pytest.mark.parametrize("scale", [0.0, 1e-25, 1e-20, 1.0, 1e9])
def test_a_length_is_never_measured_short(columns, scale):
    v = scale * torch.randn(3, 40, columns, generator=torch.Generator().manual_seed(0))
    v[..., ::3] *= 1e-3
    measured, length = squared_norm(v).sqrt(), v.double().norm(dim=-1)
    assert (measured >= length * (1 - 1e-6)).all()
    assert (measured <= length * (1 + 1e-6) + 1e-17).all()


def test_a_vector_too_long_to_be_scaled_exactly_counts_as_infinite():
    assert squared_norm(torch.full((1, 2, 160), 1e13)).isinf().all()
    assert squared_norm(torch.full((1, 2, 160), 1e30)).isinf().all()
