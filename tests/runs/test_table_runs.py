"""Runs on tables: from files beside run.toml, from Python, with names of sites; what was counted stays at the site."""

from __future__ import annotations

import copy
import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from torch import nn

import privsgp
import runs
from privsgp.accounting.statements import statements
from privsgp.data import tables
from privsgp.errors import Refused
from privsgp.runs import config as configs
from privsgp.runs import problem as problems

SCHEMA = """
[target]
column = "back"
classes = ["no", "yes"]
[columns]
age = { type = "number", range = [0, 100], missing = 50 }
ward = { type = "category", values = ["a", "b.1"] }
id = { type = "ignored" }
"""
RUN = """
name = "tables"
seed = 1
[data]
schema = "schema.toml"
sites = ["aachen", "basel", "cork"]
path = "{site}.csv"
test_path = "test.csv"
[model]
name = "logistic"
[graph]
name = "complete"
[privacy]
sigma = 0.05
[algorithm]
name = "privsgp"
batch = 8
steps = 6
[engine]
device = "cpu"
"""


def rows(count, seed):
    rng = np.random.default_rng(seed)
    age, ward = rng.integers(0, 120, count), rng.choice(["a", "b.1", "odd"], count)
    return [f"secret-{i},{'' if i == 3 else age[i]},{ward[i]},{'yes' if age[i] > 50 else 'no'}" for i in range(count)]


def write(folder, name, count, seed):
    (folder / name).write_text("\n".join(["id,age,ward,back", *rows(count, seed)]) + "\n")


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "schema.toml").write_text(SCHEMA)
    (folder / "run.toml").write_text(RUN)
    for seed, (name, count) in enumerate({"aachen": 40, "basel": 30, "cork": 20, "test": 50}.items()):
        write(folder, f"{name}.csv", count, seed)
    return folder


def train(place, *options, out="run"):
    return runs.command("train", place / "run.toml", "--out", place / out, *options)


def test_paths_are_relative_to_run_toml_and_sites_have_names(place, monkeypatch):
    monkeypatch.chdir("/")
    ran = train(place)
    assert ran.code == 0, ran.err
    summary = json.loads((place / "run" / "summary.json").read_text())
    assert summary["sites"] == ["aachen", "basel", "cork"]
    assert summary["samples"] == [40, 30, 20]
    assert summary["test_accuracy"] is not None
    assert [s.name for s in statements(place / "run")] == ["node 0 (aachen)", "node 1 (basel)", "node 2 (cork)"]
    assert "0 aachen" in runs.command("ledger", place / "run").out
    assert "aachen ε = " in ran.out
    page = (place / "run" / "report.html").read_text()
    assert "cork" in page


def test_what_was_counted_is_told_on_the_sites_own_terminal_and_is_in_no_file(place):
    ran = train(place, "--set", "seed=")  # a private run
    assert ran.code == 0, ran.err
    assert "aachen.csv: age: 1 missing, filled in and marked" in ran.err
    assert "cork.csv: ward:" in ran.err
    for file in (file for file in (place / "run").rglob("*") if file.is_file()):
        text = file.read_bytes().decode(errors="replace")
        for word in ("secret-", "clipped", "taken as", "1 missing", "not in the list"):
            assert word not in text.replace("is clipped", ""), file


def test_the_run_folder_knows_the_schema_and_goes_on_with_no_other(place):
    assert train(place, "--set", "algorithm.steps=3", out="a").code == 0
    config = configs.started(place / "a" / "config.toml")
    assert config.data.schema == privsgp.Schema.read(place / "schema.toml")
    (place / "schema.toml").write_text(SCHEMA.replace("[0, 100]", "[0, 90]"))
    ran = train(place, "--set", "algorithm.steps=3", "--resume", out="a")
    assert ran.code == 2
    assert "data.schema.columns.age.range" in ran.err


def test_a_schema_is_shared_and_a_path_is_not(place):
    config = configs.read(place / "run.toml")
    shared = config.shared()
    assert shared["data"]["schema"]["columns"]["age"]["range"] == [0, 100]
    assert not {"path", "test_path", "test"} & set(shared["data"])
    (place / "schema.toml").write_text(SCHEMA.replace("[0, 100]", "[0, 90]"))
    assert configs.read(place / "run.toml").shared_hash() != config.shared_hash()
    assert configs.parse(shared).shared() == shared  # as an agreement of sites asks


