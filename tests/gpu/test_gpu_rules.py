"""Rules and tables on a GPU against plain autograd and against the same on the CPU."""

from __future__ import annotations

import pytest
import torch

from gradients.modules import LAYERS, RULED, around, build, cross_entropy, plain_gradients, samples
from privsgp.gradients import Layout, make_table
from privsgp.gradients import table as storage
from privsgp.gradients.positions import Positions, Window
from privsgp.gradients.rules.ruled import Ruled

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CUDA = torch.device("cuda")
MODELS = {name: (factory, 6) for name, factory in RULED.items()} | {name: (f, 12) for name, f in LAYERS.items()}


@pytest.mark.parametrize("name", MODELS)
def test_the_gradients_are_those_of_plain_autograd(name):
    factory, numbers = MODELS[name]
    model = build(factory)
    z, (inputs, targets) = around(model, 3), samples(3, 4, numbers)
    plain = plain_gradients(model, cross_entropy, z, inputs, targets).to(CUDA)
    model.to(CUDA)
    g = Ruled(model, Layout.of(model), cross_entropy)(z.to(CUDA), inputs.to(CUDA), targets.to(CUDA))
    torch.testing.assert_close(g.dense(), plain, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(g.norm(), plain.norm(dim=-1), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(g.sum(), plain.sum(1), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("name", ["mlp", "few pixels", "many pixels", "words"])
def test_a_table_is_the_same_wherever_it_lies(name, dtype, on_host, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if on_host:
        monkeypatch.setattr(storage.devices, "free_on", lambda _device: 0)
    factory, numbers = MODELS[name]
    model = build(factory, dtype=torch.float32)
    inputs, targets = samples(2, 7, numbers, dtype=torch.float32)
    found = []
    for device in (torch.device("cpu"), CUDA):
        gradient = Ruled(model.to(device), Layout.of(model), cross_entropy)
        rows, mask = (
            torch.tensor([[0, 4, 6], [5, 1, 6]], device=device),
            torch.tensor([[1, 1, 0]] * 2, device=device) > 0,
        )
        data = [t.to(device)[torch.arange(2, device=device)[:, None], rows] for t in (inputs, targets)]
        raw = [gradient(around(model.cpu(), 2, seed).to(device), *data) for seed in (1, 2) if model.to(device)]
        table = make_table("factored", raw[0], 6, clip=0.5, dtype=dtype)
        for g in map(table.prepared, raw):
            g.clip_(0.5, mask)
            c = table.replace(rows, g)
        found.append([c.cpu(), *(a.cpu().float() for a in table.arrays().values())])
    tolerance = 1e-5 if dtype is None else 2**-7
    for got, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max()))


@pytest.mark.usefixtures("_tensor_cores")
@pytest.mark.parametrize("height", [4, 8, 16])
@pytest.mark.parametrize("share", [0.0, 1e-3, 1.0])
def test_where_positions_cancel_a_sum_of_coarse_products_stays_within_the_norm(height, share):
    """An even image under GroupNorm; a batch of one sample is its own sum."""
    generator = torch.Generator().manual_seed(0)
    delta, a = (torch.randn(1, 3, 128, height, height, generator=generator).to(CUDA) for _ in range(2))
    delta = delta - (1 - share) * delta.mean((-2, -1), keepdim=True)
    a = a.mean((-2, -1), keepdim=True) + share * a
    p = Positions(delta.transpose(0, 1), a.transpose(0, 1), Window((3, 3), padding=(1, 1)), bias=False)
    out = torch.empty(3, p.size, device=CUDA)
    p.sum_into(out)
    assert (out.double().norm(dim=-1) <= p.squared_norm()[:, 0].sqrt() * (1 + 1e-6)).all()
