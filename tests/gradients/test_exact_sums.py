"""Where noise is secret, what a sum rounds by must not tell who is in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import runs
from privsgp.algorithms import ALGORITHMS, Randomness, Settings
from privsgp.algorithms.block import Block, Drawn
from privsgp.engine.spec import Learning
from privsgp.errors import Refused
from privsgp.gradients import stack
from privsgp.gradients.per_sample import Outer, PerSample, Plain
from privsgp.gradients.table import make_table
from privsgp.randomness import noise as noises
from privsgp.research.estimates import minus
from privsgp.runs import build, config
from privsgp.runs import problem as problems
from privsgp.runs.resolve import resolve

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
        zeros = PerSample([replace(piece, **{n: f * 0 for n, f in piece.factors().items()}) for piece in g.pieces])
        return make_table(kind, zeros, b, clip=10.0).replace(torch.arange(b).expand(2, b), g)

    return total


def _subtracted(g):
    nothing = PerSample([replace(p, **{n: f * 0 for n, f in p.factors().items()}) for p in g.pieces], exact=True)
    return minus(g, nothing).sum()


@pytest.mark.parametrize("total", [_summed, _replaced("dense"), _replaced("factored"), _subtracted])
def test_neighbours_cannot_make_roundings_of_a_sum_add_up(total):
    found = [total(_pieces(present=present, exact=True)) for present in (True, False)]
    assert found[0].dtype == torch.float64
    assert float((found[0] - found[1]).abs().max()) <= OWN * (1 + SLACK)


@pytest.mark.parametrize(
    ("width", "up", "down"),
    [(512, 1.794846534729004, 1.7387503312058266), (4096, 1.4278674721717834, 1.380357889776126)],
)
def test_channels_that_round_alike_do_not_make_a_norm_short(width, up, down):
    """Two positions cancel 30-fold, and every product of channels is alike: in float32 the norm is 1 to 8 % short."""
    model = nn.Sequential(nn.Conv2d(64, width, 1, bias=False), nn.Flatten(), nn.Linear(2 * width, 1, bias=False))
    gradient = stack(model, lambda out, wanted: (out - wanted)[:, 0], (torch.randn(4, 64, 2, 1), torch.randn(4, 1)))
    with torch.no_grad():
        model[0].weight.zero_()
        model[2].weight[0, 0::2], model[2].weight[0, 1::2] = up, -down
    g = gradient(gradient.layout.flatten(model)[None], torch.ones(1, 1, 64, 2, 1), torch.zeros(1, 1, 1))
    g.exact = True
    g.clip_(1.0, torch.ones(1, 1, dtype=torch.bool))
    assert 0.9 < float(g.sum().norm()) <= 1 + 2**-8


def test_a_dense_table_keeps_what_was_clipped():
    """128 positions cancel 4096-fold; multiplied out in float32 after the clip, it would be 1.5 % too long."""
    P, channels = 128, 512
    model = nn.Sequential(nn.Conv2d(channels, channels, 1, bias=False), nn.Flatten(), nn.Linear(P * channels, 1))
    model[2].bias.requires_grad_(False)
    loss = lambda out, wanted: (out - wanted)[:, 0]  # noqa: E731
    gradient = stack(model, loss, (torch.randn(2, channels, P, 1), torch.randn(2, 1)))
    delta, a = torch.full((P,), 2.0**-12 * (1 + 2.0**-8)), torch.full((P,), 2.0**-12)
    delta[0], delta[-1], a[0], a[-1] = 1.0, -1.0, 1.0, 1.0
    delta[1], a[1] = (2.0**-11 - (P - 3) * 2.0**-24) * 2.0**6, 2.0**-6
    with torch.no_grad():
        model[0].weight.zero_()
        model[2].weight.copy_(4 * delta.repeat(channels)[None])
    z, x = gradient.layout.flatten(model)[None], a.view(1, 1, 1, P, 1).expand(1, 1, channels, P, 1).contiguous()
    raw = gradient(z, x, torch.zeros(1, 1, 1))
    table = make_table("dense", raw, 1, clip=1.0)
    g = table.prepared(raw)
    g.exact = True
    g.clip_(1.0, torch.ones(1, 1, dtype=torch.bool))
    assert 0.9 < float(table.replace(torch.tensor([[0]]), g).norm()) <= 1 + 2**-8


@pytest.mark.parametrize("exact", [True, False])
def test_what_cannot_be_scaled_in_its_own_precision_counts_as_nothing(exact):
    """δ ⊗ a is 1e44 long; the clip's factor has one bit; what it makes of δ has four."""
    for delta, a, radius in ((1e24, [1e20], 1.0), (6e12, [5e12], 6.5e-20), (1e-8, [3e38] * 784, 1e-4)):
        g = PerSample([Outer(torch.full((1, 1, 1), delta), torch.tensor([[a]]), bias=False)], exact=exact)
        g.clip_(radius, torch.ones(1, 1, dtype=torch.bool))
        assert float(g.sum().double().norm()) == 0


def test_a_difference_clip_that_rounding_would_outdo_is_refused(tmp_path):
    given, out = runs.changes(algorithm__name="privsgp-vr", algorithm__steps=1), tmp_path / "out"
    ran = runs.command("train", runs.small(tmp_path), "--out", out, *given, "--set=algorithm.difference_clip=4e-4")
    assert ran.code == 2
    assert f"take at least {2**-11:g}" in ran.err
    assert not out.exists()
    runs.train(runs.small(tmp_path), out, *given, f"--set=algorithm.difference_clip={2**-11}")


def test_where_positions_may_cancel_the_least_difference_clip_is_larger(tmp_path, monkeypatch):
    monkeypatch.setattr(Learning, "places", property(lambda _self: 2))
    told = config.read(runs.small(tmp_path), ["algorithm.name=privsgp-vr", "algorithm.difference_clip=0.06"])
    with pytest.raises(Refused, match=r"take at least 0\.0625"):
        build.build_run(resolve(told, problems.load_problem(told)))


@pytest.mark.parametrize("name", [a.name for a in ALGORITHMS.values() if a.private])
def test_without_a_seed_estimates_are_in_float64_until_noise_is_added(name, tmp_path, monkeypatch):
    seen, add = [], noises.add_noise_

    def watched(g, *rest, **options):
        seen.append(g.dtype)
        add(g, *rest, **options)

    monkeypatch.setattr(noises, "add_noise_", watched)
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
    block = Block([mechanism], (inputs, targets), gradient, Randomness(), None)
    z = torch.cat([p.detach().flatten() for p in embedding.parameters()])[None]
    drawn = Drawn(torch.tensor([[3]]), torch.ones(1, 1, dtype=torch.bool))
    g = ALGORITHMS["privsgp"](block, Settings()).direction(z, [drawn])
    torch.testing.assert_close(g, block.gradients(z, drawn).sum() / 1.9)
