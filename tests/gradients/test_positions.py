from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import conv2d, cross_entropy

from privsgp.gradients import PerSample, positions, stack
from privsgp.gradients.per_sample import Plain, smaller, squared_norm
from privsgp.gradients.positions import Positions, Window, _by_gradient, _by_gram

WINDOWS = [
    Window((3, 3), padding=(1, 1)),
    Window((3, 2), stride=(2, 1), padding=(0, 1)),
    Window((2, 3), dilation=(2, 1), padding=(1, 0), groups=2),
    Window(groups=2),
]


def piece(window, *, height=5, width=4, seed=0, dtype=torch.float64, bias=True, scale=1.0):
    """Two models, three samples, four channels in and six out."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(3, 2, 4, height, width, generator=generator, dtype=torch.float64)
    weight = torch.zeros(6, 4 // window.groups, *window.kernel, dtype=torch.float64)
    out = conv2d(a.flatten(0, 1), weight, None, window.stride, window.padding, window.dilation, window.groups)
    delta = torch.randn(3, 2, *out.shape[1:], generator=generator, dtype=torch.float64)
    return laid((scale * delta).to(dtype), a.to(dtype), window, bias=bias)


def laid(delta, a, window, *, bias=False, input_is_data=False):
    """Gradients of samples that come before models, [b, m, …], as in the code that makes them."""
    return Positions(delta.transpose(0, 1), a.transpose(0, 1), window, bias, input_is_data=input_is_data)


def long(p):
    """δ and a of all samples, [b · m, …]."""
    return [t.transpose(0, 1).flatten(0, 1) for t in (p.delta, p.input)]


def with_lengths(delta, a, window):
    """What both ways to the norm are given."""
    return delta, a, window, squared_norm(delta.flatten(1)), squared_norm(a.flatten(1))


def plain(p):
    """∂/∂(weight, bias) ⟨δ, conv(a)⟩ by autograd, one sample at a time."""
    w = p.window
    weight = torch.zeros(6, 4 // w.groups, *w.kernel, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    rows = []
    for delta, a in zip(p.delta.flatten(0, 1), p.input.flatten(0, 1), strict=True):
        out = conv2d(a[None].double(), weight, bias, w.stride, w.padding, w.dilation, w.groups)[0]
        parts = torch.autograd.grad((out * delta.double()).sum(), [weight, bias] if p.bias else [weight])
        rows.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(rows).view(2, 3, -1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("window", WINDOWS)
def test_what_is_read_off_the_factors_is_true_of_the_gradients(window, bias):
    p = piece(window, bias=bias)
    expected = plain(p)
    assert p.size == expected.shape[-1]
    torch.testing.assert_close(p.dense(), expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(p.squared_norm(), expected.square().sum(-1), rtol=1e-10, atol=0)
    out = torch.empty(2, p.size + 1, dtype=torch.float64)
    p.sum_into(out[:, 1:])
    torch.testing.assert_close(out[:, 1:], expected.sum(1), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("window", WINDOWS)
def test_both_ways_to_the_norm_agree(window):
    p = piece(window)
    given = with_lengths(*long(p), window)
    torch.testing.assert_close(_by_gram(*given), _by_gradient(*given), rtol=1e-10, atol=0)


@pytest.mark.parametrize("chunk", [1, 2**26])
@pytest.mark.parametrize("window", WINDOWS)
def test_both_ways_to_a_sum_agree(window, chunk, monkeypatch):
    monkeypatch.setattr(positions, "_chunk", lambda _: chunk)
    p = piece(window)
    given = p.delta.transpose(0, 1), p.input.transpose(0, 1), window
    torch.testing.assert_close(positions._sums_by_products(*given), positions._weight_sums(*given))


def test_the_smaller_form_is_kept():
    assert isinstance(smaller(piece(Window((3, 3), padding=(1, 1)), height=2, width=2)), Positions)
    large = piece(Window((3, 3), padding=(1, 1)), height=16, width=16)
    assert isinstance(smaller(large), Plain)
    torch.testing.assert_close(smaller(large).dense(), plain(large), rtol=1e-10, atol=1e-12)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32), exponent=st.floats(-44, 38), radius=st.sampled_from([1e-3, 1.0, 100.0]))
def test_no_size_of_gradient_escapes_the_ball(seed, exponent, radius):
    p = piece(WINDOWS[0], seed=seed, dtype=torch.float32, scale=10.0**exponent)
    PerSample([p]).clip_(radius, torch.ones(2, 3, dtype=torch.bool))
    exact = plain(p).norm(dim=-1)
    assert (exact <= radius * (1 + 1e-6)).all()


def test_positions_that_cancel_are_clipped_more_and_not_less():
    """Σ_p δ_p ⊗ a_p = 0 but for rounding, where a norm of exactly 0 would leave the factors as they are."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(1, 1, 64, 1, 1, generator=generator).expand(1, 1, 64, 2, 1)
    delta = 1e6 * torch.randn(1, 1, 32, 1, 1, generator=generator)
    p = laid(torch.cat([delta, -delta], -2), a, Window())
    assert p.squared_norm().sqrt() > 1e-4 * p.delta.norm() * p.input.norm()


