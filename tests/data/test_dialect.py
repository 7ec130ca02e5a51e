"""Tables as hospitals write them: a dialect beside the table, which stays at the site."""

from __future__ import annotations

import numpy as np
import pytest

from privsgp.data import schema as schemas
from privsgp.data import tables
from privsgp.errors import Refused

SCHEMA = schemas.parse(
    {
        "target": {"column": "outcome", "classes": ["alive", "dead"]},
        "columns": {
            "age": {"type": "number", "range": [0, 100], "missing": 50},
            "crea": {"type": "number", "range": [0, 10], "missing": 1},
            "ward": {"type": "category", "values": ["surgery", "medicine"], "missing": "other"},
            "smoker": {"type": "yes/no", "missing": False},
        },
    }
)
MESSY = """Alter;Krea (mg/dl);Station;Ergebnis;Notiz
61;1,25;Chirurgie;lebt;ü
-9;k.A.;Innere;verstorben;ß
47;1.002,5;Röntgen;lebt;x
"""
DIALECT = """
encoding = "cp1252"
decimal = ","
thousands = "."
missing = ["k.A.", "-9"]
absent = ["smoker"]
drop = ["Notiz"]

[columns]
Alter = "age"
"Krea (mg/dl)" = "crea"
Station = "ward"
Ergebnis = "outcome"

[values]
ward = { Chirurgie = "surgery", Innere = "medicine" }
outcome = { lebt = "alive", verstorben = "dead" }
"""
CLEAN = "age,crea,ward,outcome,smoker\n61,1.25,surgery,alive,\n,,medicine,dead,\n47,1002.5,Röntgen,alive,\n"


@pytest.fixture
def messy(tmp_path):
    path = tmp_path / "aachen.csv"
    path.write_bytes(MESSY.encode("cp1252"))
    path.with_suffix(".dialect.toml").write_text(DIALECT)
    return path


def test_a_messy_table_becomes_what_the_clean_one_is(messy, tmp_path):
    (tmp_path / "clean.csv").write_text(CLEAN)
    found, clean = tables.read(messy, SCHEMA), tables.read(tmp_path / "clean.csv", SCHEMA)
    np.testing.assert_array_equal(found.x, clean.x)
    assert list(found.y) == list(clean.y) == [0, 1, 0]
    said, expected = ([note.split(".csv: ")[1] for note in table.notes] for table in (found, clean))
    assert said == expected
    assert {"age: 1 missing, filled in and marked", "smoker: 3 missing, filled in and marked"} <= {*said}


def test_another_dialect_makes_no_new_records(messy, tmp_path):
    first = tables.read(messy, SCHEMA).rows
    other = (
        DIALECT.replace('"cp1252"', '"latin-1"').replace('"surgery"', '"other"').replace('["k.A.", "-9"]', '["k.A."]')
    )
    messy.with_suffix(".dialect.toml").write_text(other)
    second = tables.read(messy, SCHEMA).rows
    assert (first[:, 0] == second[:, 0]).all()  # by the file as it is
    (tmp_path / "clean.csv").write_text(CLEAN)
    assert (first[:, 1] == tables.read(tmp_path / "clean.csv", SCHEMA).rows[:, 1]).all()  # by the inputs


def test_a_dialect_added_later_makes_no_new_records(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(CLEAN)
    before = tables.read(path, SCHEMA).rows
    path.with_suffix(".dialect.toml").write_text('encoding = "cp1252"\n[values]\nward = { surgery = "medicine" }\n')
    after = tables.read(path, SCHEMA).rows
    assert (before[:, 0] == after[:, 0]).all()
    assert before[0, 1] != after[0, 1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('decimals = ","', "decimals"),
        ('encoding = "klingon"', "encoding"),
        ('drop = ["nothing"]', "no column 'nothing'"),
        ('absent = ["age"]', "two columns become 'age'"),
        ('values = { colour = { a = "b" } }', "no column 'colour'"),
    ],
)
def test_a_dialect_that_does_not_fit_is_refused(tmp_path, line, said):
    path = tmp_path / "a.csv"
    path.write_text(CLEAN)
    path.with_suffix(".dialect.toml").write_text(line)
    with pytest.raises(Refused, match=said):
        tables.read(path, SCHEMA)


def test_an_absent_column_needs_a_schema_that_says_what_a_gap_becomes(tmp_path):
    strict = SCHEMA.model_copy(update={"columns": SCHEMA.columns | {"sex": schemas.YesNo(type="yes/no")}})
    path = tmp_path / "a.csv"
    path.write_text(CLEAN)
    path.with_suffix(".dialect.toml").write_text('absent = ["sex"]')
    with pytest.raises(Refused, match="missing value"):
        tables.read(path, strict)


def test_the_wrong_encoding_names_the_dialect(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(CLEAN.encode("cp1252"))
    with pytest.raises(Refused) as refused:
        tables.read(path, SCHEMA)
    assert "a.dialect.toml" in refused.value.remedy
