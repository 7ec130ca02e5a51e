"""Stretches against the plainest thing that does the same: a list with a number for every step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from privsgp.accounting.segment import Stretches

PUTS = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10), st.integers(0, 3)), max_size=20)


@given(PUTS)
def test_stretches_are_a_list_of_numbers(puts):
    plain, stretches = [0] * 41, Stretches()
    for first, count, value in puts:
        plain[first : first + count] = [value] * count
        stretches.put(first, first + count, value)
        assert [stretches[step] for step in range(41)] == plain
        for parts in (list(stretches.between(0, 41)), list(stretches)):
            assert all(plain[first:stop] == [value] * (stop - first) for first, stop, value in parts)
            told = {step for first, stop, value in parts if value for step in range(first, stop)}
            assert told == {step for step in range(41) if plain[step]}
    assert len(stretches._starts) == sum(a != b for a, b in zip([0, *plain], plain, strict=False))


@given(PUTS, st.integers(0, 40), st.integers(0, 40))
def test_what_lies_between_two_steps_is_complete_and_in_order(puts, first, stop):
    stretches = Stretches()
    for start, count, value in puts:
        stretches.put(start, start + count, value)
    parts = list(stretches.between(first, stop))
    assert [step for a, b, _ in parts for step in range(a, b)] == list(range(first, stop))