def test_an_input_that_is_the_data_is_no_factor():
    p = piece(WINDOWS[0])
    assert p.factors()["input"].shape[:2] == (2, 3)
    p.input_is_data = True
    assert list(p.factors()) == ["delta"]


def tf32(v):
    """What a tensor core sees of float32: all bits behind the tenth are cut off."""
    return (v.view(torch.int32) & ~0x1FFF).view(torch.float32)


@given(seed=st.integers(0, 2**31), height=st.sampled_from([2, 9]), share=st.sampled_from([0.0, 1e-4, 1e-2, 1.0]))
@settings(deadline=None, max_examples=40)
def test_where_positions_cancel_coarse_products_stay_within_the_norm(seed, height, share):
    """An even image under GroupNorm: a is nearly the same everywhere, and the δ of a channel sum up to nearly 0."""
    p = piece(Window(), height=height, width=height, seed=seed, dtype=torch.float32, bias=False)
    delta = p.delta - (1 - share) * p.delta.mean((-2, -1), keepdim=True)
    a = p.input.mean((-2, -1), keepdim=True) + share * p.input
    summed = Positions(tf32(delta), tf32(a), p.window, bias=False).dense().double().norm(dim=-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(positions, "product_error", lambda _: 2.0**-9)
        given = with_lengths(*(t.flatten(0, 1) for t in (delta, a)), p.window)
        counted = [way(*given).sqrt().view(2, 3) for way in (_by_gram, _by_gradient)]
    product = delta.flatten(2).norm(dim=-1) * a.flatten(2).norm(dim=-1)
    for norm in counted:
        assert (summed <= norm * (1 + 1e-6)).all()
        assert (norm <= summed + 2.0**-6 * product).all()


def test_without_that_allowance_they_would_not():
    p = piece(Window(), height=9, width=9, dtype=torch.float32, bias=False)
    delta = p.delta - p.delta.mean((-2, -1), keepdim=True)
    a = p.input.mean((-2, -1), keepdim=True) + 0 * p.input
    summed = Positions(tf32(delta), tf32(a), p.window, bias=False).dense().double().norm(dim=-1)
    squares = _by_gradient(*with_lengths(*(t.flatten(0, 1) for t in (delta, a)), p.window)).view(2, 3)
    assert (summed > 2 * squares.sqrt()).any()


def test_large_weights_that_cancel_before_the_clip_and_not_after_it_move_a_sum_by_no_more_than_the_clip():
    """Neighbours choose z: dead units before a convolution, and ± pairs of large weights behind it."""
    height, width = 8, 48
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.Flatten(),
        nn.Linear(width * height * height, 2),
    )  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    x, y = torch.rand(1, 4, 1, height, height, generator=generator), torch.tensor([[0, 1, 0, 1]])
    gradient = stack(model, lambda out, wanted: cross_entropy(out, wanted, reduction="none"), (x[0], y[0]))
    pairs = 2.0**24 * torch.randint(-1024, 1025, (width - 1, height * height // 2), generator=generator)  # exact sums
    behind = torch.zeros(2, width, height * height)
    behind[0, 1:] = torch.cat([pairs, -pairs], 1)[:, torch.randperm(height * height, generator=generator)]
    behind[0, 0, 0] = 6.0
    parts = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    parts["0.bias"] -= 1e4
    parts["4.weight"] = behind.flatten(1)
    z = torch.cat([parts[name].flatten() for name in gradient.layout.names])[None]
    sums = []
    for mask in ([[True, True, True, True]], [[False, True, True, True]]):
        g = gradient(z, x, y)
        assert any(isinstance(p, Positions) for p in g.pieces)
        g.clip_(1.0, torch.tensor(mask))
        sums.append(g.sum().double())
    assert float((sums[0] - sums[1]).norm()) <= 1 + 2**-8
