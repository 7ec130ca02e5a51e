"""Noise in float32 gives the cells that all bits in float64 give, whatever bits were not looked at."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from privsgp.randomness import noise, normals
from privsgp.randomness.noise import Secure, add_noise_, spacings
from privsgp.randomness.normals import exact_normals, float32_normals, to_cells_
from privsgp.randomness.on_device import snap_

M, D = 4, 5001
LOWER = {
    "zeros": lambda count: np.zeros(count, np.uint32),
    "ones": lambda count: np.full(count, 2**32 - 1, np.uint32),
    "random": lambda count: np.random.default_rng(0).integers(0, 2**32, count, np.uint32),
}


def _gradients(kind):
    rng = np.random.default_rng(1)
    g = rng.normal(size=(M, D))
    changed = {
        "nothing": lambda: 0 * g,
        "small": lambda: 0.01 * g,
        "mixed": lambda: g * 10.0 ** rng.integers(-30, 31, size=(M, D)),
        "subnormal": lambda: g * 2.0**-1060,
        "one coordinate": lambda: np.where(np.arange(D) == 7, 1e6, 0.0) + 0 * g,
        "vast": lambda: 1e12 * g,
        "infinite in float32": lambda: np.where(np.arange(D) % 1000 == 0, 1e300, g),
        "edges": lambda: (np.rint(g) + 0.5) * 2.0**-10,
    }
    return torch.from_numpy(changed[kind]())


def _lower(kind):
    return lambda pairs: LOWER[kind](2 * pairs)


def every_normal(words, columns, lower):
    """The plain reference: all normals in float64, from all their bits."""
    rows, places = np.divmod(np.arange(len(words) * columns), columns)
    return exact_normals(words, rows, places, lower).reshape(len(words), columns)


def _columns(values):
    return np.array(values, np.float64)[:, None]


def _noised(g, words, sigma, monkeypatch=None):
    """Return what g becomes, and which of its numbers were computed from all bits, with their normals."""
    found, asked, inner = g.clone(), [], normals.exact_normals

    def watched(words, row, column, lower):
        asked.append((row, column, inner(words, row, column, lower)))
        return asked[-1][2].copy()

    if monkeypatch is not None:
        monkeypatch.setattr(normals, "exact_normals", watched)
    to_cells_(found.numpy(), words, _lower("random"), _columns(sigma), _columns(spacings(sigma)))
    return found, asked


@pytest.mark.parametrize("lower", LOWER)
@pytest.mark.parametrize(
    "kind", ["nothing", "small", "mixed", "subnormal", "one coordinate", "vast", "infinite in float32", "edges"]
)
def test_every_cell_is_that_of_all_bits_in_float64(kind, lower, monkeypatch):
    words = np.random.default_rng(2).integers(-(2**31), 2**31, (M, D + 1), np.int32)
    words[0, :8] = [-(2**31), -1, 0, 1, 2**31 - 1, 2**19, 2**18, -(2**20)]  # shortest and longest radii
    sigma, g = [0.01, 1.0, 2.0**-100, 1.414], _gradients(kind)
    found, ((rows, columns, exact),) = _noised(g, words, sigma, monkeypatch)
    every = torch.from_numpy(every_normal(words, D, _lower(lower)))  # the bits nobody looked at are others
    every[rows, columns] = torch.from_numpy(exact)
    wanted = every.mul_(torch.from_numpy(_columns(sigma))).add_(g)
    snap_(wanted, sigma)
    assert torch.equal(found, wanted)
    if kind == "small":
        assert len(rows) < D + 0.01 * M * D  # all of the row whose grid is too fine for float32, few of the others


@pytest.mark.parametrize("lower", LOWER)
def test_sums_that_are_aimed_at_edges_have_their_cells(lower, monkeypatch):
    """All lie within a few errors of an edge, seen from the noise that other lower bits would give."""
    words = np.random.default_rng(6).integers(-(2**31), 2**31, (M, D + 1), np.int32)
    sigma = [0.01, 1.0, 2.0**-20, 1.414]
    grid, s = (torch.from_numpy(_columns(v)) for v in (spacings(sigma), sigma))
    every = torch.from_numpy(every_normal(words, D, _lower(lower)))
    aside = torch.rand(M, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).sub_(0.5).mul_(6)
    g = ((every * s / grid).round() + 0.5) * grid - every * s + aside * normals._ERROR * s
    found, ((rows, columns, exact),) = _noised(g, words, sigma, monkeypatch)
    every[rows, columns] = torch.from_numpy(exact)
    wanted = every * s + g
    snap_(wanted, sigma)
    assert torch.equal(found, wanted)
    assert 0.2 < len(rows) / (M * D) < 0.8


@pytest.mark.parametrize("lower", LOWER)
def test_float32_is_within_its_error(lower):
    rng = np.random.default_rng(3)
    pairs = 1 << 17
    radii = np.concatenate([np.full(pairs // 4, r) for r in (2.0**-6, 4.07, 0.05, 1.0)])
    radii = radii * (1 + rng.uniform(-1e-3, 1e-3, pairs))
    u = np.exp(-(radii**2) / 2) * rng.choice([-1, 1], pairs)
    angle = rng.integers(-4, 5, pairs) * 2.0**29 + rng.integers(-50, 51, pairs) * rng.choice([1, 10**6], pairs)
    words = np.concatenate([u * (2.0**31 - 1), np.clip(angle, -(2**31), 2**31 - 1)])[None].astype(np.int32)
    off = np.abs(float32_normals(words, 2 * pairs) - every_normal(words, 2 * pairs, _lower(lower)))
    known = ~np.isnan(off)
    assert 0.2 < known.mean() < 1
    assert off[known].max() <= 0.75 * normals._ERROR


def test_no_word_of_a_stream_is_read_twice(monkeypatch):
    """Lower halves come after all upper ones, in a place of each tile's own."""
    monkeypatch.setattr(noise, "_PIECE", 1 << 10)
    monkeypatch.setattr(noise, "_TILE", 1 << 11)
    monkeypatch.setattr(normals, "_RADII", (2.0, 2.1))  # float32 is hardly ever enough
    source, read, inner = Secure(), [], noise.Streams._read

    def watched(self, rows, purpose, nodes, step, block=0):
        read.extend(((i, step), block, block + -(-row.nbytes // 64)) for row, i in zip(rows, nodes, strict=True))
        inner(self, rows, purpose, nodes, step, block)

    monkeypatch.setattr(noise.Streams, "_read", watched)
    add_noise_(torch.zeros(3, 5001, dtype=torch.float64), source, range(3, 6), 9, sigma=[1.0] * 3)
    draws = {draw for draw, _, _ in read}
    assert draws == {(3, 9), (5, 9)}  # two rows in a tile, and one
    for one in draws:
        places = sorted((start, stop) for draw, start, stop in read if draw == one)
        assert len(places) == 10
        assert all(stop <= start for (_, stop), (start, _) in itertools.pairwise(places))


def test_both_coordinates_of_a_pair_are_of_the_same_bits():
    words = np.random.default_rng(4).integers(-(2**31), 2**31, (1, D + 1), np.int32)
    half = (D + 1) // 2
    first, second, again = exact_normals(words, np.zeros(3, np.int64), np.array([5, 5 + half, 5]), _lower("random"))
    assert first == again
    assert np.isclose(np.hypot(first, second), np.sqrt(-2 * np.log(abs(words[0, 5] / 2**31))), rtol=1e-6)


def test_rows_without_noise_stay_and_others_have_theirs():
    g = torch.full((5, 40_001), 0.3, dtype=torch.float64)
    add_noise_(g, Secure(), range(5), 0, sigma=[0.0, 0.5, 2.0, 0.0, 2.0**-800])
    assert (g[[0, 3]] == 0.3).all()
    torch.testing.assert_close(g.std(1)[1:3], torch.tensor([0.5, 2.0], dtype=torch.float64), rtol=2e-2, atol=0)
    assert torch.equal(g[2] * 8, (g[2] * 8).round())
    assert float(torch.corrcoef(g[1:3])[0, 1].abs()) < 0.03


def _all_refined(monkeypatch):
    """Let float32 never be enough."""
    monkeypatch.setattr(normals, "float32_normals", lambda words, d: np.full((len(words), d), np.nan, np.float32))


def test_a_cell_does_not_tell_which_numbers_were_refined(monkeypatch):
    """Refined are those whose radius is next to 0, among others: who saw that would know g."""
    words = np.random.default_rng(7).integers(-(2**31), 2**31, (M, D + 1), np.int32)
    sigma, g = [0.01, 0.02, 0.5, 2.0**-61], _gradients("small")
    monkeypatch.setitem(LOWER, "random", LOWER["zeros"])
    some, _ = _noised(g, words, sigma)
    _all_refined(monkeypatch)
    every, _ = _noised(g, words, sigma)
    assert torch.equal(some, every)
    assert torch.equal(some.signbit(), every.signbit())


@pytest.mark.parametrize("refined", [False, True])
def test_no_cell_has_a_sign_of_its_own(refined, monkeypatch):
    words = np.random.default_rng(8).integers(-(2**31), 2**31, (M, D + 1), np.int32)
    if refined:
        _all_refined(monkeypatch)
    g, _ = _noised(torch.zeros(M, D, dtype=torch.float64), words, [1.0] * M)
    assert (g == 0).sum() > 100
    assert not g[g == 0].signbit().any()
    y = torch.tensor([[-0.01, 0.01]], dtype=torch.float64)
    snap_(y, [1.0])
    assert not y.signbit().any()


def test_several_threads_add_what_one_adds():
    """Tiles are drawn by all threads: the numbers are those of their place."""
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(torch.zeros(7, 70_001))
            add_noise_(found[-1], noise.Keyed(3), range(7), 2, sigma=[0.1] * 7)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)
