"""Gradients of persons with several rows, on a GPU against the same on the CPU. Runs refuse them there so far."""

from __future__ import annotations

import pytest
import torch

from gradients.test_persons import MODELS, persons
from privsgp.gradients import make_table

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICE = torch.device("cuda")


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", MODELS)
def test_persons_are_the_same_on_a_gpu(name, dtype, exact, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    found = []
    for device in (torch.device("cpu"), DEVICE):
        torch.manual_seed(0)
        gradient, *given = persons(MODELS[name](), dtype)
        gradient.by_row.model.to(device)
        g = gradient(*(t.to(device) for t in given[:3]))
        raw = [g.dense(), g.norm()]
        g.clip_(0.05, torch.ones(2, 3, dtype=torch.bool, device=device), exact=exact)
        found.append([t.double().cpu() for t in (*raw, g.sum())])
        assert g.norm().max() <= 0.05 * (1 + 2**-8)
    close = {"rtol": 1e-9, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-6}
    for got, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, wanted, **close)


@pytest.mark.parametrize("name", MODELS)
def test_a_person_has_the_same_bits_at_every_place(name):
    gradient, *given = persons(MODELS[name](), torch.float32)
    gradient.by_row.model.to(DEVICE)
    z, x, y = (t.to(DEVICE) for t in given[:3])
    whole, turned = gradient(z, x, y), gradient(z, x.flip(1), y.flip(1))
    assert torch.equal(turned.dense().flip(1), whole.dense())
    assert torch.equal(turned.norm().flip(1), whole.norm())


@pytest.mark.parametrize("name", MODELS)
def test_a_table_of_persons_is_the_same_on_a_gpu(name):
    found = []
    for device in (torch.device("cpu"), DEVICE):
        torch.manual_seed(0)
        gradient, *given = persons(MODELS[name](), torch.float64)
        gradient.by_row.model.to(device)
        z, x, y = (t.to(device) for t in given[:3])
        rows, mask = torch.tensor([[0, 1, 3]] * 2, device=device), torch.ones(2, 3, dtype=torch.bool, device=device)
        table = make_table("factored", gradient(z, x, y), 3, clip=0.05)
        for factor in (1.0, 0.5):
            g = table.prepared(gradient(factor * z, x, y))
            g.clip_(0.05, mask, exact=True)
            c = table.replace(rows, g)
        found.append([c.cpu(), *(a.cpu().double() for a in table.arrays().values())])
    for got, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)