def test_a_configuration_keeps_where_its_paths_start(place):
    config = configs.read(place / "run.toml")
    assert config.base == place
    assert config.with_section("algorithm", steps=9).base == place
    assert configs.started(place / "run.toml").base == place
    assert copy.deepcopy(config).base == place
    assert problems.load_problem(config.with_section("algorithm", steps=9)).samples == [40, 30, 20]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("data.schema=", "data.path = '{site}.csv' without data.schema"),
        ("data.classes=2", "data.classes = 2"),
        ("data.path=site.csv", "has no {node}"),
        ("data.path={site}.npz", "data.path = "),
        ("data.nodes=4", "'cork'] with data.nodes = 4"),
        ('data.sites=["a","a","b"]', "data.sites = ['a', 'a', 'b']"),
        ('data.sites=["a","../b","c"]', "data.sites.1 = '../b'"),
        ("data.schema=gone.toml", "cannot read the schema"),
        ("data.test_path=cork.csv", "is a node's own file"),
        ("data.path={site}-gone.csv", "aachen-gone.csv does not exist"),
        ("model.loss=mse", "the loss is for regression"),
    ],
)
def test_what_cannot_be_is_refused(place, change, said):
    ran = train(place, "--set", change)
    assert ran.code == 2
    assert said in ran.err
    assert not (place / "run").exists()


def test_a_copy_of_a_sites_file_is_no_public_test_data(place):
    shutil.copy(place / "basel.csv", place / "public.csv")
    assert "is a node's own file" in train(place, "--set", "data.test_path=public.csv").err
    head, *rows = (place / "basel.csv").read_text().splitlines()
    (place / "public.csv").write_text("\n".join([head, *rows[::-1]]) + "\n")  # saved anew, in another order
    assert "are a node's own" in train(place, "--set", "data.test_path=public.csv", "--set", "seed=").err


def test_a_sites_records_in_another_order_are_no_public_test_data(place):
    head, *lines = (place / "basel.csv").read_text().splitlines()
    (place / "public.csv").write_text("\n".join([head, *lines[:3:-1]]) + "\n")
    ran = train(place, "--set", "data.test_path=public.csv", "--set", "seed=")
    assert "are a node's own" in ran.err
    assert not (place / "run").exists()


def test_a_table_that_is_divided_is_no_public_test_data(place):
    changes = ("data.name=basel.csv", "data.path=", "data.sites=", "data.nodes=2", "data.test_path=basel.csv")
    assert "is a node's own file" in train(place, *(word for one in changes for word in ("--set", one))).err


def test_public_test_data_are_said_to_be(place):
    config = configs.read(place / "run.toml", ["seed="])
    assert config.test_is_public
    assert not configs.read(place / "run.toml", ["seed=", "data.test=private"]).test_is_public
    assert "data.test_path: peers" in problems.test_notes(config, problems.load_problem(config))[0]


def test_a_plan_looks_at_public_tables_and_at_no_sites_own(place):
    write(place, "public.csv", 60, 9)
    planned = ["plan", place / "run.toml", "--set", "privacy.sigma=", "--set", "privacy.epsilon=[1.0,2.0,2.0]"]
    ran = runs.command(*planned, "--set", "plan.data=public.csv")
    assert ran.code == 0, ran.err
    for name, count in (("aachen", 40), ("basel", 30), ("cork", 20)):
        assert re.search(rf"│ {name} +│ +{count} │", ran.out)
    assert "Theorem" not in ran.out
    ran = runs.command(*planned, "--set", "plan.data=basel.csv")
    assert ran.code == 2
    assert "the nodes' own data" in ran.err


def test_one_table_can_be_divided(place):
    ran = train(
        place, "--set", "data.path=", "--set", "data.sites=", "--set", "data.nodes=2", "--set", "data.name=aachen.csv"
    )
    assert ran.code == 0, ran.err
    assert json.loads((place / "run" / "summary.json").read_text())["samples"] == [20, 20]


SETTINGS = {"seed": 1, "privacy": {"sigma": 0.05}, "graph": "complete", "engine": {"device": "cpu"}}


def model(width):
    torch.manual_seed(0)
    return nn.Linear(width, 2)


