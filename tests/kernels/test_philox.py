"""Philox in plain torch: the published words, and normals that depend on nothing but what they are for."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from philox import fill_normal, quarter, words

FULL = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((FULL,) * 4, (FULL, FULL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_the_words_are_those_its_authors_published(counter, key, expected):
    drawn = words(key[0] | key[1] << 32, tuple(torch.tensor([c]) for c in counter))
    assert tuple(int(w) for w in drawn) == expected


def _normals(nodes, d, step=3, key=5):
    out = torch.empty(len(nodes), d)
    fill_normal(out, key, nodes, step)
    return out


def test_a_row_depends_on_its_own_numbers_alone():
    block, alone = _normals([4, 2, 9], 1000), _normals([2], 1000)
    assert torch.equal(block[1:2], alone)
    for other in (
        _normals([3], 1000),
        _normals([2], 1000, step=4),
        _normals([2], 1000, key=6),
    ):
        assert not torch.isclose(alone, other, atol=1e-4).all()


@pytest.mark.parametrize("d", [1, 31, 127, 128, 129, 1000])
def test_every_column_is_filled(d):
    assert 4 * quarter(d) >= d
    assert _normals([0, 1], d).isfinite().all()


def test_they_are_independent_standard_normals():
    a, b = _normals([0, 1], 200_000).double().numpy()
    for sample in (a, b, (a + b) / 2**0.5, (a[:-1] - a[1:]) / 2**0.5):
        assert stats.kstest(sample[::2], "norm").pvalue > 1e-4
    quarters = a[: 4 * (len(a) // 4)].reshape(4, -1)
    assert abs(stats.pearsonr(quarters[0], quarters[1]).statistic) < 0.02
