"""Records are known again in another file, form and order, and strangers that look alike by chance are not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsgp.data import from_arrays
from privsgp.data.known import belong_to, hashes, is_tested_on_own, moved_from

rng = np.random.default_rng(0)
OWN, OTHER = (rng.integers(2**63, size=100, dtype=np.uint64) for _ in range(2))


def test_forms_of_the_same_sample_have_one_hash():
    x = rng.integers(0, 256, size=(5, 3, 2)).astype(np.uint8)
    real, tokens = hashes(x, tokens=False), hashes(x, tokens=True)
    assert (real == hashes((x / np.float32(255)).astype(np.float64), tokens=False)).all()
    assert (real == hashes(np.asfortranarray(x), tokens=False)).all()
    assert (tokens == hashes(x.astype(np.int64), tokens=True)).all()
    assert not np.intersect1d(real, tokens).size
    assert (hashes(np.array([[0.0, 1.0]]), tokens=False) == hashes(np.array([[-0.0, 1.0]]), tokens=False)).all()


def test_tokens_of_a_test_set_are_compared_as_tokens():
    x, y = rng.integers(0, 9, size=(40, 12)), np.arange(40) % 2
    assert is_tested_on_own(from_arrays(x, y, x[::-1].astype(np.uint8), y, classes=2, vocabulary=9))
    assert not is_tested_on_own(from_arrays(x, y, x[:, ::-1], y, classes=2, vocabulary=9))


@given(taken=st.integers(1, 100), strangers=st.integers(0, 100), times=st.integers(1, 3), seed=st.integers(0, 9))
def test_half_of_one_side_is_enough_and_less_is_not(taken, strangers, times, seed):
    """In any order, and though every record stands there several times."""
    found = np.random.default_rng(seed).permutation(np.concatenate([OWN[:taken], OTHER[:strangers]]).repeat(times))
    assert belong_to(found, [OWN]) == (2 * taken >= min(100, taken + strangers))


def test_a_mixture_of_several_owners_is_theirs():
    owners = np.split(OWN, 4)
    some = np.concatenate([one[:10] for one in owners])
    assert not any(belong_to(some, [one]) for one in owners)
    assert belong_to(some, owners)
    assert belong_to(np.concatenate([some, OTHER[:13]]), owners)
    assert not belong_to(np.concatenate([some, OTHER[:14]]), owners)
    assert not belong_to(some, [])
    assert not belong_to(OWN[:0], owners)


@pytest.mark.parametrize("values", [2, 16, 200, 2000, 20_000])
@pytest.mark.parametrize("count", [40, 400, 4000])
def test_fresh_draws_from_few_values_belong_to_nobody(values, count):
    draws = np.random.default_rng(values + count)
    own = draws.integers(0, values, size=200).astype(np.uint64)
    assert sum(belong_to(draws.integers(0, values, size=count).astype(np.uint64), [own]) for _ in range(20)) <= 1
    assert belong_to(draws.permutation(own), [own])


def test_a_tenth_of_anothers_records_has_moved():
    before, other = OWN[:50], OWN[50:]
    assert not moved_from(before, other, before)
    assert not moved_from(OWN, other, OWN)  # both had them
    assert not moved_from(np.concatenate([before[:46], other[:5]]), other, before)
    assert moved_from(np.concatenate([before[:45], other[:5]]), other, before)
    assert moved_from(other, other, before[:0])