def test_frames_and_files_from_python_are_the_same(place):
    schema = privsgp.Schema.read(place / "schema.toml")
    settings = SETTINGS | {"algorithm": {"name": "privsgp", "batch": 8, "steps": 6}}
    names = ("aachen", "basel", "cork")
    frames = {name: tables.read_arrow(place / f"{name}.csv") for name in names}
    files = {i: place / f"{name}.csv" for i, name in enumerate(names)}
    test = place / "test.csv"
    of_frames = privsgp.train(
        model(schema.width), frames, test=tables.read_arrow(test), schema=schema, out=place / "a", **settings
    )
    of_files = privsgp.train(
        model(schema.width), files, test=test, schema=place / "schema.toml", out=place / "b", **settings
    )
    assert of_frames.summary["sites"] == list(names)
    assert of_frames.summary["test_accuracy"] == of_files.summary["test_accuracy"]
    torch.testing.assert_close(of_frames.model.weight, of_files.model.weight, rtol=0, atol=0)


def test_a_frame_without_a_schema_is_refused(place):
    with pytest.raises(Refused, match="data has no schema"):
        privsgp.train(model(4), pa.table({"a": [1]}), out=place / "a", nodes=1, **SETTINGS)


def test_check_tells_the_site_what_would_happen(place):
    ran = runs.command("data", "check", place / "schema.toml", place / "aachen.csv")
    assert ran.code == 0, ran.err
    assert "for this site alone" in ran.out
    assert "age: 1 missing" in ran.out
    told = json.loads(runs.command("data", "check", place / "schema.toml", place / "aachen.csv", "--json").out)
    assert told["rows"] == 40
    assert told["counts"]["age"]["missing"] == 1
    assert sum(told["classes"].values()) == 40
    assert sorted(file.name for file in place.iterdir()) == [
        "aachen.csv",
        "basel.csv",
        "cork.csv",
        "run.toml",
        "schema.toml",
        "test.csv",
    ]


def init(place, folder, *options):
    given = ["--target=back", "--sites=aachen,basel,cork", f"--path={place}/{{site}}.csv", "--epsilon=1,2,2"]
    return runs.command("init", "--public", place / "test.csv", *given, "--out", folder, *options)


def test_what_init_writes_can_be_trained(place):
    ran = init(place, place / "first", "--test", place / "test.csv")
    assert ran.code == 0, ran.err
    changes = [f"--set=algorithm.{key}" for key in ("steps=4", "batch=8", "step_size=0.1")]
    ran = runs.command("train", place / "first" / "run.toml", "--set=seed=0", *changes, "--out", place / "run")
    assert ran.code == 0, ran.err
    again = init(place, place / "first")
    assert again.code == 2
    assert "run.toml is there already" in again.err


def test_init_for_a_study_needs_sizes_and_no_files(place):
    ran = init(place, place / "first", "--sizes=40,30,20")
    assert ran.code == 0, ran.err
    config = configs.read(place / "first" / "run.toml")
    assert (config.data.sizes, config.data.path) == ([40, 30, 20], None)
    assert init(place, place / "second", "--sizes=40,30").code == 2
    assert not list((place / "second").glob("*"))


def test_init_leaves_nothing_behind_where_it_refuses(place):
    for options in (("--epsilon=1,2",), ("--sites=a",), ("--path=x.npz",), ("--path=x.csv",)):
        assert init(place, place / "first", *options).code == 2
        assert not list((place / "first").glob("*"))


def another_table(place, how):
    """Return a file with aachen's rows."""
    own, other = place / "aachen.csv", place / ("other.parquet" if how == "format" else "other.csv")
    if how == "path":
        return place / "." / ".." / place.name / "aachen.csv"
    if how in ("symbolic link", "hard link"):
        (other.symlink_to if how == "symbolic link" else other.hardlink_to)(own)
    elif how == "copy":
        shutil.copy(own, other)
    elif how == "order":
        head, *lines = own.read_text().splitlines()
        other.write_text("\n".join([head, *lines[::-1]]) + "\n")
    elif how == "format":
        pyarrow.parquet.write_table(pyarrow.csv.read_csv(own), other)
    elif how == "all sites":
        texts = [(place / f"{name}.csv").read_text().split("\n", 1) for name in ("aachen", "basel", "cork")]
        other.write_text(texts[0][0] + "\n" + "".join(rows for _, rows in texts))
    return other


COPIES = ["path", "symbolic link", "hard link", "copy", "order", "format"]


@pytest.mark.parametrize("how", [*COPIES, "all sites"])
def test_init_takes_no_sites_table_for_a_public_one(place, how):
    ran = init(place, place / "first", "--public", another_table(place, how))
    assert ran.code == 2
    assert "has the rows of a site's table" in ran.err
    assert not (place / "first").exists()


