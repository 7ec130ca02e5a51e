"""Values from peers: what is read, and that nothing else is."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import Field, ValidationError

from privsgp.options import Positive
from privsgp.outside import Whole, between, exactly, fault, keys, parse, shown

NOT_NUMBERS = ["", "null", "true", '"1"', "[]", "{}", "NaN", "Infinity", "-1", "1e400", "9" * 400, "[" * 100_000]
RECORD = keys(a=Whole, b=bool | None)


@pytest.mark.parametrize(
    ("kind", "fits", "wrong"),
    [
        (between(0, 5), "5", [*NOT_NUMBERS, "1.0", "6"]),
        (between(0, 2, float), "2.0", [*NOT_NUMBERS, "2.5"]),
        (Positive, "2.0", [*NOT_NUMBERS, "0.0"]),
        (bool, "true", ["1", '"true"', "null"]),
        (None, "null", ["0", "false", ""]),
        (exactly(2, Whole), "[1, 2]", ["null", '"ab"', "[1]", "[1, 2, 3]", '[1, "2"]', "[1, NaN]", '{"0": 1, "1": 2}']),
        (RECORD, '{"a": 1, "b": null}', ["{}", '{"a": 1}', '{"a": 1, "b": 1}', '{"a": 1, "b": null, "c": 1}', "[]"]),
        (Annotated[str, Field(pattern="^[0-9a-f]{4}$")], '"00ff"', ['""', '"00FF"', '"00ff\\n"', '"../."', "7"]),
    ],
)
def test_only_what_is_of_the_type_is_read(kind, fits, wrong):
    assert parse(kind, fits) is not ...
    for text in wrong:
        with pytest.raises(ValidationError):
            parse(kind, text)


def test_what_is_wrong_is_named_without_control_characters_and_in_few_words():
    with pytest.raises(ValidationError) as error:
        parse(RECORD, '{"a": 1, "b": null, "\x1b[2J" : 1}'.replace("\x1b", "\\u001b"))
    assert "\x1b" not in fault(error.value)
    assert shown("\x1b\u202e").isascii()
    assert len(shown("a" * 10**6)) < 300
