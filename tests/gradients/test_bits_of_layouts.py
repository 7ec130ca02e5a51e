"""What a layer's rule computes for a node does not depend on which nodes a process has: every layout, the same bits."""

from __future__ import annotations

import pytest
import torch
from modules import around, build, cross_entropy, samples
from torch import nn

from privsgp.gradients import Layout
from privsgp.gradients.rules.ruled import Ruled


class _Tokens(nn.Module):
    """Linear layers at every position of a sequence: one keeps its gradients as factors, one may multiply them out."""

    def __init__(self, features, hidden, positions, *, mean_first):
        super().__init__()
        self.shape, self.mean_first = (positions, features), mean_first
        self.token, self.norm, self.head = nn.Linear(features, hidden), nn.LayerNorm(hidden), nn.Linear(hidden, 3)

    def forward(self, x):
        h = torch.tanh(self.norm(self.token(x.view(-1, *self.shape))))
        return self.head(h.mean(1)) if self.mean_first else self.head(h).mean(1)


class _Words(nn.Module):
    """A linear model of the mean embedding of a sentence."""

    def __init__(self, width):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, width), nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.embedding((10 * x).long() % 50).mean(1))


SHAPES = [(7, 13, 5, 6), (33, 65, 9, 16), (64, 32, 16, 8)]  # features, hidden, positions, batch
MODELS = [
    *((lambda f=f, h=h, p=p, first=first: _Tokens(f, h, p, mean_first=first), p * f, b)
      for f, h, p, b in SHAPES for first in (True, False)),
    (lambda: _Words(38), 11, 15), (lambda: _Words(5), 10, 5),
]  # fmt: skip


@pytest.mark.parametrize(("factory", "numbers", "batch"), MODELS)
def test_a_model_has_the_same_bits_whichever_others_are_stacked_with_it(factory, numbers, batch):
    """Lengths, clipped sums and what a table keeps: a process with other nodes beside a node must get the same."""
    model = build(factory, dtype=torch.float32)
    rule, z = Ruled(model, Layout.of(model), cross_entropy), around(model, 8)
    inputs, targets = samples(8, batch, numbers, dtype=torch.float32)

    def found(block):
        g = rule(z[block].clone(), inputs[block].clone(), targets[block])
        lengths = g.norm()
        g.clip_(0.1, torch.ones_like(lengths, dtype=torch.bool))
        return [lengths, g.sum(), *(f for piece in g.pieces for f in piece.factors().values())]

    whole = found(slice(0, 8))
    for block in (slice(0, 4), slice(3, 5), slice(5, 6), slice(0, 1), slice(1, 8)):
        for part, every in zip(found(block), whole, strict=True):
            assert torch.equal(part, every[block])