def test_init_looks_for_sites_tables_in_the_working_folder_too(place, monkeypatch):
    monkeypatch.chdir(place)
    ran = init(place, "first", "--public=aachen.csv", "--path={site}.csv")
    assert ran.code == 2
    assert "has the rows of a site's table" in ran.err


@pytest.mark.parametrize("how", ["path", "order", "format"])
def test_no_site_trains_by_a_schema_that_was_drafted_from_its_table(place, how):
    drafted = runs.command("data", "schema", another_table(place, how), "--target=back")
    ward = '"category", values = ["a", "b.1", "odd"]'
    assert ward in drafted.out
    (place / "schema.toml").write_text(drafted.out.replace(ward, '"ignored"'))  # somebody has edited it
    for ran in (train(place), train(place, "--set=seed="), runs.command("data", "check", *on_aachen(place))):
        assert ran.code == 2
        assert "aachen.csv: the schema was drafted from these rows" in ran.err + ran.out
    for one in ("aachen.csv", pyarrow.csv.read_csv(place / "aachen.csv")):
        own = place / one if isinstance(one, str) else one
        with pytest.raises(Refused, match="was drafted from these rows"):
            privsgp.train(
                nn.Linear(2, 2), {"aachen": own}, schema=place / "schema.toml", seed=1, privacy={"sigma": 0.1},
                out=place / "python",
            )  # fmt: skip


@pytest.mark.parametrize("how", ["without its names", "without its wards", "without a row"])
def test_no_site_trains_by_a_schema_of_nearly_its_table(place, how):
    own = pyarrow.csv.read_csv(place / "aachen.csv")
    own = own.append_column("sugar", pa.array(np.random.default_rng(1).normal(5, 1, 40).round(3)))
    pyarrow.csv.write_csv(own, place / "aachen.csv")
    nearly = {"without a row": own.slice(1), "without its wards": own.drop_columns("ward")}
    pyarrow.csv.write_csv(nearly.get(how, own.drop_columns("id")), place / "public.csv")
    (place / "schema.toml").write_text(runs.command("data", "schema", place / "public.csv", "--target=back").out)
    ran = train(place)
    assert ran.code == 2
    assert "aachen.csv: the schema was drafted from these rows" in ran.err


def test_init_takes_no_rows_of_whole_numbers_for_public_ones(place):
    rng = np.random.default_rng(0)
    for name in ("aachen", "basel", "cork", "other"):
        values = {key: rng.integers(10_000, 90_000, 30) for key in ("platelets", "weight")}
        table = pa.table(values | {"back": np.arange(30) % 2})
        pyarrow.csv.write_csv(table, place / f"{name}.csv")
        pyarrow.csv.write_csv(table.slice(0, 15), place / f"half-{name}.csv")
    for public in ("half-aachen.csv", "half-basel.csv"):
        assert "has the rows of a site's table" in init(place, place / "first", "--public", place / public).err
    assert init(place, place / "first", "--public", place / "half-other.csv").code == 0


OTHER_SCHEMAS = {
    "scale": ("range = [0, 100], missing = 50", "range = [0, 130], missing = 40"),
    "inputs": ('{ type = "category", values = ["a", "b.1"] }', '{ type = "ignored" }'),
    "columns": ('id = { type = "ignored" }', 'visit = { type = "ignored" }'),
}


@pytest.mark.parametrize("how", OTHER_SCHEMAS)
@pytest.mark.parametrize("seed", ["", "7"])
def test_another_schema_makes_no_new_records(place, how, seed):
    """Other scales, other inputs from the same file, other columns beside the same inputs."""
    for number, name in enumerate(("aachen", "basel", "cork")):
        lines = [f"secret-{i},{i + 0.137 * number:.3f},{'ab'[i % 2]},{('no', 'yes')[i % 3 > 0]}" for i in range(1, 31)]
        (place / f"{name}.csv").write_text("\n".join(["id,age,ward,back", *lines]) + "\n")
    assert train(place, f"--set=seed={seed}", "--set=name='one'", out="one").code == 0
    (place / "schema.toml").write_text(SCHEMA.replace(*OTHER_SCHEMAS[how]))
    if how == "columns":
        for name in ("aachen", "basel", "cork", "test"):
            text = (place / f"{name}.csv").read_text()
            (place / f"{name}.csv").write_text(text.replace("id,", "visit,").replace("secret-", "2026-"))
    ran = train(place, "--set=seed=", out="two")
    assert ran.code == 0
    assert ("90 of these records are also in 'one'" if not seed else "simulations on these records: one") in ran.err


