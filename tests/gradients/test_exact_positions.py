"""Positions of secret runs: float32 where that is proved to be enough, against float64 and against each other."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_positions import WINDOWS, laid, piece, plain

from privsgp import devices
from privsgp.gradients import PerSample, positions
from privsgp.gradients.positions import Positions, Window, _by_itself
from privsgp.gradients.rounding import sum_error
from privsgp.gradients.table import make_table


def _added(p):
    """What is added of each sample alone, [samples, models, size]."""
    return torch.stack([PerSample([_some(p, [j])], exact=True).sum() for j in range(p.delta.shape[1])])


def _some(p, samples):
    return Positions(p.delta[:, samples], p.input[:, samples], p.window, p.bias)


def _cancelling(size, generator):
    """Return δ [3, 2, 6, 5, 4] of a size whose positions add up to 1.5, as nearly as float32 can."""
    delta = size * torch.randn(3, 2, 6, 20, generator=generator)
    for p in range(-6, 0):
        delta[..., p] = 0
        delta[..., p] = 1.5 - delta[..., :p].double().sum(-1)
    return delta.view(3, 2, 6, 5, 4)


def _attacks():
    """Gradients that cancel, overflow, vanish, or lie in one number."""
    generator = torch.Generator().manual_seed(0)
    even = torch.randn(3, 2, 4, 1, 1, generator=generator).expand(3, 2, 4, 5, 4)
    delta = torch.randn(3, 2, 6, 5, 4, generator=generator)
    balanced = delta - delta.mean((-2, -1), keepdim=True)
    one = torch.zeros_like(delta)
    one[..., 0, 0] = 1e3
    mixed = delta * 10.0 ** torch.randint(-30, 13, delta.shape, generator=generator)
    window = Window()
    return {
        "cancels": laid(balanced, even.contiguous(), window, bias=True),
        "cancels by pairs": laid(torch.cat([delta, -delta], -1), torch.cat([even, even], -1), window, bias=False),
        "one number": laid(one, even.contiguous(), window, bias=True),
        "mixed": laid(mixed, even.contiguous(), window, bias=True),
        "vanishes": laid(1e-22 * delta, 1e12 * even, window, bias=False),
        "biases alone": laid(_cancelling(1e10, generator), 0 * even, window, bias=True),
        "biases": laid(_cancelling(1e6, generator), 1e-6 * even, window, bias=True),
        "subnormal": laid(1e-42 * delta, even.contiguous(), window, bias=True),
    }


@pytest.mark.parametrize("gram", [True, False])
@pytest.mark.parametrize("attack", _attacks())
def test_nothing_longer_than_the_clip_is_added(attack, gram, monkeypatch):
    monkeypatch.setattr(positions, "_gram_is_cheaper", lambda *_: gram)
    for radius in (1e-3, 1.0, 1e9):
        p = _attacks()[attack]
        raw = _added(p).norm(dim=-1).t()
        g = PerSample([p], exact=True)
        assert (raw <= g.norm() * (1 + 1e-6) + 1e-40).all()
        g.clip_(radius, torch.ones(2, 3, dtype=torch.bool))
        assert (_added(g.pieces[0]).norm(dim=-1) <= radius * (1 + 1e-6)).all()


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), exponent=st.floats(-44, 38), window=st.sampled_from(WINDOWS), bias=st.booleans())
def test_no_size_of_gradient_escapes_the_ball(seed, exponent, window, bias):
    p = piece(window, seed=seed, dtype=torch.float32, scale=10.0**exponent, bias=bias)
    PerSample([p], exact=True).clip_(1.0, torch.ones(2, 3, dtype=torch.bool))
    assert (_added(p).norm(dim=-1) <= 1 + 1e-6).all()
    assert (plain(p).norm(dim=-1) <= 1 + 1e-6).all()


@pytest.mark.parametrize("window", WINDOWS)
def test_the_norm_is_hardly_longer_than_it_is(window):
    p = piece(window, dtype=torch.float32)
    true = plain(p).norm(dim=-1)
    found = PerSample([p], exact=True).norm()
    assert (found >= true).all()
    torch.testing.assert_close(found, true, rtol=1e-3, atol=0)


@pytest.mark.parametrize("chunk", [1, 2**26])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_sum_is_that_of_what_each_sample_is_by_itself(window, chunk, monkeypatch):
    p = piece(window, dtype=torch.float32)
    alone = _added(p)
    monkeypatch.setattr(positions, "_chunk", lambda _: chunk)
    torch.testing.assert_close(PerSample([p], exact=True).sum(), alone.sum(0), rtol=0, atol=1e-13)
    torch.testing.assert_close(alone.transpose(0, 1), plain(p), rtol=1e-4, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32), samples=st.integers(1, 9), out=st.integers(1, 40), pixels=st.integers(1, 9),
    window=st.sampled_from([WINDOWS[0], Window((3, 3), (2, 2), (1, 1)), Window()]),
)  # fmt: skip
def test_a_sample_has_the_same_bits_whoever_stands_beside_it(seed, samples, out, pixels, window):
    """Else a table's mean would keep what its entries differ by between being put in and taken out."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(samples, 12, pixels, pixels, generator=generator)
    h = (pixels + 2 * window.padding[0] - window.kernel[0]) // window.stride[0] + 1
    delta = torch.randn(samples, out, h, h, generator=generator)
    together = _by_itself(delta, a, window)
    for j in range(samples):
        assert torch.equal(_by_itself(delta[j : j + 1], a[j : j + 1], window)[0], together[j])


