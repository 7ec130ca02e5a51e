"""Kernels that go through memory once, against the same in torch."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import conv2d, group_norm

from privsgp.devices import have_triton
from privsgp.gradients.positions import Window, _grouped

pytestmark = pytest.mark.skipif(not (torch.cuda.is_available() and have_triton()), reason="needs a GPU and Triton")
CUDA = torch.device("cuda")
# models, samples, channels, height, groups
SHAPES = [
    (3, 4, 8, 5, 4),
    (2, 3, 12, 4, 3),
    (16, 5, 64, 32, 32),
    (4, 3, 512, 4, 32),
    (1, 2, 6, 50, 1),
]  # m, b, C, h, groups
SIZES = [1, 7, 1000, 1024, 5000, 40_000]


def _random(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(len(shape))).to(CUDA, dtype)


@pytest.mark.parametrize("samples_first", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("shape", SHAPES)
def test_group_norm(shape, dtype, tolerance, samples_first):
    from privsgp.kernels import group_norm as kernel

    m, b, channels, h, groups = shape
    after = 1 if samples_first else b
    x, delta = _random(b * m, channels, h, h), _random(b * m, channels, h, h).flip(0)
    scale, shift = _random(m, channels), _random(m, channels).flip(1)
    of = torch.arange(b * m, device=CUDA) // after % m
    x.requires_grad_()
    normal = group_norm(x, groups, eps=1e-5)
    y = normal * scale[of][:, :, None, None] + shift[of][:, :, None, None]
    (wanted,) = torch.autograd.grad(y, x, delta)
    each = torch.stack([(delta * normal).sum((2, 3)), delta.sum((2, 3))], 1)
    x, delta, scale, shift = (t.detach().to(dtype) for t in (x, delta, scale, shift))
    for got, right in [
        (kernel.forward(x, scale, shift, groups, 1e-5, after), y),
        (kernel.backward(x, delta, scale, groups, 1e-5, after), wanted),
        (kernel.affine(x, delta, groups, 1e-5), each),
    ]:
        largest = float(right.detach().abs().max())
        torch.testing.assert_close(got.double(), right, rtol=tolerance, atol=tolerance * largest)


@pytest.mark.parametrize("samples_first", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_what_is_done_to_each_samples_numbers(size, samples_first):
    from privsgp.kernels import rows as kernel

    v = _random(5, 3, size, dtype=torch.float32).transpose(0, 1)
    v = v if samples_first else v.contiguous()
    factor = _random(3, 5).abs()
    factor[1, 2] = factor[0, 3:] = factor[2, 3:] = 0
    torch.testing.assert_close(kernel.squared_sums(v), v.double().square().sum(-1), rtol=1e-13, atol=0)
    assert torch.equal(kernel.rounded(v), v.bfloat16().float())
    v[1, 2] = torch.nan
    zeroed = v.masked_fill((factor == 0)[..., None], 0)
    assert torch.equal(kernel.scaled(v, factor), zeroed * factor.float()[..., None])
    table, at = _random(3, 9, size).bfloat16(), torch.arange(3, device=CUDA)[:, None]
    rows = torch.tensor([[0, 3, 5, 8, 8], [1, 2, 3, 4, 5], [7, 6, 5, 8, 8]], device=CUDA)
    out = torch.empty_like(v)
    kernel.take(table, rows, out)
    assert torch.equal(out, table[at, rows].float())
    kernel.take(table, rows, out, factor)
    assert torch.equal(out, table[at, rows].float() * factor.float()[..., None])
    wanted = table.clone()
    wanted[at, rows] = zeroed.bfloat16()
    kernel.put(table, rows, v, factor)
    assert torch.equal(table, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 1000, 5000])
def test_means_move_in_float64(d, dtype):
    from privsgp.kernels import rows as kernel

    mean, c = _random(3, d), _random(3, d, dtype=dtype).flip(0)
    b, J = (torch.tensor(v, device=CUDA).to(dtype)[:, None] for v in ([24.3, 48.0, 7.0], [240.0, 1200.0, 3125.0]))
    g, moved = torch.addcdiv(mean.to(dtype), c, b), torch.addcdiv(mean, c.double(), J.double())
    got = kernel.corrected(mean, c, b, J)
    assert got.dtype == dtype
    torch.testing.assert_close(got, g, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)
    torch.testing.assert_close(mean, moved, rtol=0, atol=1e-14)


@pytest.mark.parametrize("value", [torch.inf, torch.nan, 1e30])
def test_numbers_that_cannot_be_scaled_exactly_count_as_infinite(value):
    from privsgp.gradients.per_sample import squared_norm

    v = torch.ones(2, 3, 50, device=CUDA)
    v[1, 2, 7] = value
    norms = squared_norm(v)
    assert norms[1, 2] == torch.inf
    assert norms.flatten()[:5].tolist() == [50.0] * 5


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("window", [Window((3, 3), padding=(1, 1)), Window((3, 3), (2, 2), (1, 1)), Window(),
                                    Window((5, 3), (1, 2), (2, 1), (1, 2))])  # fmt: skip
@pytest.mark.parametrize("shape", [(3, 2, 5, 7, 8), (40, 3, 128, 256, 8), (1, 1, 1, 130, 4), (9, 2, 64, 64, 16)])
def test_weight_gradients_of_many_convolutions(shape, window, exact, monkeypatch):
    from privsgp.kernels import positions as kernel

    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", not exact)
    b, m, channels, outputs, h = shape
    a = _random(b, m, channels, h, h)
    weight = torch.zeros(m * outputs, channels, *window.kernel, dtype=a.dtype, device=CUDA)
    y = conv2d(a.flatten(1, 2), weight, None, *window.geometry[1:], m)
    delta = _random(b, m, outputs, *y.shape[2:])
    each = torch.stack([_grouped(d[None].flatten(1, 2), x[None].flatten(1, 2), weight.shape, window, m).view(m, -1)
                        for d, x in zip(delta, a, strict=True)])  # fmt: skip
    tolerance = (1e-5 if exact else 2**-9) * float(each.norm(dim=-1).max())
    got = kernel.weight_sums(delta.float(), a.float(), window.geometry)
    assert float((got - each.sum(0)).norm(dim=-1).max()) <= b * tolerance
    if delta[0, 0, 0].numel() % 32 == 0:
        got = kernel.sample_gradients(delta.flatten(0, 1).float(), a.flatten(0, 1).float(), window.geometry)
        assert float((got - each.flatten(0, 1)).norm(dim=-1).max()) <= tolerance
