"""Tables become numbers by the schema alone; whatever does not fit is refused by column and row."""

from __future__ import annotations

import datetime as dt
import io
import sys
import tomllib

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_schema import TEXT

from privsgp import devices
from privsgp.data import draft, same_records, tables
from privsgp.data import schema as schemas
from privsgp.data.loading import Form, holds_records_of
from privsgp.errors import Refused

SCHEMA = schemas.parse(tomllib.loads(TEXT))
HEADER = "id,age,blood sugar,code,smoker,back\n"
ROWS = 'a,50,5.5,1,Yes,yes\nb,NA,6,2,,no\nc,1e999,"5.0",K.1,no,no\nd,-3,4.5,7, 0 ,yes\n'
ENCODED = [
    [0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
    [0, 1, 1, 0, 1, 0, 0, 0, -1, 1],
    [1, 0, -1, 0, 0, 1, 0, 0, -1, 0],
    [-1, 0, -2, 0, 0, 0, 1, 0, -1, 0],
]


def read(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return tables.read(path, SCHEMA)


def test_a_csv_file_becomes_numbers(tmp_path):
    table = read(tmp_path, HEADER + ROWS)
    np.testing.assert_array_equal(table.x, np.array(ENCODED, np.float32))
    assert table.y.tolist() == [1, 0, 0, 1]
    assert [note.partition("t.csv: ")[2] for note in table.notes] == [
        "age: 1 missing, filled in and marked",
        "age: 2 outside the range, clipped",
        "code: 1 not in the list, taken as 'other'",
        "smoker: 1 missing, filled in and marked",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + HEADER + ROWS,
        (HEADER + ROWS).replace("\n", "\r\n"),
        (HEADER + ROWS).replace(",", ";"),
        (HEADER + ROWS).replace(",", "\t"),
        "\n".join(",".join(reversed(line.split(","))) for line in (HEADER + ROWS).splitlines()),
        "\n".join(",".join(line.split(",")[1:]) for line in (HEADER + ROWS).splitlines()),  # ignored, and not there
    ],
)
def test_it_does_not_matter_how_a_csv_file_is_written(tmp_path, text):
    np.testing.assert_array_equal(read(tmp_path, text).x, np.array(ENCODED, np.float32))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEADER.replace("age,", "") + "a,5,1,no,no\n", "t.csv has no column 'age'"),
        (HEADER.replace("back", "gone"), "t.csv has no column 'back'"),
        (HEADER.replace("id", "name") + ROWS, "a column 'name' that is not in the schema"),
        (HEADER.replace("id", "age") + ROWS, "two columns are called 'age'"),
        (HEADER + "a,5O,5,1,no,no\n", "column 'age', row 1: '5O' is no number"),
        (HEADER + ROWS + "e,1_0,5,1,no,no\n", "column 'age', row 5: '1_0' is no number"),
        (HEADER + "a,0x10,5,1,no,no\n", "'0x10' is no number"),
        (HEADER + "a,inf,5,1,no,no\n", "'inf' is no number"),
        (HEADER + 'a,"1,5",5,1,no,no\n', "'1,5' is no number"),
        (HEADER + "a,5,,1,no,no\n", "column 'blood sugar', row 1: '' is a missing value"),
        (HEADER + "a,5,5,1,vielleicht,no\n", "column 'smoker', row 1: 'vielleicht' is neither yes nor no"),
        (HEADER + "a,5,5,1,no,perhaps\n", "target 'back', row 1: 'perhaps' is none of the classes"),
        (HEADER + "a,5,5,1,no,NA\n", "target 'back', row 1: 'NA' is a missing value"),
        (HEADER + ROWS + "e,5,5,1,no\n", "row 5 has 5 values for 6 columns"),
        (HEADER + ROWS + "e,5,5,1,no,no,no\n", "row 5 has 7 values for 6 columns"),
        (HEADER + 'a,5,5,"1,no,no\n', "line 2: a quote is not closed"),
        (HEADER.encode() + b"a,5,5,1,n\xe4,no\n", "line 2: byte 0xe4 is not UTF-8"),
        ((HEADER + ROWS).encode("utf-16"), "line 1: byte 0xff is not UTF-8"),
        (HEADER.encode() + b"a,5,5,1,n\0,no\n", "line 2: a zero byte"),
        (HEADER, "has no rows"),
        ("", "line 1: no header"),
        ((HEADER + ROWS).replace("\n", "\r"), "line 1: a carriage return among the names"),
    ],
)
def test_what_does_not_fit_is_refused_by_column_and_row(tmp_path, text, said):
    with pytest.raises(Refused) as refused:
        read(tmp_path, text)
    assert said in refused.value.what