def test_another_schema_makes_no_new_records_from_python(place, caplog):
    frames = {name: pyarrow.csv.read_csv(place / f"{name}.csv") for name in ("aachen", "basel", "cork")}
    for run, text in {"one": SCHEMA, "two": SCHEMA.replace("[0, 100]", "[0, 131]")}.items():
        (place / "schema.toml").write_text(text)
        schema = privsgp.Schema.read(place / "schema.toml")
        privsgp.train(
            nn.Linear(schema.width, 2), frames, schema=schema, out=place / run,
            privacy={"sigma": 0.5}, algorithm={"name": "privsgp", "batch": 8, "steps": 2},
        )  # fmt: skip
    noted = [record.getMessage() for record in caplog.records if "of these records are also in" in record.getMessage()]
    assert len(noted) == 1
    assert int(noted[0].split()[0]) >= 90  # more if records of two sites are alike


def on_aachen(place):
    return place / "schema.toml", place / "aachen.csv"


def test_a_schema_drafted_from_public_rows_goes_with_the_run(place):
    (place / "schema.toml").write_text(runs.command("data", "schema", place / "test.csv", "--target=back").out)
    assert train(place).code == 0  # the public table is its test data too
    schema = configs.read(place / "run.toml").data.schema
    assert configs.read(place / "run" / "config.toml").data.schema == schema
    assert schema.drafted is not None
    told = privsgp.Schema.read(place / "schema.toml").model_dump()
    assert privsgp.Schema(**{key: value for key, value in told.items() if key != "drafted"}).digest != schema.digest
    (place / "run.toml").write_text(
        RUN.replace('sites = ["aachen", "basel", "cork"]\npath = "{site}.csv"', "nodes = 2")
        .replace("[data]", '[data]\nname = "test.csv"')
        .replace('test_path = "test.csv"', "")
    )
    assert train(place, out="divided").code == 0  # a simulation divides a public table among its nodes
    refused = train(place, "--set=seed=", out="private")
    assert "test.csv: the schema was drafted from these rows" in refused.err


def test_sites_in_another_order_are_other_records_on_a_node(place):
    turned = '--set=data.sites=["basel","aachen","cork"]'
    named = configs.read(place / "run.toml", [turned[6:], "data.path=site-{node}.csv"])
    as_before = configs.read(place / "run.toml", ["data.path=site-{node}.csv"])
    assert problems.layout(named) == problems.layout(as_before)  # files by number: names move nothing


def test_names_from_python_say_whose_records_lie_where(place):
    one, other = (
        {"privacy": {"sigma": 1.0}, "data": {"name": "sites", "sites": names}} for names in (["a", "b"], ["b", "a"])
    )
    assert problems.layout(configs.parse(one)) != problems.layout(configs.parse(other))


DAYS = SCHEMA.replace(
    'column = "back"\nclasses = ["no", "yes"]', 'column = "days"\ncentre = 10\nscale = 4\nrange = [0, 60]'
)


@pytest.fixture
def days(place):
    """Return a study that predicts days from the age: 0.2 · age + 3, ± 1."""
    (place / "schema.toml").write_text(DAYS)
    linear = RUN.replace('"logistic"', '"linear"\nloss = "mse"').replace("steps = 6", "steps = 60\nstep_size = 0.2")
    (place / "run.toml").write_text(linear)
    for seed, (name, count) in enumerate({"aachen": 40, "basel": 30, "cork": 20, "test": 50}.items()):
        rng = np.random.default_rng(seed)
        lines = [
            f"i{i},{age},a,{0.2 * age + 3 + rng.uniform(-1, 1):.3f}" for i, age in enumerate(rng.uniform(0, 100, count))
        ]
        (place / f"{name}.csv").write_text("\n".join(["id,age,ward,days", *lines]) + "\n")
    return place


