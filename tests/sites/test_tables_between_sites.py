"""Sites bring tables: the schema travels in the study, each site's rows and what was counted in them stay there."""

from __future__ import annotations

import json
import tomllib

import numpy as np
import pytest
from consortium import NAMES, Consortium, free_ports

import runs
from privsgp.accounting import ledger
from privsgp.data.loading import like
from privsgp.data.schema_text import written
from privsgp.errors import Refused
from privsgp.metrics import KEYS
from privsgp.runs import config as configs
from privsgp.sites.agreement import Agreement, propose
from privsgp.sites.identity import Site
from privsgp.sites.run import read_own
from privsgp.sites.study import Limits

SIZES = [40, 30, 20]
SCHEMA = {
    "target": {"column": "back", "classes": ["no", "yes"]},
    "columns": {
        "age": {"type": "number", "range": [0, 100], "missing": 50},
        "ward": {"type": "category", "values": ["b", "a"]},
        "id": {"type": "ignored"},
    },
}
RUN = {
    "data": {"schema": SCHEMA, "nodes": 3, "sizes": SIZES},
    "model": {"name": "logistic", "loss": "binary"},
    "graph": {"name": "complete"},
    "privacy": {"sigma": 0.05},
    "algorithm": {"name": "privsgp", "steps": 6, "batch": 8, "final_mixing": 2},
}


def table(folder, name, count, seed):
    rng, path = np.random.default_rng(seed), folder / f"{name}.csv"
    age, ward = rng.integers(0, 130, count), rng.choice(["a", "b", "odd"], count)
    rows = [f"p{i},{'' if i == 1 else age[i]},{ward[i]},{'yes' if age[i] > 50 else 'no'}" for i in range(count)]
    path.write_text("\n".join(["id,age,ward,back", *rows]) + "\n")
    return path


@pytest.fixture
def hospitals(tmp_path):
    sites = [
        Site.create(tmp_path / f"home-{name}", name, address=f"127.0.0.1:{port}")
        for name, port in zip(NAMES, free_ports(3), strict=False)
    ]
    files = [table(tmp_path, name, J, seed) for seed, (name, J) in enumerate(zip(NAMES, SIZES, strict=False))]
    config = configs.parse(RUN)
    cards = [site.card for site in sites]
    made = propose(config, cards, like(config.data.schema), name="study", limits=Limits(deadline=30.0))
    made.write(tmp_path / "a.study")
    one = Consortium(tmp_path, sites, files, made, tmp_path / "a.study")
    yield one
    one.stop()


def test_tables_train_between_sites_and_counts_stay(hospitals):
    hospitals.start()
    for i, summary in enumerate(hospitals.end()):
        assert summary["releases"][i] == 6
        assert summary["sites"] == list(NAMES[:3])
        assert f"{NAMES[i]}.csv: age: 1 missing" in hospitals.log(i)
        (segment,) = ledger.read(hospitals.out(i) / "ledger" / f"node-{i}.jsonl")
        assert segment.header.site == NAMES[i]
        for other in set(range(3)) - {i}:
            assert f"{NAMES[i]}.csv" not in hospitals.log(other)
    told = [file for file in hospitals.folder.glob("run-*/*") if file.is_file()]
    assert not [file for file in told if "1 missing" in file.read_bytes().decode(errors="replace")]


def test_a_person_with_several_rows_is_one_sample_between_sites(tmp_path):
    sites = [
        Site.create(tmp_path / f"home-{name}", name, address=f"127.0.0.1:{port}")
        for name, port in zip(NAMES, free_ports(2), strict=False)
    ]
    files = [table(tmp_path, name, 40, seed) for seed, name in enumerate(NAMES[:2])]
    for file in files:  # 40 rows of 16 persons
        head, *lines = file.read_text().splitlines()
        file.write_text("\n".join([head, *(f"p{i % 16}{line[line.index(',') :]}" for i, line in enumerate(lines))]))
    config = configs.parse(RUN | {
        "data": {"schema": SCHEMA, "nodes": 2, "sizes": [16, 16], "person": "id", "rows_per_person": 2},
        "privacy": {"epsilon": 4.0, "sites_per_person": 2, "noise": "pairwise"},
    })  # fmt: skip
    limits = Limits(deadline=30.0)
    made = propose(config, [site.card for site in sites], like(config.data.schema), name="study", limits=limits)
    made.write(tmp_path / "a.study")
    two = Consortium(tmp_path, sites, files, made, tmp_path / "a.study")
    try:
        two.start()
        for i, summary in enumerate(two.end()):
            assert summary["person"]["unit"] == "one person, up to 2 rows"
            assert summary["samples"] == [16, 16]
            by_sites = dict(summary["person"]["curve"])
            assert by_sites[1] < by_sites[2] == summary["epsilon_spent"][i] <= 4
            assert "8 persons have more than 2 rows" in two.log(i)
    finally:
        two.stop()


