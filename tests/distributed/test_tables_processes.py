"""Tables in several processes: each opens its own, all have one schema, and nobody hears what others counted."""

from __future__ import annotations

import cluster
import numpy as np
import pytest

import runs

SCHEMA = """
[target]
column = "y"
classes = ["no", "yes"]
[columns]
age = { type = "number", range = [0, 100], missing = 50 }
ward = { type = "category", values = ["a", "b"] }
"""
RUN = runs.SMALL.replace(
    "nodes = 4\nsizes = [300, 300, 300, 300]\n",
    'schema = "schema.toml"\nsites = ["aachen", "basel", "cork"]\npath = "{site}.csv"\n',
).replace("steps = 30", "steps = 8")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    runs.small(tmp_path, RUN)
    for seed, name in enumerate(("aachen", "basel", "cork")):
        rng = np.random.default_rng(seed)
        rows = [f"{rng.integers(0, 130)},{rng.choice(['a', 'b', 'c'])},{rng.choice(['no', 'yes'])}" for _ in range(40)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,ward,y", *rows]) + "\n")
    return tmp_path


def test_processes_that_open_their_own_tables_give_the_same_bytes(place):
    runs.train(place / "run.toml", place / "one")
    words = [["train", place / "run.toml", "--out", place / "two"]] * 2
    first, second = cluster.ended(place / "said", cluster.start(place / "said", words))
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert (place / "two" / "model.safetensors").read_bytes() == (place / "one" / "model.safetensors").read_bytes()
    counted = {
        one: [name for name in ("aachen", "basel", "cork") if f"{name}.csv: " in one.err] for one in (first, second)
    }
    assert sorted(counted[first] + counted[second]) == ["aachen", "basel", "cork"]  # each by its own process alone


@pytest.mark.parametrize("method", ["privsgp", "privsgp-vr"])
def test_persons_of_several_processes_give_the_same_bytes(place, method):
    text = SCHEMA + 'id = { type = "ignored" }\n'
    (place / "schema.toml").write_text(text)
    for name in ("aachen", "basel", "cork"):
        head, *lines = (place / f"{name}.csv").read_text().splitlines()
        lines = [f"{name}-p{i % 17},{line}" for i, line in enumerate(lines)]
        (place / f"{name}.csv").write_text("\n".join([f"id,{head}", *lines]) + "\n")
    options = "--set=data.person=id", "--set=data.rows_per_person=2", f"--set=algorithm.name={method}"
    found = runs.train(place / "run.toml", place / "one", *options)
    assert found["samples"] == [17, 17, 17]
    words = [["train", place / "run.toml", "--out", place / "two", *options]] * 2
    first, second = cluster.ended(place / "said", cluster.start(place / "said", words))
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert (place / "two" / "model.safetensors").read_bytes() == (place / "one" / "model.safetensors").read_bytes()


def test_another_schema_does_not_fit(place):
    (place / "other.toml").write_text(SCHEMA.replace("[0, 100]", "[0, 99]"))
    words = [
        ["train", place / "run.toml", "--out", place / "run", *own] for own in ([], ["--set=data.schema=other.toml"])
    ]
    for one in cluster.ended(place / "said", cluster.start(place / "said", words)):
        assert one.code == 2
        assert "does not fit" in one.err
        assert "data.schema: " in one.err
    assert not (place / "run").exists()


def test_what_is_wrong_with_a_table_is_said_where_it_lies_alone(place):
    text = (place / "cork.csv").read_text().splitlines()
    (place / "cork.csv").write_text("\n".join([*text[:6], "secret,a,no", *text[7:]]) + "\n")
    words = [["train", place / "run.toml", "--out", place / "run"]] * 3
    *others, own = cluster.ended(place / "said", cluster.start(place / "said", words))
    assert "column 'age', row 6: 'secret' is no number" in own.err
    for other in others:
        assert other.code == 2
        assert "process 2 was refused" in other.err
        assert "secret" not in other.err
        assert "cork" not in other.err
