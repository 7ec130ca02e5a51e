from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from modules import around, build, cross_entropy, mlp, probe, samples

from privsgp.errors import Refused
from privsgp.gradients import PerSample, make_table, stack
from privsgp.gradients.per_sample import Outer, Plain
from privsgp.gradients.table import fill
from privsgp.models import make

NODES, J = 2, torch.tensor([7, 5])
ROWS = 7
G = 0.6
KINDS = pytest.mark.parametrize("kind", ["dense", "factored"])
CLIPS = pytest.mark.parametrize("difference_clip", [None, 0.2])
WIDTHS = pytest.mark.parametrize("widths", [(6, 3), (6, 4, 3)])


class Site:
    """Two nodes with 7 and 5 samples and the clipped gradients of any of them."""

    def __init__(self, widths=(6, 4, 3), dtype=torch.float64):
        self.model = build(lambda: mlp(*widths), dtype=dtype)
        self.gradient = stack(self.model, cross_entropy, probe(dtype=dtype))
        self.inputs, self.targets = samples(NODES, ROWS + 1, dtype=dtype)
        self.inputs[:, ROWS] = 0

    def at(self, seed):
        """The gradients at some z, by sample numbers [m, b]."""
        z, nodes = around(self.model, NODES, seed), torch.arange(NODES)[:, None]

        def gradients(rows):
            g = self.gradient(z, self.inputs[nodes, rows], self.targets[nodes, rows])
            g.clip_(G, rows < ROWS)
            return g

        return gradients

    def table(self, kind, difference_clip=None):
        table = make_table(
            kind, self.at(0)(torch.full((NODES, 1), ROWS)), ROWS, clip=G, difference_clip=difference_clip
        )
        fill(table, self.at(0), J[:, None], ROWS, chunk=3)
        return table

    def entries(self, table):
        """All rows, multiplied out, [m, J + 1, d]; the padding row is the last."""
        rows = torch.arange(ROWS + 1).expand(NODES, ROWS + 1)
        return stored(table, rows, self.at(0)(rows)).dense()


def stored(table, rows, like):
    """The entries of the samples `rows`; `like` brings the data."""
    return PerSample(table._entries(rows, table._like_parts(like)))


def drawn(coins):
    """Sample numbers [m, 4] with padding, distinct and below J_i, from a seed."""
    generator = torch.Generator().manual_seed(coins)
    rows = torch.full((NODES, 4), ROWS)
    for i, samples_ in enumerate(J):
        size = int(torch.randint(0, 5, (), generator=generator))
        rows[i, :size] = torch.randperm(int(samples_), generator=generator)[:size]
    return rows


def move(table, rows, g):
    """What the algorithms do: replace, and let the mean follow."""
    c = table.replace(rows, g)
    table.mean.add_(c / J[:, None])
    return c


moves = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=6)


@KINDS
@CLIPS
@WIDTHS
@settings(max_examples=15)
@given(moves=moves, dtype=st.sampled_from([torch.float32, torch.float64]))
def test_the_mean_is_the_mean_of_the_entries_and_padding_stays_zero(kind, difference_clip, widths, moves, dtype):
    site = Site(widths, dtype)
    table = site.table(kind, difference_clip)
    for coins, place in moves:
        rows = drawn(coins)
        move(table, rows, site.at(place)(rows))
        entries = site.entries(table)
        tolerance = 1e-12 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(table.mean, entries.double().sum(1) / J[:, None], rtol=0, atol=tolerance)
        assert not entries[:, ROWS].any()
        assert not entries[1, 5:].any()
        assert (entries.double().norm(dim=-1) <= G * (1 + 1e-6)).all()