def test_a_target_that_a_table_lacks_cannot_be_absent(tmp_path):
    with pytest.raises(Refused) as refused:
        read(tmp_path, HEADER.replace("back", "gone") + ROWS)
    assert "other names" in refused.value.remedy
    assert "absent" not in refused.value.remedy


def test_newlines_in_quoted_texts_do_not_shift_the_count_of_rows(tmp_path):
    with pytest.raises(Refused, match="column 'age', row 2"):
        read(tmp_path, HEADER + '"a\nb",5,5,1,no,no\nc,x,5,1,no,no\n')


def arrow(**changes):
    columns = {
        "id": ["a", "b", "c", "d"], "age": [50, None, 10**12, -3], "blood sugar": [5.5, 6.0, 5.0, 4.5],
        "code": ["1", "2", "K.1", "7"], "smoker": [True, None, False, False], "back": ["yes", "no", "no", "yes"],
    }  # fmt: skip
    return pa.table(columns | changes)


@pytest.mark.parametrize(
    "table",
    [
        arrow(),
        arrow(age=pa.array([50.0, float("nan"), 1e300, -3.0])),
        arrow(code=pa.array(["1", "2", "K.1", "7"]).dictionary_encode(), smoker=[1, None, 0, 0]),
        arrow(code=pa.DictionaryArray.from_arrays([2, 0, 1, 3], pa.array(["2", "K.1", "1", "7"], pa.string_view()))),
        arrow(code=pa.array(["1", "2", "K.1", "7"], "large_string"), smoker=["Yes", "", "no", "0"]),
        arrow(id=pa.array([dt.date(2026, 1, 1)] * 4), __index_level_0__=[3, 1, 2, 0]),
    ],
)
def test_arrow_tables_are_read_by_the_types_they_have(table):
    np.testing.assert_array_equal(tables.of_frame(table, SCHEMA).x, np.array(ENCODED, np.float32))


def test_codes_of_a_column_with_gaps_are_whole_numbers():
    schema = schemas.parse(
        {
            "target": {"column": "y", "classes": [0, 1]},
            "columns": {"c": {"type": "category", "values": [7], "missing": "7"}},
        }
    )
    table = tables.of_frame(pa.table({"c": [7.0, None, 8.0], "y": [0.0, 1.0, 1.0]}), schema)
    assert table.x.tolist() == [[1, 0, 0], [1, 0, 1], [0, 1, 0]]
    notes = tables.of_frame(pa.table({"c": [7.5], "y": [0]}), schema).notes
    assert notes == ["data: c: 1 not in the list, taken as 'other'"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"age": ["50", "60", "70", "80"]}, None),
        ({"age": pa.array([dt.date(2026, 1, 1)] * 4)}, "column 'age' is of type date32"),
        ({"age": [True] * 4}, "column 'age' is of type bool"),
        ({"code": [[1], [2], [3], [4]]}, "column 'code' is of type list"),
        ({"age": [1.0, float("inf"), 2.0, 3.0]}, "row 2: 'inf' is not finite"),
        ({"smoker": [2, 1, 0, 0]}, "row 1: '2' is neither yes nor no"),
    ],
)
def test_a_column_of_another_type_is_refused_by_name(changes, said):
    if said is None:  # texts of a frame are read as those of a CSV file are
        assert tables.of_frame(arrow(**changes), SCHEMA).x[:, 0].tolist() == pytest.approx([0.0, 0.2, 0.4, 0.6])
        return
    with pytest.raises(Refused) as refused:
        tables.of_frame(arrow(**changes), SCHEMA)
    assert said in refused.value.what


def test_whatever_speaks_arrow_is_a_frame():
    class Frame:
        def __arrow_c_stream__(self, requested_schema=None):
            return arrow().__arrow_c_stream__(requested_schema)

    assert tables.is_frame(Frame())
    assert not tables.is_frame([1])
    np.testing.assert_array_equal(tables.of_frame(Frame(), SCHEMA).x, np.array(ENCODED, np.float32))


