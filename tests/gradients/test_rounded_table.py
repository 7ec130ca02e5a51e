from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from modules import LAYERS, around, build, cross_entropy, probe, samples

from privsgp.gradients import make_table, stack
from privsgp.gradients.table import fill

NODES, ROWS, G = 2, 5, 0.4
J = torch.tensor([5, 4])
NAMES = pytest.mark.parametrize("name", ["few pixels", "many pixels", "words", "shortcut"])
KINDS = pytest.mark.parametrize("kind", ["dense", "factored"])


class Site:
    """Two nodes with five and four samples, and a table of either precision."""

    def __init__(self, name, kind, dtype=torch.bfloat16, compute=torch.float32):
        self.model = build(LAYERS[name], dtype=compute)
        self.gradient = stack(self.model, cross_entropy, probe(12, dtype=compute))
        self.inputs, self.targets = samples(NODES, ROWS + 1, 12, dtype=compute)
        example = self.raw(torch.full((NODES, 1), ROWS), 0)
        self.table = make_table(kind, example, ROWS, clip=G, dtype=dtype)
        fill(self.table, lambda rows: self.clipped(rows, 0), J[:, None], ROWS, chunk=3)

    def raw(self, rows, seed):
        nodes = torch.arange(NODES)[:, None]
        return self.gradient(around(self.model, NODES, seed), self.inputs[nodes, rows], self.targets[nodes, rows])

    def clipped(self, rows, seed):
        g = self.table.prepared(self.raw(rows, seed))
        g.clip_(G, rows < ROWS)
        return g

    def entries(self):
        rows = torch.arange(ROWS + 1).expand(NODES, ROWS + 1)
        pieces = self.table._entries(rows, self.table._like_parts(self.raw(rows, 0)))
        return torch.cat([piece.dense() for piece in pieces], -1)


def moves():
    return [torch.tensor([[0, 3, ROWS], [ROWS, 2, 1]]), torch.tensor([[4, 3, 1], [0, 2, ROWS]])]


@NAMES
@KINDS
def test_the_stored_entry_is_the_gradient(name, kind):
    """What `replace` returns is stored-new minus stored-old, to the last bits of a float32 sum, and so is the mean."""
    site = Site(name, kind)
    assert site.table.scale is not None
    for seed, rows in enumerate(moves() * 3, 1):
        before, g = site.entries(), site.clipped(rows, seed)
        used = g.sum().double()
        c = site.table.replace(rows, g)
        after = site.entries()
        torch.testing.assert_close(c.double(), (after.double() - before.double()).sum(1), rtol=0, atol=1e-6)
        nodes = torch.arange(NODES)[:, None]
        torch.testing.assert_close(after[nodes, rows].double().sum(1), used, rtol=0, atol=1e-6)
        site.table.mean.add_(c / J[:, None])
        torch.testing.assert_close(site.table.mean, after.double().sum(1) / J[:, None], rtol=0, atol=1e-6)
        assert not after[:, ROWS].any()
        assert not after[1, 4].any()


@NAMES
@KINDS
def test_an_entry_is_the_gradient_within_rounding(name, kind):
    rounded, exact = (Site(name, kind, dtype).entries() for dtype in (torch.bfloat16, None))
    error = (rounded - exact).norm(dim=-1) / exact.norm(dim=-1).clamp(min=1e-9)
    assert 1e-5 < error.max() < 2**-6


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), size=st.floats(1e-3, 1e3))
@pytest.mark.parametrize("kind", ["dense", "factored"])
def test_entries_stay_in_the_ball_after_rounding(kind, seed, size):
    site = SITES[kind]
    rows = torch.arange(ROWS).expand(NODES, ROWS)
    g = site.raw(rows, seed)
    for piece in g.pieces:
        piece.scale_(torch.full((NODES, ROWS), size, dtype=torch.float64))
    g = site.table.prepared(g)
    g.clip_(G, torch.ones(NODES, ROWS, dtype=torch.bool))
    site.table.replace(rows, g)
    norms = site.entries().double().norm(dim=-1)
    assert (norms <= G * (1 + 1e-6)).all()
    if size > 100:
        assert (norms[:, :ROWS] >= G * (1 - 1e-5)).all()


SITES = {kind: Site("few pixels", kind) for kind in ("dense", "factored")}


def test_gradients_that_were_not_prepared_are_not_taken():
    site, rows = SITES["factored"], torch.arange(3).expand(NODES, 3)
    g = site.raw(rows, 1)
    g.clip_(G, rows < ROWS)
    with pytest.raises(TypeError, match="prepared"):
        site.table.replace(rows, g)
    with pytest.raises(TypeError, match="prepared"):
        site.table.replace(rows, site.table.prepared(site.raw(rows, 1)))


def test_half_the_memory_and_a_scale():
    exact, rounded = (
        sum(a[0, 0].nbytes for name, a in table.arrays().items() if name != "mean")
        for table in (Site("few pixels", "factored", None).table, SITES["factored"].table)
    )
    assert rounded == exact / 2 + 4
    assert "scale" in SITES["factored"].table.arrays()


def test_a_precision_of_ones_own_is_no_rounding():
    assert Site("words", "factored", torch.float32).table.scale is None
    assert Site("words", "factored", torch.float32, torch.float64).table.scale is not None
