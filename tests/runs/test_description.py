"""`privsgp describe`: columns of the sites' tables from one noised release, and what it is charged."""

from __future__ import annotations

import json

import numpy as np
import pytest

import runs
from privsgp.accounting.book import Book
from privsgp.accounting.statements import statements
from privsgp.errors import Refused
from privsgp.runs import booked, description
from privsgp.runs import config as configs
from privsgp.runs.problem import unencoded
from privsgp.statistics.columns import Numbers, Values, described, norm

SCHEMA = """
[target]
column = "back"
classes = ["no", "yes"]
[columns]
age = { type = "number", range = [0, 100], missing = 50 }
sex = { type = "category", values = ["F", "M"], missing = "other" }
smokes = { type = "yes/no" }
"""
RUN = """
name = "wards"
[data]
schema = "schema.toml"
sites = ["aachen", "basel", "cork", "delft"]
path = "{site}.csv"
[privacy]
epsilon = 1.0
[graph]
name = "ring"
"""
SITES = ("aachen", "basel", "cork", "delft")
COUNT = 2500


@pytest.fixture
def place(tmp_path):
    rng, tables = np.random.default_rng(0), {"age": [], "sex": [], "smokes": [], "back": []}
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "run.toml").write_text(RUN)
    for name in SITES:
        age = np.clip(rng.normal(60, 15, COUNT), 0, 100).round(2).astype(str)
        age[rng.random(COUNT) < 0.1] = ""
        own = {
            "age": age, "sex": rng.choice(["F", "M"], COUNT, p=[0.7, 0.3]),
            "smokes": rng.choice(["yes", "no"], COUNT, p=[0.2, 0.8]), "back": rng.choice(["yes", "no"], COUNT),
        }  # fmt: skip
        for key, values in own.items():
            tables[key] += values.tolist()
        lines = [",".join(row) for row in zip(*own.values(), strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join([",".join(own), *lines]) + "\n")
    return tmp_path, tables


def describe(folder, *options):
    return runs.command("describe", folder / "run.toml", "--out", folder / "out", *options)


def test_four_sites_are_described_and_charged(place):
    folder, tables = place
    ran = describe(folder, "--epsilon", 0.5, "--json")
    assert ran.code == 0, ran.err
    assert "percentage points or less" in ran.err
    found = json.loads(ran.out)["columns"]
    ages = np.array([float(one) for one in tables["age"] if one])
    told = {one["metric"]: one for one in found["age"]["estimates"]}
    assert told["mean"]["low"] < told["mean"]["value"] == pytest.approx(ages.mean(), abs=2)
    assert told["quantile 0.5"]["value"] == pytest.approx(np.median(ages), abs=2.5)  # half a bin
    assert found["age"]["missing"]["value"] == pytest.approx(tables["age"].count("") / 10_000, abs=0.02)
    (women, _, _) = found["sex"]["shares"]
    assert women["value"] == pytest.approx(tables["sex"].count("F") / 10_000, abs=0.04)
    ledgers = statements(folder / "out" / "wards-1")
    assert all(0.49 < one.epsilon <= 0.5 for one in ledgers)
    entries = Book().entries()
    assert [(one.command, one.epsilon) for one in entries] == [("describe", 0.5)] * 4
    assert not {"min", "max", "minimum", "maximum"} & {word for one in told for word in one.split()}


def test_other_files_of_the_same_rows_add_up(place):
    """One more row, some of the rows, other columns in another order, or other columns asked for: nobody is new."""
    folder, _ = place
    file = folder / "aachen.csv"
    rows = [line.split(",") for line in file.read_text().splitlines()]
    assert describe(folder, "--epsilon", 0.5).code == 0
    (folder / "schema.toml").write_text(SCHEMA + 'extra = { type = "ignored" }\n')
    for changed in (
        [*rows, ["42", "F", "yes", "no"]],
        [row for row in rows if row[1] != "M"],
        [[*row[::-1], "new" if i else "extra"] for i, row in enumerate(rows)],
    ):
        file.write_text("\n".join(",".join(row) for row in changed) + "\n")
        ran = describe(folder, "--epsilon", 0.5, "--columns", "age", "--set", 'data.sites=["aachen"]')
        assert ran.code == 0, ran.err
    config = configs.read(folder / "run.toml", ['data.sites=["aachen"]'])
    one = unencoded(config, None, range(1))
    (own,) = booked.records_of(one.hashes, one.dataset, one.parts)
    women = [i - 1 for i, row in enumerate(rows) if row[0] and row[1] == "F"][:20]
    assert min(Book().spent_on(own.hashes[[i]], "zero-out").epsilon for i in women) == 2  # a few are at other sites too


def test_a_few_columns_cost_less_noise(place):
    folder, _ = place
    wide, narrow = (
        json.loads(describe(folder, "--epsilon", 0.5, "--json", *more).out) for more in ((), ("--columns", "sex"))
    )
    assert narrow["sigma"] < 0.6 * wide["sigma"]
    assert list(narrow["columns"]) == ["sex"]


def test_an_unknown_column_is_refused(place):
    folder, _ = place
    ran = describe(folder, "--epsilon", 0.5, "--columns", "height")
    assert (ran.code, "column height" in ran.err) == (2, True)


@pytest.mark.parametrize("norm", ["1e200", "1e-100", "nan"])
def test_a_norm_that_no_result_comes_from_is_refused_before_the_release(place, norm):
    """Planted: 1e-100 spent the budget, and then failed in the regression."""
    folder, _ = place
    ran = describe(folder, "--epsilon", 0.5, "--moments", norm)
    assert (ran.code, "sum.moments" in ran.err or "--moments" in ran.err) == (2, True), ran.err
    assert not (folder / "out").exists()


def test_extreme_values_change_no_more_than_a_cell():
    """A person far outside the public range is clipped: norms and results stay bounded."""
    columns = [Numbers("age", 0.0, 100.0, 10), Values("sex", ("F", "M"))]
    rows = columns[0].rows(np.array([1e300, -1e300, 50.0]), np.array([False, False, True]))
    assert np.linalg.norm(rows, axis=1).max() <= columns[0].norm
    assert norm(columns) == pytest.approx(np.hypot(columns[0].norm, 1))


def test_intervals_of_means_and_shares_are_right():
    rng, column, runs_, n, sigma = np.random.default_rng(1), Numbers("age", 0.0, 100.0, 20), 200, 3000, 12.0
    truth, hits = {"mean": 50.0, "sd": 14.0, "quantile 0.5": 50.0, "missing": 0.1}, dict.fromkeys(("mean", "sd"), 0)
    hits |= {"quantile 0.5": 0, "missing": 0}
    for _ in range(runs_):
        missing = rng.random(n) < 0.1
        cells = column.rows(rng.normal(50, 14, n), missing).sum(0)
        one = described([column], cells + rng.normal(0, sigma, cells.shape), n, sigma)["age"]
        for each in [*one["estimates"], one["missing"] | {"metric": "missing"}]:
            if each["metric"] in hits:
                hits[each["metric"]] += each["low"] <= truth[each["metric"]] <= each["high"]
    assert all(count / runs_ >= 0.9 for count in hits.values()), hits


def test_the_page_shows_columns_and_the_privacy_in_an_officers_words(place):
    folder, _ = place
    assert describe(folder, "--epsilon", 1, "--by", "sex", "--moments", 2).code == 0
    page = (folder / "out" / "wards-1" / "report.html").read_text()
    for text in ("counted once with noise", "right at most 73.2 % of the time", "Shares: age", "Ridge regression"):
        assert text in page
    assert "<script" not in page
    ran = runs.command("report", folder / "out" / "wards-1", "--out", folder / "again.html")
    assert (ran.code, (folder / "again.html").read_text()) == (0, page)


def test_init_drafts_from_a_description_and_names_its_cost(place, monkeypatch):
    folder, tables = place
    assert describe(folder, "--epsilon", 1).code == 0
    file, sites = folder / "out" / "wards-1" / "description.json", ("--sites", ",".join(SITES))
    ran = runs.command(
        "init", "--from-description", file, *sites, "--path", folder / "{site}.csv", "--out", folder / "new"
    )
    assert ran.code == 0, ran.err
    config = configs.read(folder / "new" / "run.toml")
    age = config.data.schema.columns["age"]
    known = [float(one) for one in tables["age"] if one]
    assert (age.centre, age.scale) == (pytest.approx(np.mean(known), abs=2), pytest.approx(np.std(known), abs=2))
    assert age.range == [0, 100]
    assert config.data.schema.target.balance == [0.5, 0.5]
    assert "ε = 1, δ = 1e-05 for each record, beside what training costs" in config.study.schema_from
    ran = runs.command("init", "--from-description", file, "--public", file, *sites, "--out", folder / "other")
    assert (ran.code, "give one of them" in ran.err) == (2, True)
    assert describe(folder, "--epsilon", 1, "--set", "seed=1").code == 0
    seeded = folder / "out" / "wards-2" / "description.json"
    ran = runs.command("init", "--from-description", seeded, *sites, "--out", folder / "other")
    assert (ran.code, "its noise hides nothing" in ran.err) == (2, True)


def test_a_forged_epsilon_of_a_description_is_not_believed(place):
    """With its ledgers beside it, ε is computed again."""
    folder, _ = place
    assert describe(folder, "--epsilon", 1).code == 0
    file = folder / "out" / "wards-1" / "description.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"epsilon": 0.01}))
    assert description.read(file)["epsilon"] == pytest.approx(1, abs=0.02)
    file.write_text(json.dumps(json.loads(file.read_text()) | {"columns": 3}))
    with pytest.raises(Refused, match="columns"):
        description.read(file)