def test_parquet_is_read(tmp_path):
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(arrow(), path)
    np.testing.assert_array_equal(tables.read(path, SCHEMA).x, np.array(ENCODED, np.float32))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Refused, match=r"t\.parquet cannot be read as parquet"):
        tables.read(path, SCHEMA)


def test_a_damaged_text_in_a_file_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(arrow(), path, compression="none", use_dictionary=False, write_statistics=False)
    whole = path.read_bytes()
    at = whole.index(b"K.1")
    path.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
    with pytest.raises(Refused, match=r"t\.parquet cannot be read"):
        tables.read(path, SCHEMA)


def test_a_file_that_claims_to_be_vast_is_refused_before_memory_is_taken(tmp_path, monkeypatch):
    pa.parquet.write_table(arrow(), tmp_path / "t.parquet")
    monkeypatch.setattr(devices, "free_memory", lambda: 100)
    with pytest.raises(Refused, match="of memory are free"):
        tables.read(tmp_path / "t.parquet", SCHEMA)


def test_what_is_no_table_or_not_there_is_refused(tmp_path):
    with pytest.raises(Refused, match="does not exist"):
        tables.read(tmp_path / "t.csv", SCHEMA)
    with pytest.raises(Refused, match="is not a table"):
        tables.read(tmp_path / "t.xlsx", SCHEMA)


def test_without_pyarrow_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Refused, match=r"pip install 'privsgp\[tables\]'"):
        tables.of_frame(object(), SCHEMA)


def test_for_prediction_no_target_is_needed(tmp_path):
    table = tables.of_frame(arrow().drop_columns("back"), SCHEMA, labelled=False)
    assert table.y is None
    assert tables.of_frame(arrow(back=["?"] * 4), SCHEMA, labelled=False).x.tolist() == table.x.tolist()


def test_a_number_as_target_is_scaled_and_clipped():
    values = {"target": {"column": "y", "centre": 10, "scale": 2, "range": [0, 20]}}
    schema = schemas.parse(values | {"columns": {"x": {"type": "number", "range": [0, 1]}}})
    table = tables.of_frame(pa.table({"x": [0.5] * 3, "y": [12.0, 30.0, 0.0]}), schema)
    assert table.y.tolist() == [1.0, 5.0, -5.0]
    assert table.notes == ["data: y: 1 outside the range, clipped"]


ROW = st.fixed_dictionaries(
    {
        "age": st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
        "blood sugar": st.floats(allow_nan=False, allow_infinity=False),
        "code": st.one_of(st.none(), st.text(max_size=3)),
        "smoker": st.one_of(st.none(), st.booleans()),
        "back": st.sampled_from(["no", "yes"]),
    }
)


@given(rows=st.lists(ROW, min_size=1, max_size=6), at=st.integers(0, 5))
def test_a_row_becomes_the_same_numbers_whatever_the_other_rows_are(rows, at):
    """The law that privacy rests on: one record changes one row, within bounds that the schema alone sets."""
    at %= len(rows)
    types = pa.schema(
        [("age", "double"), ("blood sugar", "double"), ("code", "string"), ("smoker", "bool"), ("back", "string")]
    )
    whole = tables.of_frame(pa.Table.from_pylist(rows, types), SCHEMA)
    alone = tables.of_frame(pa.Table.from_pylist([rows[at]], types), SCHEMA)
    np.testing.assert_array_equal(whole.x[at], alone.x[0])
    assert whole.y[at] == alone.y[0]
    assert whole.x.shape[1] == SCHEMA.width
    assert np.abs(whole.x).max() <= schemas.REACH


def test_records_in_another_file_are_noticed(tmp_path):
    own, copy, other = (tmp_path / f"{name}.csv" for name in ("own", "copy", "other"))
    own.write_text(HEADER + ROWS)
    copy.write_text(HEADER + "".join(reversed(ROWS.splitlines(keepends=True))).replace(",yes", ",no"))
    other.write_text(HEADER + "x,1,5.1,1,no,no\ny,2,5.2,1,no,no\nz,3,5.3,1,no,no\n")
    assert holds_records_of(own, [copy], Form(schema=SCHEMA))
    assert not holds_records_of(own, [other], Form(schema=SCHEMA))


