from __future__ import annotations

import pytest
import torch
from modules import LAYERS, RULED, around, build, cross_entropy, probe, samples

from privsgp.gradients import stack
from privsgp.gradients.tables.blocks import BlockTable
from privsgp.gradients.tables.storage import Storage
from privsgp.gradients.tables.table import fill

NODES, ROWS, SIZE, G = 2, 8, 3, 0.4
J = torch.tensor([8, 5])  # the last blocks have two samples
MODELS = pytest.mark.parametrize(
    ("factory", "numbers"), [(RULED["mlp"], 6), (LAYERS["few pixels"], 12), (LAYERS["words"], 12)]
)


class Site:
    def __init__(self, factory, numbers):
        self.model = build(factory)
        self.gradient = stack(self.model, cross_entropy, probe(numbers))
        self.inputs, self.targets = samples(NODES, ROWS + 1, numbers)
        self.table = BlockTable(self.at(torch.full((NODES, 1), ROWS), 0), ROWS, SIZE, Storage("device"))

    def at(self, rows, seed):
        nodes = torch.arange(NODES)[:, None]
        g = self.gradient(around(self.model, NODES, seed), self.inputs[nodes, rows], self.targets[nodes, rows])
        g.clip_(G, rows < ROWS)
        return g

    def sums(self, seed):
        """Every block's sum of clipped gradients, the obvious way."""
        rows = torch.arange(ROWS).expand(NODES, ROWS)
        dense = self.at(rows.where(rows < J[:, None], ROWS), seed).dense()
        return torch.stack([dense[:, start : start + SIZE].sum(1) for start in range(0, ROWS, SIZE)], 1)


@MODELS
def test_entries_are_the_sums_of_their_blocks_and_the_mean_follows(factory, numbers):
    site = Site(factory, numbers)
    fill(site.table, lambda rows: site.at(rows, 0), J, rows=ROWS, chunk=2 * SIZE)
    kept = site.sums(0)
    torch.testing.assert_close(site.table.sums[:, :-1], kept, rtol=0, atol=1e-12)
    torch.testing.assert_close(site.table.mean, kept.sum(1) / J[:, None], rtol=0, atol=1e-12)
    # node 0 draws blocks 0 and 2, node 1 draws block 1; of block 2 there are two samples, of node 1's block 1 too
    rows = torch.tensor([[0, 1, 2, 6, 7, ROWS], [3, 4, ROWS, ROWS, ROWS, ROWS]])
    new, drawn = site.sums(1), torch.tensor([[True, False, True], [False, True, False]])
    after = torch.where(drawn[..., None], new, kept)
    c = site.table.replace(rows, site.at(rows, 1))
    torch.testing.assert_close(c, (after - kept).sum(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(site.table.sums[:, :-1], after, rtol=0, atol=1e-12)
    assert not site.table.sums[:, -1].any()


def test_a_third_of_the_memory():
    table = Site(RULED["mlp"], 6).table
    assert table.entry_bytes == 53 * 8 / 3
    assert set(table.arrays()) == {"sums", "mean"}
