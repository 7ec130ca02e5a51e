"""Forms of what peers may say: what fits, and that nothing else does."""

from __future__ import annotations

import math

import pytest

from privsgp.transport import forms

NOT_NUMBERS = [None, True, "1", [], {}, math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("said", [*NOT_NUMBERS, 1.0, -1, 6, 10**400])
def test_no_whole_number_from_0_to_5(said):
    assert not forms.whole(0, 5).fits(said)
    assert forms.whole(0, 5).fits(5)


@pytest.mark.parametrize("said", [*NOT_NUMBERS, 1, 0.0, -1.0, 2.5])
def test_no_number_above_0_up_to_2(said):
    assert not forms.real(0.0, 2.0, above=True).fits(said)
    assert forms.real(0.0, 2.0, above=True).fits(2.0)


@pytest.mark.parametrize("said", [None, "ab", [1], [1, 2, 3], [1, "2"], [1, math.nan], {"0": 1, "1": 2}])
def test_no_list_of_two(said):
    assert not forms.each(forms.whole(), 2).fits(said)
    assert forms.each(forms.whole(), 2).fits([1, 2])


@pytest.mark.parametrize("said", [{}, {"a": 1}, {"a": 1, "b": "x"}, {"a": 1, "b": None, "c": 1}, [["a", 1]]])
def test_no_record_of_a_and_b(said):
    form = forms.keys({"a": forms.whole(), "b": forms.perhaps(forms.FLAG)})
    assert not form.fits(said)
    assert form.fits({"a": 1, "b": None})


@pytest.mark.parametrize("said", ["", "A" * 32, "a" * 31, "a" * 32 + "\n", "../" * 8, 7, None])
def test_no_number_of_a_run(said):
    assert not forms.text("[0-9a-f]{32}", "").fits(said)


def test_what_is_shown_has_no_control_characters_and_an_end():
    assert "\x1b" not in forms.shown("\x1b[2J\x9b\u202e")
    assert forms.shown("\x1b\u202e").isascii()
    assert len(forms.shown("a" * 10**6)) < 300