PUBLIC = "id,age,when,ward,smoker,kind,back\n" + "".join(
    f"p{i},{20 + i},{'' if i % 9 else 2026},{'ab'[i % 2]},{'yes' if i % 3 else 'no'},"
    f"{'xy'[i % 2] if i else 'NA'},{i % 2}\n"
    for i in range(40)
)


def drafted(text, target):
    from pyarrow.csv import read_csv

    return draft.draft(read_csv(io.BytesIO(text.encode())), target, "public.csv")


def test_a_draft_is_a_schema_of_what_it_was_drafted_from():
    text = drafted(PUBLIC, "back")
    schema = schemas.parse(tomllib.loads(text))
    kinds = {name: column.type for name, column in schema.columns.items()}
    assert kinds == {
        "id": "ignored", "age": "number", "when": "ignored", "ward": "category", "smoker": "yes/no", "kind": "category",
    }  # fmt: skip
    assert schema.target.classes == ["0", "1"]
    assert schema.columns["age"].range == [0, 80]  # a deviation beyond what was seen, then a round number
    assert schema.columns["age"].centre == 40
    assert '"ignored" }  # most of its texts are different' in text
    with pytest.raises(Refused, match="--target gone"):
        drafted(PUBLIC, "gone")
    with pytest.raises(Refused, match="--target id"):
        drafted(PUBLIC, "id")


@given(
    st.lists(st.floats(-1e6, 1e6).map(lambda v: float(f"{v:.3g}")), min_size=4, max_size=30, unique=True),
    st.sampled_from([0, 37, 1e9]),
)
def test_a_draft_shows_no_extreme(values, offset):
    values = sorted({value + offset for value in values})
    if len(values) < 4 or not np.std(values) > 1e-3:
        return
    table = pa.table({"age": [*values, None], "back": ["no", "yes", *["no"] * (len(values) - 1)]})
    text = draft.draft(table, "back", "public.csv")
    low, high = schemas.parse(tomllib.loads(text)).columns["age"].range
    assert low <= values[0] < values[-1] <= high
    assert low < values[0] or low == 0
    assert high > values[-1] or high == 0
    body = text.partition("[columns]")[2]  # one line: range, centre and scale, which are rounded, and words
    assert "…" not in body
    assert body.rstrip().endswith("}  # some values are missing")


def people(count, seed, **more):
    rng = np.random.default_rng(seed)
    age, smoker, back = rng.integers(20, 90, count), rng.random(count) < 0.2, rng.random(count) < 0.3
    return pa.table({"id": np.arange(count), "age": age, "smoker": smoker, "back": back} | more)


def as_csv(table, order=slice(None)):
    """Return a table as its CSV file is read, rows in another order."""
    rows = [[str(value) for value in row.values()] for row in table.to_pylist()][order]
    return pa.table(
        {name: list(values) for name, values in zip(table.column_names, zip(*rows, strict=True), strict=True)}
    )


def test_the_same_rows_are_known_in_any_order_and_format():
    own = people(100, 1, sugar=np.random.default_rng(3).normal(5, 1, 100).astype(np.float32))
    again = as_csv(own, slice(None, None, -1)).select(own.column_names[::-1])
    assert set(same_records.digests(again, ["age"])) == set(same_records.digests(own, ["age"]))
    for copied in (again, again.slice(0, 60), again.drop_columns("sugar"), pa.concat_tables([own, own])):
        assert same_records.same_rows(copied, [people(80, 2), own])
    several = [people(80, seed) for seed in range(4)]
    assert same_records.same_rows(pa.concat_tables(several), several)


def counts(count, seed):
    """Return a table in which all values but two are whole numbers, and as good as all different."""
    rng = np.random.default_rng(seed)
    values = {"platelets": (250_000, 60_000), "weight": (3400, 500), "dose": (50_000, 20_000)}
    whole = {name: rng.normal(*law, count).astype(int) for name, law in values.items()}
    return pa.table(
        {"id": np.arange(count)} | whole | {"sex": rng.choice(["f", "m"], count), "y": np.arange(count) % 2}
    )