def test_what_leaves_a_table_is_what_came_in():
    """Ten thousand replacements by the same gradients leave the mean where it was."""
    p = piece(WINDOWS[0], height=2, width=2, dtype=torch.float32)
    g = PerSample([p], exact=True)
    g.clip_(1.0, torch.ones(2, 3, dtype=torch.bool))
    table = make_table("factored", g, 3, clip=1.0)
    table.set(torch.tensor([[0, 1, 2]] * 2), g)
    for order in ([[0, 1, 2]] * 2, [[2, 0, 1]] * 2):
        rows = torch.tensor(order)
        same = PerSample([_some(g.pieces[0], order[0])], exact=True)
        assert float(table.replace(rows, same).abs().max()) == 0


def test_biases_that_cancel_do_not_round_by_who_else_is_there():
    """Their sum goes over samples and positions in float64: it must not be long beside what it comes to."""
    generator = torch.Generator().manual_seed(1)
    delta = torch.cat([_cancelling(1e10, generator) for _ in range(20)])
    delta = torch.cat([delta, torch.randn(60, 2, 6, 5, 4, generator=generator)], -1)  # has bits that the sum has not
    p = laid(delta, torch.zeros(60, 2, 4, 5, 8), Window(), bias=True)
    g = PerSample([p], exact=True)
    g.clip_(1.0, torch.ones(2, 60, dtype=torch.bool))
    clipped = g.pieces[0].delta.transpose(0, 1).transpose(0, 2).flatten(2)
    exact = torch.tensor(
        [[math.fsum(of_model.tolist()) for of_model in channel] for channel in clipped], dtype=torch.float64
    )
    off = (g.sum()[:, -6:].t() - exact).norm(dim=0)
    assert float(off.max()) <= sum_error(60, 60, 40)


def test_what_a_table_adds_in_float64_cancels_no_further_than_is_counted():
    """Where the input is the data, differences of δ are multiplied out in float64, all samples together."""
    generator = torch.Generator().manual_seed(2)
    delta = torch.randn(3, 2, 6, 1, 20, generator=generator)
    delta[..., -1] -= delta.double().sum(-1)  # cancels but for rounding, where the input is even
    even = torch.randn(3, 2, 4, 1, 1, generator=generator).expand(3, 2, 4, 1, 20).contiguous()
    g = PerSample([laid(1e9 * delta, even, Window(), bias=False, input_is_data=True)], exact=True)
    g.clip_(1.0, torch.ones(2, 3, dtype=torch.bool))
    clipped = g.pieces[0]
    longest = clipped.delta.flatten(2).double().norm(dim=-1) * clipped.input.flatten(2).double().norm(dim=-1)
    assert (longest <= 256 * (1 + 1e-6)).all()


@pytest.mark.parametrize("data", [True, False])
def test_a_table_takes_out_what_it_was_filled_with(data):
    """Else its mean keeps, of each sample, what the first entry was rounded by."""
    p = piece(WINDOWS[0], height=2, width=2, dtype=torch.float32)
    p.input_is_data = data
    g = PerSample([p], exact=True)
    g.clip_(1.0, torch.ones(2, 3, dtype=torch.bool))
    table, rows = make_table("factored", g, 3, clip=1.0), torch.tensor([[0, 1, 2]] * 2)
    put_in = table.set(rows, g)
    found = table.keep_within(1.01, rows, lambda _: g)
    nothing = PerSample([Positions(0 * p.delta, p.input, p.window, p.bias, input_is_data=data)], exact=True)
    torch.testing.assert_close(found, put_in, rtol=0, atol=1e-15)
    torch.testing.assert_close(table.replace(rows, nothing), -put_in, rtol=0, atol=1e-14)


def _on_a_gpu(monkeypatch):
    """Let the code believe that convolutions are cuDNN's; return the list of those it asks for."""
    asked, inner = [], positions._grouped
    gpu = dataclasses.replace(devices.device_of(torch.device("cpu")), has_cudnn=True)
    monkeypatch.setattr(positions, "device_of", lambda _: gpu)
    monkeypatch.setattr(positions, "_grouped", lambda *given: asked.append(given) or inner(*given))
    return asked


def test_norms_and_sums_of_secret_runs_ask_cudnn_for_nothing(monkeypatch):
    """Its algorithms need not be sums of products (Winograd's, Fourier's), which is what rounding is counted for."""
    generator, window = torch.Generator().manual_seed(0), Window((3, 3), padding=(1, 1))
    delta, a = (torch.randn(5, 2, channels, 12, 12, generator=generator) for channels in (4, 3))
    assert not positions._gram_is_cheaper(delta.flatten(0, 1), a.flatten(0, 1), window)
    piece = laid(delta, a, window, bias=True)
    asked = _on_a_gpu(monkeypatch)
    secret, mask = PerSample([piece], exact=True), torch.ones(2, 5, dtype=torch.bool)
    secret.clip_(1.0, mask)
    secret.sum()
    assert not asked
    PerSample([piece]).norm()
    assert asked, "a simulation's norms do go there, or this test sees nothing"