@CLIPS
@WIDTHS
@settings(max_examples=15)
@given(moves=moves)
def test_the_factored_table_never_differs_from_the_dense_one(difference_clip, widths, moves):
    site = Site(widths)
    dense, fast = (site.table(kind, difference_clip) for kind in ("dense", "factored"))
    for coins, place in moves:
        rows = drawn(coins)
        before = site.entries(dense)
        c, d = (move(table, rows, site.at(place)(rows)) for table in (dense, fast))
        torch.testing.assert_close(c, d, rtol=0, atol=1e-12)
        torch.testing.assert_close(c, (site.entries(dense) - before).sum(1), rtol=0, atol=1e-12)
        torch.testing.assert_close(site.entries(dense), site.entries(fast), rtol=0, atol=1e-12)
        torch.testing.assert_close(dense.mean, fast.mean, rtol=0, atol=1e-12)


@KINDS
@CLIPS
def test_an_entry_moves_towards_its_gradient_by_at_most_the_difference_clip(kind, difference_clip):
    site = Site()
    table = site.table(kind, difference_clip)
    old, rows = site.entries(table), torch.tensor([[3, 0, ROWS], [ROWS, 4, ROWS]])
    g = site.at(5)(rows).dense()
    table.replace(rows, site.at(5)(rows))
    new = site.entries(table)
    touched = torch.zeros(NODES, ROWS + 1, dtype=torch.bool).scatter(1, rows, value=True)
    touched[:, ROWS] = False
    assert torch.equal(new[~touched], old[~touched])
    for i, slot, j in [(0, 0, 3), (0, 1, 0), (1, 1, 4)]:
        step = g[i, slot] - old[i, j]
        if difference_clip is not None:
            assert step.norm() > difference_clip
            step *= difference_clip / step.norm()
        torch.testing.assert_close(new[i, j], old[i, j] + step, rtol=0, atol=1e-13)


@KINDS
@CLIPS
def test_the_first_table_holds_the_gradients_at_x0(kind, difference_clip):
    site = Site()
    table = site.table(kind, difference_clip)
    rows = torch.arange(ROWS + 1).expand(NODES, ROWS + 1)
    expected = site.at(0)(rows.where(rows < J[:, None], ROWS)).dense()
    torch.testing.assert_close(site.entries(table), expected, rtol=0, atol=1e-14)
    assert expected[1, :5].norm(dim=-1).min() > 0.1


@KINDS
@pytest.mark.parametrize("difference_clip", [0.05, 0.5])
def test_entries_stay_in_the_ball_in_float32(kind, difference_clip):
    """Every entry moves 400 times along chords of the ball, most of them near its surface."""
    generator = torch.Generator().manual_seed(0)

    def normal(size):
        return torch.randn(3, 5, size, generator=generator)

    data, usual = normal(9), [normal(size) for size in (7, 4, 7, 6)]
    rows = torch.arange(5).expand(3, 5)

    def gradients():
        first, second, hidden, plain = (u + 0.2 * normal(u.shape[-1]) for u in usual)
        g = PerSample([Outer(first, data, True, input_is_data=True), Outer(second, hidden, True), Plain(plain)])
        g.clip_(1.0, torch.ones(3, 5, dtype=torch.bool))
        return g

    table = make_table(kind, gradients(), 5, clip=1.0, difference_clip=difference_clip)
    longest = 0.0
    for _ in range(400):
        g = gradients()
        table.replace(rows, g)
        longest = max(longest, float(stored(table, rows, g).norm().max()))
    assert 0.99 < longest <= 1 + 1e-6
    assert not any(a[:, 5].any() for part in table.parts for a in part.values())


@KINDS
def test_an_entry_outside_the_ball_is_put_back_when_it_moves(kind):
    """Rounding puts it outside by far less; the table does not rely on that."""
    site = Site()
    table, rows = site.table(kind, difference_clip=0.01), torch.tensor([[0, 1], [2, 3]])
    g = site.at(0)(rows)
    for piece in g.pieces:
        piece.scale_(torch.full((2, 2), 1.5))
    table.set(rows, g)
    outside = site.entries(table).norm(dim=-1)
    assert outside.max() > 1.2 * G
    table.replace(rows, site.at(1)(rows))
    assert site.entries(table).norm(dim=-1).max() <= G * (1 + 1e-12)