def test_a_site_joins_with_a_dialect_and_sees_the_metrics_that_train_shows(hospitals):
    own = hospitals.files[0]
    text = own.read_text().replace("id,age,ward,back", "id,Alter,Station,wieder").replace("yes", "ja")
    own.write_bytes(text.replace(",", ";").replace("odd", "Ödland").encode("cp1252"))
    dialect = 'encoding = "cp1252"\n[columns]\nAlter = "age"\nStation = "ward"\nwieder = "back"\n[values]\n'
    own.with_suffix(".dialect.toml").write_text(dialect + 'back = { ja = "yes" }\n')
    hospitals.test = table(hospitals.folder, "test", 50, 9)
    hospitals.start()
    summaries = hospitals.end()
    (hospitals.folder / "schema.toml").write_text(written(configs.parse(RUN).data.schema))
    run = RUN | {
        "data": {"schema": "schema.toml", "nodes": 3, "sites": list(NAMES[:3]), "path": "{site}.csv"},
        "seed": 1,
    }
    run["data"]["test_path"] = "test.csv"
    lines = [f"{key} = {json.dumps(value)}" for key, value in run.items() if not isinstance(value, dict)]
    for section in (key for key, value in run.items() if isinstance(value, dict)):
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in run[section].items())]
    (hospitals.folder / "run.toml").write_text("\n".join(lines) + "\n")
    ran = runs.command("train", hospitals.folder / "run.toml", "--out", hospitals.folder / "alone", "--json")
    assert ran.code == 0, ran.err
    trained = {key for key in json.loads(ran.out) if key in KEYS}
    for summary in summaries:
        assert {key for key in summary if key in KEYS} - {"dull"} == trained - {"dull"}
        assert summary["baseline"]["log_loss"] == json.loads(ran.out)["baseline"]["log_loss"]
    told = [file for file in hospitals.folder.glob("run-*/**/*") if file.is_file()]
    assert not [file for file in told if b"Alter" in file.read_bytes() or b"cp1252" in file.read_bytes()]


def test_the_study_holds_the_schema_and_another_table_is_refused_before_signing(hospitals):
    agreement = Agreement.read(hospitals.study)
    assert agreement.config.data.schema == configs.parse(RUN).data.schema
    assert agreement.values["sample"] == {"shape": [5], "target": [], "classes": 2}
    text = hospitals.files[0].read_text().replace("ward", "station")
    hospitals.files[0].write_text(text)
    with pytest.raises(Refused, match="has no column 'ward'"):
        read_own(agreement.config, hospitals.files[0])
    with pytest.raises(Refused, match="the study has a schema"):
        read_own(agreement.config, hospitals.folder / "my.npz")
    with pytest.raises(Refused, match="has this site's own records"):
        read_own(agreement.config, hospitals.files[1], hospitals.files[1])
    head, *rows = hospitals.files[1].read_text().splitlines()
    (hospitals.folder / "again.csv").write_text("\n".join([head, *rows[::-1][: len(rows) // 2]]) + "\n")
    with pytest.raises(Refused, match="half of them or more"):
        read_own(agreement.config, hospitals.files[1], hospitals.folder / "again.csv")
    tested = read_own(agreement.config, hospitals.files[1], hospitals.files[2])
    assert len(tested.y_test) == SIZES[2]


def test_no_site_joins_by_a_schema_that_was_drafted_from_its_table(hospitals, tmp_path):
    drafted = runs.command("data", "schema", hospitals.files[1], "--target=back").out
    config = configs.parse(RUN | {"data": RUN["data"] | {"schema": tomllib.loads(drafted)}})
    cards = [site.card for site in hospitals.sites]
    study = propose(config, cards, like(config.data.schema), name="study", limits=Limits(deadline=30.0))
    study.write(tmp_path / "b.study")
    agreed = Agreement.read(tmp_path / "b.study").config
    with pytest.raises(Refused, match=r"basel\.csv: the schema was drafted from these rows"):
        read_own(agreed, hospitals.files[1])
    assert len(read_own(agreed, hospitals.files[2]).y) == SIZES[2]


def test_names_of_sites_are_those_on_their_cards(hospitals):
    config = configs.parse(RUN | {"data": RUN["data"] | {"sites": ["cork", "basel", "aachen"]}})
    cards = [site.card for site in hospitals.sites]
    with pytest.raises(Refused, match=r"data\.sites = \['cork'"):
        propose(config, cards, like(config.data.schema), name="study", limits=Limits(deadline=30.0))


def test_a_study_with_a_schema_is_proposed_without_any_data(hospitals, tmp_path):
    (tmp_path / "run.toml").write_text(configs.parse(RUN).toml())
    cards = []
    for site in hospitals.sites:
        cards += ["--site", tmp_path / f"{site.name}.card"]
        site.card.write(cards[-1])
    ran = runs.command("agree", "propose", tmp_path / "run.toml", *cards, "-o", tmp_path / "b.study")
    assert ran.code == 0, ran.err
    assert "predicts 'back' from age, ward" in ran.out
    assert json.loads((tmp_path / "b.study").read_text())["config"]["data"]["schema"]["target"]["column"] == "back"


def test_own_records_as_the_test_set_of_another_file_are_own_records(three, tmp_path):
    """Of test data with a test set of their own, that is what the model is tried on."""
    with np.load(three.files[0]) as own:
        mine, other = {"x": own["x"], "y": own["y"]}, {"x": own["x_test"], "y": own["y_test"]}
    for name, x in (("own", mine), ("fine", other)):
        np.savez(tmp_path / f"{name}.npz", **other | {f"{key}_test": value for key, value in x.items()})
    own, fine = tmp_path / "own.npz", tmp_path / "fine.npz"
    with pytest.raises(Refused, match="half of them or more"):
        read_own(three.agreement.config, three.files[0], own)
    assert len(read_own(three.agreement.config, three.files[0], fine).y_test) == len(other["y"])


def test_classes_are_not_counted_in_a_sites_own_labels(three, tmp_path):
    """Its test labels would tell the other sites of a class, through the study."""
    values = three.agreement.config.model_dump()
    config = three.agreement.config.with_values(values | {"data": values["data"] | {"classes": None}})
    with np.load(three.files[0]) as own:
        arrays = {key: own[key] for key in ("x", "y", "x_test", "y_test")}
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(Refused, match=r"data\.classes"):
        read_own(config, tmp_path / "own.npz")
    assert read_own(config, tmp_path / "own.npz", classes=10).classes == 10
