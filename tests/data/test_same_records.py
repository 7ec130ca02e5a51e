"""Records are found again in another file, form and order; samples that identify nobody do not count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privsgp.data import from_arrays
from privsgp.data.hashes import hashes
from privsgp.data.same_records import in_common, is_tested_on_own

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
    for rows in (x, x % 2, np.zeros_like(x)):  # pixels, answers of yes and no
        found = [hashes(rows.astype(kind), tokens=False) for kind in ("u1", "i8", "f2", "f4", ">f8")]
        assert all((one == found[0]).all() for one in found)
    assert len(np.unique(hashes(np.array([[1.5, 300], [2, 256], [2, 255], [2, np.nan]]), tokens=False))) == 4


def test_tokens_of_a_test_set_are_compared_as_tokens():
    x, y = rng.integers(0, 9, size=(40, 12)), np.arange(40) % 2
    assert is_tested_on_own(from_arrays(x, y, x[::-1].astype(np.uint8), y, classes=2, vocabulary=9))
    assert not is_tested_on_own(from_arrays(x, y, x[:, ::-1], y, classes=2, vocabulary=9))


@given(taken=st.integers(1, 100), strangers=st.integers(0, 100), times=st.integers(1, 3), seed=st.integers(0, 9))
def test_half_of_one_side_is_enough_and_less_is_not(taken, strangers, times, seed):
    """In any order, and though every record stands there several times."""
    found = np.random.default_rng(seed).permutation(np.concatenate([OWN[:taken], OTHER[:strangers]]).repeat(times))
    assert in_common(found, [OWN]) == (2 * taken >= min(100, taken + strangers))


def test_a_mixture_of_several_owners_is_theirs():
    owners = np.split(OWN, 4)
    some = np.concatenate([one[:10] for one in owners])
    assert not any(in_common(some, [one]) for one in owners)
    assert in_common(some, owners)
    assert in_common(np.concatenate([some, OTHER[:40]]), owners)
    assert not in_common(np.concatenate([some, OTHER[:41]]), owners)
    assert not in_common(some, [])
    assert not in_common(OWN[:0], owners)
    assert not in_common(OWN, [OWN[:0]])


@pytest.mark.parametrize("values", [2, 4, 16])
@pytest.mark.parametrize("count", [1, 3, 400, 4000])
def test_records_with_few_values_are_alike_by_chance(values, count):
    draws = np.random.default_rng(values + count)
    own = draws.integers(0, values, size=400).astype(np.uint64)
    assert not any(in_common(draws.integers(0, values, size=count).astype(np.uint64), [own]) for _ in range(20))
    assert in_common(draws.permutation(own), [own]) == (values >= 8)  # all of them, though


@pytest.mark.parametrize("sizes", [(4000, 2000), (2000, 2000), (400, 2000)])
def test_a_record_comes_equally_often_among_others_with_probability_1_over_e(sizes):
    """Eleven columns of yes and no, and about as many records as there are values: the hardest case."""
    draws = np.random.default_rng(1)
    own, other = (draws.integers(0, 2048, size=size).astype(np.uint64) for size in sizes)
    assert not in_common(other, [own])
    assert in_common(draws.permutation(own)[1:], [own])


def test_unequal_copies_do_not_hide_whose_records_they_are():
    own = np.concatenate([OWN, OWN[:30]])  # some stand there twice
    assert in_common(OWN, [own])
    assert in_common(own[:-1], [own])
    assert in_common(np.concatenate([own, own]), [own])
    assert in_common(np.concatenate([own, own, OTHER[:1]]), [own])


BLANK = np.zeros(600, np.uint64)


@pytest.mark.parametrize(
    ("own", "found"),
    [
        (np.concatenate([OWN, BLANK]), np.concatenate([OWN[:30], OTHER[:30]])),
        (np.concatenate([OWN, BLANK]), OWN[:4]),
        (np.concatenate([OWN[:90], OWN[90:].repeat(9)]), OWN[:15]),  # the rarer class stands there again and again
        (np.concatenate([OWN[:90], OWN[90:].repeat(9)]), np.concatenate([OWN[:30], OTHER[:11]])),
    ],
)
def test_what_stands_there_often_hides_nothing(own, found):
    assert in_common(rng.permutation(found), [own])
    assert not in_common(np.concatenate([OTHER, BLANK]), [own])


def test_one_value_in_common_is_not_half():
    one = np.concatenate([OWN[:99], BLANK[:1]])
    assert not in_common(np.concatenate([OTHER[:40], BLANK[:60]]), [one])
    assert not in_common(one, [np.concatenate([OTHER[:40], BLANK])])