def test_predictions_and_metrics_of_a_regression_are_in_the_unit_of_the_table(days):
    assert train(days).code == 0
    result, test = privsgp.load(days / "run"), days / "test.csv"
    said, y = result.predict(test), np.array([float(line.split(",")[3]) for line in test.read_text().split()[1:]])
    mae = np.abs(said - y).mean()
    assert np.corrcoef(said, y)[0, 1] > 0.9
    assert abs(said.mean() - y.mean()) < 2  # scaled values would be about 0.8
    assert result.summary["mae"] == pytest.approx(mae, rel=1e-5)
    assert result.summary["baseline"]["mae"] == pytest.approx(np.abs(y - y.mean()).mean(), rel=1e-5)
    for found in (result.evaluate(test), result.evaluate((tables.read_arrow(test), y))):
        assert found["mae"] == pytest.approx(mae, rel=1e-5)
    printed = runs.command("predict", days / "run", test).out.splitlines()
    assert [float(line.split(",")[1]) for line in printed[1:]] == pytest.approx(said.tolist(), rel=1e-4)
    shown = train(days, out="again").out
    assert "RMSE" in shown
    assert "test loss" not in shown


def test_a_renamed_column_that_names_persons_is_still_named(tmp_path):
    """A dialect took the warning away with the name."""
    columns = 'age = { type = "number", range = [0, 120] }\npatient_id = { type = "ignored" }'
    (tmp_path / "schema.toml").write_text(f'[target]\ncolumn = "ill"\nclasses = ["no", "yes"]\n[columns]\n{columns}')
    rows = [f"p{i // 2};{40 + i},5;{'ja' if i % 3 else 'nein'}" for i in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["Fallnr;Alter;krank", *rows]) + "\n")
    check = ("data", "check", tmp_path / "schema.toml", tmp_path / "a.csv")
    first = runs.command(*check).out
    assert '[columns] "THIS SITE\'S NAME" = "age"' in first
    dialect = '[columns]\nFallnr = "patient_id"\nAlter = "age"\nkrank = "ill"\n'
    (tmp_path / "a.dialect.toml").write_text(dialect)
    assert 'decimal = ","' in runs.command(*check).out
    dialect = 'decimal = ","\n' + dialect + '[values]\nill = { ja = "yes", nein = "no" }\n'
    (tmp_path / "a.dialect.toml").write_text(dialect)
    ran = runs.command(*check)
    assert ran.code == 0, ran.out
    assert "column 'patient_id': 40 rows have 20 different values" in ran.out


def test_check_lists_all_problems_at_once_with_lines_from_the_schema(tmp_path):
    columns = """
    age = { type = "number", range = [0, 80] }
    sugar = { type = "number", range = [0, 10], missing = 5 }
    ward = { type = "category", values = ["surgery", "medicine"] }
    smoker = { type = "yes/no" }
    code = { type = "number", range = [0, 1e6] }
    crea = { type = "number", range = [0, 9] }
    id = { type = "ignored" }
    """
    head = '[target]\ncolumn = "back"\nclasses = ["no", "yes"]\n[columns]\n'
    (tmp_path / "schema.toml").write_text(head + "\n".join(map(str.strip, columns.splitlines())))
    rows = [
        f"p{i // 3 * 2 + i % 3 // 2},{'' if i == 5 else 30 + i % 9},"
        f"{'' if i % 2 else -9 if i % 20 == 4 else 4 + i / 100},Chirurgie,"
        f"{'vielleicht' if i == 7 else 'yes'},{7919 * i % 100003},{'unbekannt' if i == 2 else 'no'},secret{i}"
        for i in range(60)
    ]
    (tmp_path / "a.csv").write_text("\n".join(["id,age,sugar,ward,smoker,code,back,note", *rows, rows[-1]]) + "\n")
    ran = runs.command("data", "check", tmp_path / "schema.toml", tmp_path / "a.csv")
    assert ran.code == 2
    said = [
        "has no column 'crea'", 'absent = ["crea"]', "has a column 'note'", 'drop = ["note"]', "row 6: '' is a missing",
        'age = { type = "number", range = [0, 80], missing = 40 }', "'vielleicht' is neither yes nor no",
        "'unbekannt' is none of the classes", 'back = { "THIS SITE\'S WORD" = "no" }',
        "column 'ward': 61 of 61 values are not in the list", 'ward = { "THIS SITE\'S WORD" = "surgery" }',
        "column 'sugar': 31 of 61 values are missing", "column 'sugar': 3 values are -9", "1 rows repeat another row",
        "column 'id': 61 rows have 40 different values",
    ]  # fmt: skip
    for one in said:
        assert one in ran.out, one
    assert "column 'code'" not in ran.out  # a row is there twice, so it names no rows
    shown = ran.out
    assert shown.rindex("REFUSED") < shown.index("look at this")
    lines = [line for line in shown.splitlines() if "→" in line]
    assert not [line for line in lines if "secret" in line or "Chirurgie" in line or "unbekannt" in line]
    (tmp_path / "a.csv").write_text("\n".join(["id,age,sugar,ward,smoker,code,back,note", *rows]) + "\n")
    ran = runs.command("data", "check", tmp_path / "schema.toml", tmp_path / "a.csv", "--json")
    problems = json.loads(ran.out)["problems"]
    found = next(one for one in problems if "column 'code': 60 different whole numbers" in one["what"])
    assert 'code = { type = "ignored" }' in found["remedy"]
    assert not found["refused"]


