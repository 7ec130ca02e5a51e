"""Where noise is secret, what a sum rounds by must not tell who is in it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import runs
from privsgp.algorithms import ALGORITHMS, Settings
from privsgp.algorithms.block import Block, Drawn
from privsgp.engine import drawing
from privsgp.gradient import stack
from privsgp.gradient.blocks import BlockTable
from privsgp.gradient.per_sample import Outer, PerSample, Plain, minus
from privsgp.gradient.storage import Storage
from privsgp.gradient.table import make_table

OWN, SLACK = 0.2, 2.0**-12


def _batch(*, present):
    """The record, then others: they bring a float32 sum to 256 and keep it there.

    With the record it lies just above, where numbers are 2⁻¹⁵ apart, and every further one rounds up by half of that;
    without it just below, where it rounds by next to nothing. In float32 that moves the sum by 0.0114 more than OWN.
    """
    climb, half = [OWN if present else 0.0, 0.9] + [1.0] * 255, 2.0**-5 + 2.0**-16
    return torch.tensor(climb + [half + 2.0**-22, -half + 2.0**-22] * 372)


def _pieces(*, present, exact):
    delta = _batch(present=present)[None, :, None].repeat(2, 1, 8)
    plain = Plain(torch.cat([delta, delta], -1))
    g = PerSample([Outer(delta, torch.ones(2, delta.shape[1], 4), bias=True), plain], exact=exact)
    g.clip_(10.0, torch.ones(2, delta.shape[1], dtype=torch.bool))  # as they are
    return g


def _summed(g):
    return g.sum()


def _replaced(kind):
    def total(g):
        b = g.pieces[0].delta.shape[1]
        zeros = PerSample([piece.with_factors({n: f * 0 for n, f in piece.factors().items()}) for piece in g.pieces])
        storage = Storage("device")
        made = BlockTable(zeros, b, 1, storage) if kind == "block" else make_table(kind, zeros, b, clip=10.0)
        return made.replace(torch.arange(b).expand(2, b), g)

    return total


def _subtracted(g):
    nothing = PerSample([p.with_factors({n: f * 0 for n, f in p.factors().items()}) for p in g.pieces], exact=True)
    return minus(g, nothing).sum()


@pytest.mark.parametrize("total", [_summed, _replaced("dense"), _replaced("factored"), _replaced("block"), _subtracted])
def test_neighbours_cannot_make_roundings_of_a_sum_add_up(total):
    found = [total(_pieces(present=present, exact=True)) for present in (True, False)]
    assert found[0].dtype == torch.float64
    assert float((found[0] - found[1]).abs().max()) <= OWN * (1 + SLACK)


@pytest.mark.parametrize("name", [a.name for a in ALGORITHMS.values() if a.private])
def test_without_a_seed_estimates_are_in_float64_until_noise_is_added(name, tmp_path, monkeypatch):
    seen, add = [], drawing.add_noise_

    def watched(g, *rest, **options):
        seen.append(g.dtype)
        add(g, *rest, **options)

    monkeypatch.setattr(drawing, "add_noise_", watched)
    given = {"algorithm__name": name, "algorithm__steps": 3, "privacy__sigma": 0.2}
    if ALGORITHMS[name].network == "undirected":
        given["graph__name"] = "ring"
    changes = ["--set=seed=", *runs.changes(**given)]
    runs.train(runs.small(tmp_path), tmp_path / "secret", *changes)
    assert set(seen) == {torch.float64}
    seen.clear()
    runs.train(runs.small(tmp_path), tmp_path / "simulated", *changes[1:])
    assert set(seen) == {torch.float32}


def test_the_divisor_is_b_for_inputs_that_are_whole_numbers():
    embedding = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    inputs, targets = torch.randint(5, (1, 9, 2)), torch.zeros(1, 9, dtype=torch.int64)
    loss = lambda out, wanted: cross_entropy(out, wanted, reduction="none")  # noqa: E731
    gradient = stack(embedding, loss, (inputs[0, :4], targets[0, :4]))
    mechanism = ALGORITHMS["privsgp"].mechanism(Settings(), sigma=1.0, batch=1.9, samples=8, kappa=0.0)
    block = Block([mechanism], inputs, targets, gradient, None, None, None, None, None)
    z = torch.cat([p.detach().flatten() for p in embedding.parameters()])[None]
    drawn = Drawn(torch.tensor([[3]]), torch.ones(1, 1, dtype=torch.bool))
    g = ALGORITHMS["privsgp"](block, Settings()).direction(z, [drawn])
    torch.testing.assert_close(g, block.gradients(z, drawn).sum() / 1.9)