@pytest.mark.parametrize("count", [30, 400])
def test_a_table_of_whole_numbers_is_known(count):
    own, others = counts(count, 0), [counts(count, 1), counts(count, 2)]
    renamed = own.rename_columns([name.title() for name in own.column_names])
    anew = own.set_column(0, "id", pa.array(np.arange(count)[::-1] + 7))
    for copied in (
        own.slice(0, 15),
        own.slice(1),
        anew,
        anew.slice(1),
        own.slice(3, 1),
        own.drop_columns("id"),
        renamed,
    ):
        assert same_records.same_rows(copied, [others[0], own, others[1]])
    for honest in (counts(20, 7), counts(count, 8), counts(1, 9)):
        assert not same_records.same_rows(honest, [own, *others])
        assert not same_records.same_rows(honest.drop_columns("id"), [own, *others])


def test_empty_tables_are_nobodys():
    empty, odd = counts(30, 0).slice(0, 0), pa.table({"list": [[1], [2]]})
    assert not same_records.same_rows(empty, [counts(30, 0), empty])
    assert not same_records.same_rows(odd, [counts(30, 0)])
    assert same_records.same_rows(odd, [odd])
    assert not same_records.drafted_from(same_records.digests(counts(30, 0), ()), empty, ["y"])
    assert not same_records.drafted_from(same_records.digests(counts(30, 0), ()), odd, ["y"])


USED = ["platelets", "weight", "dose", "sex", "y"]


@pytest.mark.parametrize("count", [30, 100, 3000])
@pytest.mark.parametrize("also", [["id"], []])
def test_a_schema_of_nearly_a_sites_table_is_known(count, also):
    """Without its numbers, another column or a row; with them, at a site that has left them out."""
    own = counts(count, 0)
    for public in (own, own.slice(1), own.drop_columns("id"), own.drop_columns("weight"), as_csv(own, slice(3, None))):
        drafted = same_records.digests(public, also)
        used = [name for name in USED if name in public.column_names]
        for table in (own, own.drop_columns("id")):
            assert same_records.drafted_from(drafted, table, used)
        assert same_records.drafted_from(drafted, own, [*used, "id"])
        assert not same_records.drafted_from(drafted, counts(count, 5), used)


def test_a_large_table_is_known_by_its_schema_after_a_few_changes():
    everybody = people(1015, 1, sugar=np.random.default_rng(3).normal(5, 1, 1015).astype(np.float32))
    own, used = everybody.slice(0, 1000), ["age", "smoker", "back", "sugar"]
    drafted = same_records.digests(own, ())
    assert [one.count("-") for one in drafted] == [15, 15]
    for later in (everybody, own.slice(15), as_csv(own).drop_columns("id")):
        assert same_records.drafted_from(drafted, later, used)


@pytest.mark.parametrize("columns", [["id", "smoker", "back"], ["age", "smoker", "back"], ["smoker", "back"]])
@pytest.mark.parametrize("sizes", [(40, 30), (300, 300), (5000, 100), (100, 5000)])
def test_other_people_are_not_the_same_rows_where_columns_take_few_values(columns, sizes):
    for seed in range(20):
        public, own = (people(count, 2 * seed + at).select(columns) for at, count in enumerate(sizes))
        assert not same_records.same_rows(public, [own])
        assert not same_records.drafted_from(same_records.digests(public, ["id"]), own, columns)
        assert not same_records.drafted_from(same_records.digests(public, ()), own, columns)
    few = same_records.digests(people(5000, 1).select(["id", "smoker", "back"]), ["id"])
    assert not any("-" in one for one in few)  # counts of four different rows could be guessed from digests of parts


def test_a_data_dictionary_will_do():
    text = (
        "column,type,min,max,values,missing\nage,number,0,120,,60\nsex,category,,,f|m,other\nsmoker,yes/no,,,,no\n"
        "id,ignored,,,,\nback,category,,,no|yes,\n"
    )
    schema = schemas.parse(tomllib.loads(drafted(text, "back")))
    assert schema.target.classes == ["no", "yes"]
    assert schema.columns["age"].missing == 60
    assert schema.columns["smoker"].missing is False
    with pytest.raises(Refused, match="no min and max of 'age'"):
        drafted(text.replace("0,120", ","), "back")