def test_a_draft_takes_a_few_codes_among_numbers_as_missing(place):
    head = "number,crea,grade,share,back"
    lines = [
        f"{i + 1},{'k.A.' if i % 11 == 0 else round(0.5 + i / 50, 2)},{i % 4},{i**2 / 90**2},{'yes' if i % 3 else 'no'}"
        for i in range(90)
    ]
    (place / "public.csv").write_text("\n".join([head, *lines]) + "\n")
    text = runs.command("data", "schema", place / "public.csv", "--target=back").out
    (place / "drafted.toml").write_text(text)
    schema = privsgp.Schema.read(place / "drafted.toml")
    assert schema.columns["crea"].type == "number"
    assert schema.columns["crea"].missing is not None
    assert "k.A." in schema.missing
    assert "# missing: k.A." in text
    assert schema.columns["number"].type == "ignored"  # running numbers
    assert schema.columns["share"].type == "number"  # from 0, all different, but not whole
    assert schema.columns["grade"].type == "number"
    assert len(tables.read(place / "public.csv", schema).y) == 90


def test_a_draft_comments_on_numbers_that_may_name_rows(place):
    """Case numbers with gaps are numbers like any other, so a person must decide."""
    lines = [f"{20_000 + 13 * i},{i % 7},{'yes' if i % 3 else 'no'}" for i in range(90)]
    (place / "public.csv").write_text("\n".join(["case,age,back", *lines]) + "\n")
    text = runs.command("data", "schema", place / "public.csv", "--target=back").out
    case, age = (next(line for line in text.splitlines() if line.startswith(name)) for name in ("case", "age"))
    assert "# different whole numbers: take ignored if they name rows" in case
    assert "#" not in age


def noisy(place, **counts):
    """Write tables in which no two people are equal, and nobody can be predicted for sure."""
    for seed, (name, count) in enumerate({"aachen": 40, "basel": 30, "cork": 20, "test": 50, **counts}.items()):
        rng = np.random.default_rng(seed)
        age = rng.uniform(0, 100, count)
        back = np.where(rng.random(count) < age / 100, "yes", "no")
        lines = [f"secret-{i},{age[i]:.3f},{'ab'[i % 2]},{back[i]}" for i in range(count)]
        (place / f"{name}.csv").write_text("\n".join(["id,age,ward,back", *lines]) + "\n")


def test_public_data_calibrate_a_run_and_choose_its_threshold(place):
    noisy(place, public=300)
    assert train(place, "--set", "seed=").code == 0
    before = privsgp.load(place / "run").evaluate(place / "public.csv")
    ran = runs.command(
        "evaluate", place / "run", place / "public.csv", "--calibrate", "--threshold-for=sensitivity=0.9"
    )
    assert ran.code == 0, ran.err
    assert "calibration.json: predict and evaluate use it" in ran.err
    result = privsgp.load(place / "run")
    found = result.evaluate(place / "public.csv")
    assert found["log_loss"] < before["log_loss"]
    assert found["calibration_slope"] == pytest.approx(1, abs=1e-3)
    assert found["calibration_in_the_large"] == pytest.approx(0, abs=1e-3)
    assert found["confusion"][1][1] >= 0.9 * sum(found["confusion"][1])
    said = [line.split(",")[1] for line in runs.command("predict", place / "run", place / "public.csv").out.split()[1:]]
    assert [("no", "yes")[c] for c in result.predict(place / "public.csv")] == said
    kept = (place / "run" / "calibration.json").read_text()
    for name in ("aachen", "basel"):
        ran = runs.command("evaluate", place / "run", place / f"{name}.csv", "--calibrate")
        assert ran.code == 2
        assert "records that a private run was trained on" in ran.err
    bad = runs.command("evaluate", place / "run", place / "public.csv", "--threshold-for=recall=2")
    assert bad.code == 2
    assert (place / "run" / "calibration.json").read_text() == kept


