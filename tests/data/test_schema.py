"""A schema says what columns are, is refused by the key that is wrong, and is the same file however it is written."""

from __future__ import annotations

import tomllib

import pytest

from privsgp.data import schema as schemas
from privsgp.data.schema_text import written
from privsgp.errors import Refused

TEXT = """
[target]
column = "back"
classes = ["no", "yes"]
[columns]
age = { type = "number", range = [0, 100], missing = 50 }
"blood sugar" = { type = "number", centre = 5.5, scale = 0.5 }
code = { type = "category", values = [1, 2, "K.1"], missing = "other" }
smoker = { type = "yes/no", missing = false }
id = { type = "ignored" }
"""


def test_features_are_named_in_the_order_of_columns():
    schema = schemas.parse(tomllib.loads(TEXT))
    assert schema.features == [
        "age", "age is missing", "blood sugar", "code = 1", "code = 2", "code = K.1", "code = other", "code is missing",
        "smoker", "smoker is missing",
    ]  # fmt: skip
    assert (schema.width, schema.classes, schema.task) == (10, 2, "classification")


def test_what_it_says_counts_and_not_how_it_is_written(tmp_path):
    schema = schemas.parse(tomllib.loads(TEXT))
    lines = TEXT.splitlines()
    turned = "\n".join([*lines[:5], *reversed(lines[5:]), "# a comment"])
    other = TEXT.replace("[0, 100]", "[0, 101]")
    assert schemas.parse(tomllib.loads(turned)).digest == schema.digest
    assert schemas.parse(tomllib.loads(other)).digest != schema.digest
    (tmp_path / "s.toml").write_text(written(schema))
    assert schemas.read(tmp_path / "s.toml") == schema
    inside = tomllib.loads(written(schema, "data.schema."))["data"]["schema"]
    assert schemas.parse(inside).digest == schema.digest


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("range = [0, 100]", "range = [100, 0]", r"columns\.age: range = \[100"),
        ("range = [0, 100], ", "", r"columns\.age: a column of numbers has no range"),
        ("scale = 0.5", "scale = 0", r"columns\.blood sugar\.scale = 0"),
        (", scale = 0.5", "", r"columns\.blood sugar: only one of centre and scale"),
        ("missing = 50", "missing = 500", r"columns\.age: missing = 500"),
        ("missing = 50", "mising = 50", r"columns\.age\.mising = 50: unknown key"),
        ('missing = "other"', 'missing = "x"', r"columns\.code: missing = 'x'"),
        ('values = [1, 2, "K.1"]', "values = [1, 1]", r"columns\.code\.values: '1' is listed twice"),
        ('"ignored"', '"date"', r"columns\.id has an unknown type"),
        ("missing = false", "missing = 1", r"columns\.smoker\.missing = 1"),
        ("missing = false", 'yes = ["no"]', r"columns\.smoker: yes = "),
        ('classes = ["no", "yes"]', "", r"target: the target 'back' has neither"),
        ('classes = ["no", "yes"]', 'classes = ["no", "yes"]\nrange = [0, 1]', r"target: the target 'back' has both"),
        ('column = "back"', 'column = "age"', r"'age' is the target and one of \[columns\]"),
    ],
)
def test_a_mistake_is_refused_by_its_key(old, new, said):
    assert old in TEXT
    with pytest.raises(Refused, match=said):
        schemas.parse(tomllib.loads(TEXT.replace(old, new)))


def test_a_list_of_many_codes_with_dots_can_be_read_again(tmp_path):
    codes = [*(f"I{i}.{i}" for i in range(200)), "\x7f", "a\tb", 'say "x"', "ä"]
    values = tomllib.loads(TEXT)
    values["columns"]["code"] = {"type": "category", "values": codes}
    (tmp_path / "s.toml").write_text(written(schemas.parse(values)))
    assert schemas.read(tmp_path / "s.toml").columns["code"].values == codes


@pytest.mark.parametrize("key", ["a", '"a b"', "' '", '"\\""', '"."', " a\t"])
def test_a_key_without_an_end_is_refused(tmp_path, key):
    (tmp_path / "s.toml").write_text(key + f".{key}" * 5000 + " = 1\n")
    with pytest.raises(Refused, match="is not TOML: maximum recursion depth"):
        schemas.read(tmp_path / "s.toml")


def test_a_schema_that_is_not_there_says_how_to_draft_one(tmp_path):
    with pytest.raises(Refused, match="privsgp data schema"):
        schemas.read(tmp_path / "s.toml")
