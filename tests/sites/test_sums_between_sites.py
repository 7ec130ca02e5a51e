"""Three real sites train, evaluate the model on persons that they held out, and describe their tables."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time

import numpy as np
import pytest
from consortium import NAMES, PATIENCE, Consortium, free_ports

import runs
from privsgp.accounting import ledger
from privsgp.accounting.book import Book
from privsgp.data.loading import like
from privsgp.runs import booked
from privsgp.runs import config as configs
from privsgp.runs.problem import side
from privsgp.sites import sums
from privsgp.sites.agreement import Agreement, propose
from privsgp.sites.identity import Site
from privsgp.sites.run import leave, read_own
from privsgp.sites.study import Limits

COUNT = 150
SCHEMA = {
    "target": {"column": "back", "classes": ["no", "yes"]},
    "columns": {
        "age": {"type": "number", "range": [0, 100]},
        "ward": {"type": "category", "values": ["a", "b"]},
        "who": {"type": "ignored"},
    },
}
RUN = {
    "data": {"schema": SCHEMA, "nodes": 3, "person": "who", "rows_per_person": 2},
    "model": {"name": "logistic", "loss": "binary"},
    "graph": {"name": "complete"},
    "privacy": {"epsilon": 3.0, "delta": 1e-4, "noise": "pairwise", "honest": 2},
    "algorithm": {"name": "privsgp", "steps": 3, "batch": 20, "step_size": 1.0, "final_mixing": 2},
    "evaluation": {"share": 0.4, "epsilon": 4.0, "delta": 1e-4},
}


def table(folder, name, number):
    """Write two rows for each of 150 persons."""
    rng, path = np.random.default_rng(number), folder / f"{name}.csv"
    age, ward = rng.uniform(0, 100, 2 * COUNT).round(4), rng.choice(["a", "b"], 2 * COUNT)
    rows = [f"p{1000 * number + i // 2},{age[i]},{ward[i]},{'yes' if age[i] > 50 else 'no'}" for i in range(2 * COUNT)]
    path.write_text("\n".join(["who,age,ward,back", *rows]) + "\n")
    return path


def sizes(config, files, *, held_out):
    """Return how many persons each site has on a side: `data check` shows it there."""
    loaded = [read_own(config, file) for file in files]
    return [one.samples(side(one, np.arange(len(one.y)), config.evaluation, held_out=held_out)) for one in loaded]


@pytest.fixture
def hospitals(tmp_path):
    sites = [
        Site.create(tmp_path / f"home-{name}", name, address=f"127.0.0.1:{port}")
        for name, port in zip(NAMES, free_ports(3), strict=False)
    ]
    files = [table(tmp_path, name, number) for number, name in enumerate(NAMES[:3])]
    config = configs.parse(RUN)
    config = config.with_section("data", sizes=sizes(config, files, held_out=False))
    made = agreed(tmp_path, "train", config, sites, like(config.data.schema))
    one = Consortium(tmp_path, sites, files, made, tmp_path / "train.study")
    studies = [one]
    yield one, studies
    for each in studies:
        each.stop()


def agreed(folder, name, config, sites, blank, **limits):
    cards = [site.card for site in sites]
    made = propose(config, cards, blank, name=name, limits=Limits(**({"deadline": 30.0} | limits)))
    made.write(folder / f"{name}.study")
    return made


def study(trained, name, run=None, epsilon=4.0, **changes):
    """Return a study of a sum of the same sites, in a folder of its own; `run` is what it evaluates."""
    folder, config = trained.folder / name, configs.parse(RUN | changes)
    folder.mkdir()
    held = sizes(config, trained.files, held_out=True) if run is not None else [COUNT] * 3
    made, blank = sums.like(config.with_section("data", sizes=held), run, held, epsilon)
    if run is not None:
        shutil.copyfile(run / "nodes" / "0.safetensors", folder / "a.safetensors")
    agreement = agreed(folder, "a", made, trained.sites, blank, fewest=3, deadline=5.0)
    return dataclasses.replace(trained, folder=folder, agreement=agreement, study=folder / "a.study", processes={})


def metrics(summary):
    return {(one["metric"], one["group"]): one["value"] for one in summary["sum"]["metrics"]}


def persons(trained, node, *, held_out):
    config = configs.parse(RUN)
    one = read_own(config, trained.files[node])
    rows = side(one, np.arange(len(one.y)), config.evaluation, held_out=held_out)
    return booked.records_of(np.zeros(len(one.y), np.uint64), one, [rows])[0].hashes


def test_three_sites_train_evaluate_and_describe(hospitals):
    trained, studies = hospitals
    trained.start()
    trained.end()
    studies.append(one := study(trained, "evaluation", trained.out(0)))
    one.start(0, 1)
    one.start(2, moments=3)  # it kills itself between two writes or messages
    one.processes[2].join(PATIENCE)
    assert one.processes[2].exitcode not in (0, None), one.told()
    time.sleep(1.0)
    assert not any((one.out(i) / "evaluation.json").exists() for i in range(3))  # nothing without its message
    one.start(2)
    found = one.end()
    assert metrics(found[0]) == pytest.approx(metrics(found[1]), abs=1e-9)
    assert metrics(found[0]) == pytest.approx(metrics(found[2]), abs=1e-9)
    assert found[0]["sum"]["honest"] == 2
    assert 0.4 < metrics(found[0])["accuracy", "all"] <= 1
    for i in range(3):
        (segment,) = ledger.read(one.out(i) / "ledger" / f"node-{i}.jsonl")
        assert (segment.charged, one.sent(i)) == (1, 1)
        sides = [persons(trained, i, held_out=held) for held in (True, False)]
        assert [Book().spent_on(side, "zero-out, one person").epsilon for side in sides] == [4.0, 3.0]
    studies.append(two := study(trained, "description", epsilon=2.0, sum={"columns": ["age"], "moments": 2.0}))
    two.start()
    described = [summary["sum"]["columns"]["age"]["estimates"][0]["value"] for summary in two.end()]
    assert described == pytest.approx([50] * 3, abs=12)
    assert described[0] == pytest.approx(described[2], abs=1e-9)
    assert json.loads((two.out(1) / "description.json").read_text())["unit"] == "person"


def test_a_site_that_leaves_ends_a_sum_and_nothing_is_shown(tmp_path, monkeypatch):
    sites = [
        Site.create(tmp_path / f"home-{name}", name, address=f"127.0.0.1:{port}")
        for name, port in zip(NAMES, free_ports(2), strict=False)
    ]
    files = [table(tmp_path, name, number) for number, name in enumerate(NAMES[:2])]
    schema = {key: RUN["data"][key] for key in ("schema", "person", "rows_per_person")}
    values = {"data": schema | {"nodes": 2, "sizes": [COUNT] * 2}, "privacy": {"epsilon": 1.0, "delta": 1e-4}}
    (tmp_path / "run.toml").write_text(configs.parse(values | {"algorithm": {"name": "privsgp"}}).toml())
    for site in sites:
        site.card.write(tmp_path / f"{site.name}.card")
    monkeypatch.chdir(tmp_path)
    options = [part for site in sites for part in ("--site", f"{site.name}.card")]
    ran = runs.command("agree", "propose", "run.toml", *options, "--describe", 0.5, "-o", "a.study", "--deadline", 1)
    assert ran.code == 0, ran.err
    assert "a noised description" in ran.out
    two = Consortium(tmp_path, sites, files, Agreement.read(tmp_path / "a.study"), tmp_path / "a.study")
    try:
        two.start(0)
        two.start(1, moments=0)  # before its message is committed
        two.processes[1].join(PATIENCE)
        assert leave(two.study, home=sites[1].home, out=two.out(1))
        two.processes[0].join(15)
        assert two.processes[0].exitcode == 2, two.told()
        assert "left for good: without its message there is no sum" in two.log(0)
        assert not (two.out(0) / "summary.json").exists()
        assert not (two.out(0) / "description.json").exists()
    finally:
        two.stop()