def test_another_runs_private_records_calibrate_nothing(place):
    noisy(place, dijon=60)
    other = ("--set", 'data.sites=["aachen","basel","dijon"]', "--set", "seed=")
    assert train(place, *other, out="other").code == 0
    assert train(place, "--set", "seed=").code == 0
    assert runs.command("evaluate", place / "run", place / "dijon.csv").code == 0  # shown to those who hold it
    ran = runs.command("evaluate", place / "run", place / "dijon.csv", "--calibrate")
    assert ran.code == 2
    assert not (place / "run" / "calibration.json").exists()


@pytest.mark.parametrize("binary", [False, True])
def test_weights_of_classes_leave_probabilities_calibrated(tmp_path, binary):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 3)).astype(np.float32)
    y = (rng.random(4000) < 1 / (1 + np.exp(2.2 - x[:, 0]))).astype(np.int64)
    cross = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 6.0]), reduction="none")
    loss = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([6.0]), reduction="none") if binary else cross
    torch.manual_seed(0)
    result = privsgp.train(
        nn.Linear(3, 1 if binary else 2), (x, y, x, y), loss=loss, classes=2, nodes=2, out=tmp_path / "run", seed=0,
        privacy={"sigma": 1e-4, "clip": 100.0},
        algorithm={"name": "privsgp", "batch": 500, "steps": 150, "step_size": 0.5},
    )  # fmt: skip
    assert result.predict_proba(x)[:, 1].mean() == pytest.approx(y.mean(), abs=0.02)
    assert abs(result.summary["calibration_in_the_large"]) < 0.15  # log 6 = 1.8 without the correction
    assert result.summary["log_loss"] < result.summary["baseline"]["log_loss"]
    assert result.predict(x).mean() > 2 * y.mean()  # classes are still weighed
    assert result.evaluate((x, y))["log_loss"] == pytest.approx(result.summary["log_loss"])
    again = privsgp.load(tmp_path / "run", model=nn.Linear(3, 1 if binary else 2))
    np.testing.assert_allclose(again.predict_proba(x), result.predict_proba(x))
    assert "classes were weighed 1 : 6 in training" in (tmp_path / "run" / "model-card.md").read_text()


@pytest.mark.parametrize("seed", ["seed=", "seed=3"])
def test_a_site_learns_whether_taking_part_was_worth_it(place, seed):
    noisy(place, aachen=12, basel=900, cork=900, held=400)
    longer = ("--set", "algorithm.steps=60", "--set", "privacy.sigma=0.01", "--set", seed)
    assert train(place, *longer).code == 0
    before = {file for file in (place / "run").rglob("*") if file.is_file()}
    ran = runs.command("evaluate", place / "run", place / "held.csv", "--alone", place / "aachen.csv")
    assert ran.code == 0, ran.err
    assert "Taking part was" in ran.out or "cannot tell" in ran.out
    assert "log loss" in ran.out
    written = {file for file in (place / "run").rglob("*") if file.is_file()} - before
    assert written == {place / "run" / "private" / "worth.json"}
    assert written.pop().stat().st_mode & 0o777 == 0o600
    head, *rows = (place / "held.csv").read_text().splitlines()
    theirs = (place / ("basel.csv" if seed == "seed=" else "aachen.csv")).read_text().splitlines()
    (place / "held.csv").write_text("\n".join([head, *rows, theirs[4]]) + "\n")
    ran = runs.command("evaluate", place / "run", place / "held.csv", "--alone", place / "aachen.csv")
    assert ran.code == 2
    assert "1 of its records are in the run" in ran.err


def test_a_regression_is_compared_in_its_unit(days):
    assert train(days).code == 0
    ran = runs.command("evaluate", days / "run", days / "test.csv", "--alone", days / "cork.csv", "--json")
    found = json.loads(ran.out)
    assert found["metrics"]["mae"]["joint"] == pytest.approx(
        privsgp.load(days / "run").evaluate(days / "test.csv")["mae"]
    )
    assert 0.3 < found["metrics"]["mae"]["alone"] < 3  # days: the noise alone gives 0.5
    assert (found["held_out"], found["own"]) == (50, 20)