@KINDS
def test_data_too_long_to_be_clipped_leave_the_table_finite(kind):
    site = Site(dtype=torch.float32)
    site.inputs[0, 2] = 1e30
    table = site.table(kind, difference_clip=0.2)
    for place in range(3):
        rows = torch.tensor([[2, 1], [3, ROWS]])
        assert move(table, rows, site.at(place)(rows)).isfinite().all()
    assert site.entries(table).isfinite().all()
    assert not site.entries(table)[0, 2].any()
    assert site.entries(table)[0, 1].any()


@pytest.mark.parametrize(
    ("name", "kind", "difference_clip", "size"),
    [
        ("mlp", "factored", None, 138),
        ("mlp", "factored", 0.5, 714),
        ("mlp", "dense", None, 50_890),
        ("mlp", "dense", 0.5, 50_890),
        ("logistic", "factored", None, 10),
        ("logistic", "factored", 0.5, 10),
        ("logistic", "dense", None, 7850),
    ],
)
def test_numbers_kept_per_sample(name, kind, difference_clip, size):
    model = make(name, input_shape=(28, 28), outputs=10, seed=0)
    inputs, targets = torch.zeros(1, 2, 28, 28), torch.zeros(1, 2, dtype=torch.int64)
    gradient = stack(model, cross_entropy, (torch.randn(4, 28, 28), torch.zeros(4, dtype=torch.int64)))
    example = gradient(gradient.layout.flatten(model)[None], inputs, targets)
    table = make_table(kind, example, 3, clip=1.0, difference_clip=difference_clip)
    kept = table.arrays()
    assert sum(a.numel() for name, a in kept.items() if name != "mean") == size * 4
    assert kept["mean"].shape == (1, example.dense().shape[-1])


class Writes(torch.nn.Module):
    """Puts what its first layer says of a sample into the sample, or what is there already."""

    def __init__(self, how):
        super().__init__()
        self.first, self.second, self.how = torch.nn.Linear(3, 1), torch.nn.Linear(4, 2), how

    def forward(self, x):
        h = self.first(torch.tanh(x[:, 1:]))
        if self.how == "same":
            x.mul_(1.0)  # which changes nothing
        elif self.how != "not":
            (x.data if self.how == "data" else x)[:, :1] = 10 * h.detach()
        return self.second(x) + h


SAMPLE = (torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 2)


@pytest.mark.parametrize("how", ["write", "same"])
def test_a_model_that_writes_into_its_samples_has_no_rule(how):
    """Its second layer sees no data: a table that took entries out by the data as they are now would be off."""
    gradients = stack(Writes(how), cross_entropy, SAMPLE)
    z, x, y = torch.randn(1, 14), 60 * torch.randn(1, 1, 4), torch.zeros(1, 1, dtype=torch.int64)
    rows, mask = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.bool)
    table = make_table("factored", gradients(z, x.clone(), y), 3, clip=1.0)

    def clipped(z):
        g = table.prepared(gradients(z, x.clone(), y))
        g.clip_(1.0, mask)
        return g

    total = table.set(rows, clipped(z)).clone()
    for _ in range(50):
        total += table.replace(rows, clipped(2 * torch.randn_like(z)))
        assert float(total.norm()) <= 1.001


def test_one_that_torch_cannot_see_writing_is_refused():
    with pytest.raises(Refused, match=r"torch\.func"):
        stack(Writes("data"), cross_entropy, SAMPLE)


def test_one_that_begins_to_later_is_refused_then():
    gradients = stack(Writes("not"), cross_entropy, SAMPLE)
    z, x, y = torch.randn(1, 14), torch.randn(1, 1, 4), torch.zeros(1, 1, dtype=torch.int64)
    gradients(z, x, y)
    gradients.model.how = "write"
    with pytest.raises(Refused, match="writes into its input"):
        gradients(z, x, y)
