"""Noise in float32 gives the cells that all bits in float64 give, whatever bits were not looked at."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from privsgp.errors import Refused
from privsgp.randomness import rough
from privsgp.randomness.noise import Secure, _spacings, add_noise_, snap_
from privsgp.randomness.rough import Rough, add_rough_, step_rough_

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


def _drawn(words, lower, wanted=None):
    """Noise whose lower bits are as `lower` says; of what is asked for, `wanted` is told."""
    noise = Rough.of(words, D, lambda _row, _before, count: LOWER[lower](count))
    if wanted is not None:
        asked = noise.exact
        noise.exact = lambda row, column: wanted.setdefault((tuple(row), tuple(column)), asked(row, column)).copy()
    return noise


@pytest.mark.parametrize("lower", LOWER)
@pytest.mark.parametrize(
    "kind", ["nothing", "small", "mixed", "subnormal", "one coordinate", "vast", "infinite in float32", "edges"]
)
def test_every_cell_is_that_of_all_bits_in_float64(kind, lower):
    words = np.random.default_rng(2).integers(-(2**31), 2**31, (M, D + 1), np.int32)
    words[0, :8] = [-(2**31), -1, 0, 1, 2**31 - 1, 2**19, 2**18, -(2**20)]  # shortest and longest radii
    sigma, g, told = [0.01, 1.0, 2.0**-100, 1.414], _gradients(kind), {}
    noise, found = _drawn(words, "random", told), g.clone()
    add_rough_(found, noise, sigma, _spacings(sigma))
    every = torch.from_numpy(_drawn(words, lower).everything())  # the bits nobody looked at are others
    ((rows, columns),) = told
    every[list(rows), list(columns)] = torch.from_numpy(told[rows, columns])
    wanted = every.mul_(torch.tensor(sigma, dtype=torch.float64)[:, None]).add_(g)
    snap_(wanted, sigma)
    assert torch.equal(found, wanted)
    if kind == "small":
        assert len(rows) < D + 0.01 * M * D  # all of the row whose grid is too fine for float32, few of the others


@pytest.mark.parametrize("lower", LOWER)
def test_sums_that_are_aimed_at_edges_have_their_cells(lower):
    """All lie within a few errors of an edge, seen from the noise that other lower bits would give."""
    words = np.random.default_rng(6).integers(-(2**31), 2**31, (M, D + 1), np.int32)
    sigma, told = [0.01, 1.0, 2.0**-20, 1.414], {}
    grid, s = (torch.tensor(v, dtype=torch.float64)[:, None] for v in (_spacings(sigma), sigma))
    every = torch.from_numpy(_drawn(words, lower).everything())
    aside = torch.rand(M, D, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).sub_(0.5).mul_(6)
    g = ((every * s / grid).round() + 0.5) * grid - every * s + aside * rough._ERROR * s
    found = g.clone()
    add_rough_(found, _drawn(words, "random", told), sigma, _spacings(sigma))
    ((rows, columns),) = told
    every[list(rows), list(columns)] = torch.from_numpy(told[rows, columns])
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
    noise = Rough.of(words, 2 * pairs, lambda _row, _before, count: LOWER[lower](count))
    off = np.abs(noise.normals - noise.everything())
    known = ~np.isnan(off)
    assert 0.2 < known.mean() < 1
    assert off[known].max() <= 0.75 * rough._ERROR


@pytest.mark.parametrize("columns", [1, 2, 37, 64, 65, 131])
def test_tiles_change_no_bit(columns, monkeypatch):
    words = np.random.default_rng(5).integers(-(2**31), 2**31, (11, columns + columns % 2), dtype=np.int32)
    words[7, 0] = 0  # float32 is not enough for it
    whole = Rough.of(words, columns, lambda *_: np.empty(0, np.uint32)).normals
    monkeypatch.setattr(rough, "_PAIRS", 16)
    monkeypatch.setattr(rough, "_TALL", 3)
    tiled = Rough.of(words, columns, lambda *_: np.empty(0, np.uint32)).normals
    np.testing.assert_array_equal(tiled, whole)
    assert np.isnan(tiled[7, 0])
    assert len({row.tobytes() for row in tiled}) == len(tiled)  # nobody has another's


def test_lower_bits_are_behind_the_upper_ones_and_read_once():
    source = Secure()
    noise = source.rough(range(3, 5), 33, 9, 1)
    key = source._keys["noise"]

    def stream(node, words):
        cipher = Cipher(algorithms.ChaCha20(key, struct.pack("<4I", 0, node, 9, 1)), mode=None).encryptor()
        return np.frombuffer(cipher.update(bytes(4 * words)), np.uint32)

    assert np.array_equal(noise.words.view(np.uint32), [stream(3, 34), stream(4, 34)])
    behind = 16 * (1 + 34 * 4 // 64)
    taken = [noise._lower_words(5), noise._lower_words(20), noise.rows(1, 2)._lower_words(4)]
    assert np.array_equal(np.concatenate(taken[:2]), stream(3, behind + 25)[behind:])
    assert np.array_equal(taken[2], stream(4, behind + 4)[behind:])
    with pytest.raises(Refused, match="already used"):
        source.rough(range(3, 5), 33, 9, 1)


def test_both_coordinates_of_a_pair_are_of_the_same_bits():
    words = np.random.default_rng(4).integers(-(2**31), 2**31, (1, D + 1), np.int32)
    noise = _drawn(words, "random")
    half = (D + 1) // 2
    first, second, again = noise.exact(np.zeros(3, np.int64), np.array([5, 5 + half, 5]))
    assert first == again
    assert np.isclose(np.hypot(first, second), np.sqrt(-2 * np.log(abs(words[0, 5] / 2**31))), rtol=1e-6)


def test_a_step_takes_what_would_have_been_added():
    words = np.random.default_rng(5).integers(-(2**31), 2**31, (M, D + 1), np.int32)
    sigma, g, x = [0.01, 0.02, 0.5, 3.0], _gradients("small"), torch.zeros(M, D)
    step_rough_(x, g, _drawn(words, "zeros"), sigma, _spacings(sigma), 0.25)
    add_rough_(g, _drawn(words, "zeros"), sigma, _spacings(sigma))
    assert torch.equal(x, -(0.25 * g).float())


def test_rows_without_noise_stay_and_others_have_theirs():
    g = torch.full((5, 40_001), 0.3, dtype=torch.float64)
    add_noise_(g, Secure(), range(5), 0, sigma=[0.0, 0.5, 2.0, 0.0, 2.0**-800])
    assert (g[[0, 3]] == 0.3).all()
    torch.testing.assert_close(g.std(1)[1:3], torch.tensor([0.5, 2.0], dtype=torch.float64), rtol=2e-2, atol=0)
    assert torch.equal(g[2] * 8, (g[2] * 8).round())
    assert float(torch.corrcoef(g[1:3])[0, 1].abs()) < 0.03


def _all_refined(words):
    """The same noise, of which float32 is never enough."""
    noise = _drawn(words, "zeros")
    noise.normals[:] = np.nan
    return noise


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("step_size", [0.1, 1.0, 1e-3, 1e-30])
def test_a_message_does_not_tell_which_numbers_were_refined(dtype, step_size):
    """Refined are those whose radius is next to 0, among others: who saw that would know g."""
    words = np.random.default_rng(7).integers(-(2**31), 2**31, (M, D + 1), np.int32)
    sigma, g = [0.01, 0.02, 0.5, 2.0**-61], _gradients("small")
    start = 0.05 * torch.randn(M, D, dtype=dtype, generator=torch.Generator().manual_seed(0))
    start[:, ::10] = -0.0
    some, every = start.clone(), start.clone()
    step_rough_(some, g, _drawn(words, "zeros"), sigma, _spacings(sigma), step_size)
    step_rough_(every, g, _all_refined(words), sigma, _spacings(sigma), step_size)
    assert torch.equal(some, every)
    assert torch.equal(some.signbit(), every.signbit())


def test_no_cell_has_a_sign_of_its_own():
    words = np.random.default_rng(8).integers(-(2**31), 2**31, (M, D + 1), np.int32)
    sigma = [1.0] * M
    for noise in (_drawn(words, "zeros"), _all_refined(words)):
        g = torch.zeros(M, D, dtype=torch.float64)
        add_rough_(g, noise, sigma, _spacings(sigma))
        assert (g == 0).sum() > 100
        assert not g[g == 0].signbit().any()
    y = torch.tensor([[-0.01, 0.01]], dtype=torch.float64)
    snap_(y, [1.0])
    assert not y.signbit().any()
