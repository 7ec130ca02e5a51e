"""The record table: what is chosen is chosen on held-out training records, and pages show what the runs gave."""

from __future__ import annotations

import argparse
import json
import pathlib

import numpy as np
import pytest

from privsgp_research import bench as pool
from privsgp_research.bench import Bench

ROOT = pathlib.Path(__file__).parent.parent
EXPERIMENT = "record"
ROW = {"data": "mnist", "partition": "even", "kind": "local", "asked": 1.0}
TOLD = {"accuracy": {"mean": 0.5, "sd": 0.01, "each": [0.49, 0.51]}, "commit": "abc", "device": "a GPU"}


@pytest.fixture
def tiny(experiment, monkeypatch, tmp_path):
    """The script on scikit-learn's digits: two sites, three steps."""
    source = experiment.Source(
        "digits", str(ROOT / "examples" / "digits.toml"), (3, 1.0), (3, 0.5),
        dict.fromkeys(experiment.KINDS, 1.0), {"as configured": (), "clip doubled": ("privacy.clip=2.0",)},
        changes=("data.nodes=2", "algorithm.name=privsgp"),
    )  # fmt: skip
    monkeypatch.setitem(experiment.SOURCES, "digits", source)
    monkeypatch.setattr(experiment, "FACTORS", (1.0, 2.0))
    options = {
        "data_dir": None, "out": tmp_path / "runs", "results": tmp_path / "record.json", "device": "cpu", "jobs": 1,
        "partitions": ["even", "0.5"], "kinds": ["pairwise", "pooled"], "epsilons": [1.0], "seeds": 1, "wider": 0,
        "steps": None,
    }  # fmt: skip
    return argparse.Namespace(**options)


def here(monkeypatch):
    """Make runs in this process, and write down which."""
    made = []

    def run_all(tasks, *, data_dir, jobs, watch):
        for task in tasks:
            if not pool._done(*task):
                made.append(task[0])
                pool._run(*task, data_dir)
        return [pool.Run.read(*task) for task in tasks]

    monkeypatch.setattr("privsgp_research.bench.run_all", run_all)
    return made


@pytest.mark.parametrize(("page", "shown"), [("docs/results-accuracy.md", "table"), ("README.md", "short")])
def test_pages_have_the_tables_of_the_runs(experiment, page, shown):
    text = getattr(experiment, shown)(experiment.read(experiment.RESULTS))
    assert experiment.pages.shown((ROOT / page).read_text(), "record") == text.strip()


def test_what_the_page_says_of_the_table_is_in_it(experiment):
    rows = experiment.read(experiment.RESULTS)["rows"]
    found = {(r["data"], r["partition"], r["kind"], r["asked"]): 100 * r["accuracy"]["mean"] for r in rows}
    page = " ".join((ROOT / "docs" / "results-accuracy.md").read_text().split())

    def closed(data):
        own, shared, pooled = (
            np.array([found[data, where, kind, e] for e in experiment.EPSILONS])
            for where, kind in (("even", "local"), ("even", "pairwise"), (None, "pooled"))
        )
        share = 100 * (shared - own) / (pooled - own)
        return f"{share.min():.0f} to {share.max():.0f} %"

    def lost(data, kind):
        asked = [None] if kind == "none" else experiment.EPSILONS
        return [found[data, "even", kind, e] - found[data, "0.1", kind, e] for e in asked]

    sets = ("mnist", "cifar10", "cifar10-efficientnet")
    first, second, third = map(closed, sets)
    assert f"{first} of the gap between own noise and pooled data on MNIST, and {second} on CIFAR-10." in page
    assert f"With public pre-training it closes {third} there." in page
    gaps = [
        found["cifar10-synthetic", None, "pooled", e] - found["cifar10-synthetic", "even", "pairwise", e]
        for e in (0.4, 1, 3)
    ]
    assert f"shared noise closes {closed('cifar10-synthetic')} of that gap, and" in page
    assert f"stays {min(gaps):.2f} to {max(gaps):.2f} points below pooled data" in page
    most = {kind: [max(lost(data, kind)) for data in sets] for kind in ("pairwise", "local", "none")}
    assert max(lost("mnist", "pairwise")) <= 0
    assert "| shared noise | 0 | {1:.2f} | {2:.2f} |".format(*most["pairwise"]) in page
    assert "| own noise | {:.2f} | {:.2f} | {:.2f} |".format(*most["local"]) in page
    assert "| no privacy | {:.2f} | {:.2f} | {:.2f} |".format(*most["none"]) in page
    a9a = [*lost("a9a", "pairwise"), *lost("a9a", "local"), *lost("a9a", "none")]
    assert f"On a9a it costs {min(a9a):.1f} to {max(a9a):.1f} points" in page
    edges = [row for row in rows if row["distance"] in (edge(row, min), edge(row, max))]
    assert {(row["data"], row["partition"], row["kind"], row["asked"]) for row in edges} == {
        ("mnist", None, "pooled", 3.0), ("cifar10-efficientnet", "even", "pairwise", 3.0),
    }  # fmt: skip
    assert "an edge for pooled MNIST and for shared noise, spread evenly, on EfficientNet's features" in page


def edge(row, which):
    return which(tried["distance"] for tried in row["held_out"])


def test_no_test_sample_decides_anything(experiment, tiny, monkeypatch):
    made = here(monkeypatch)
    experiment.choose("digits", tiny)
    experiment.run("digits", tiny)
    with (
        np.load(tiny.out / "data" / made[0].data.name) as held,
        np.load(tiny.out / "data" / made[-1].data.name) as whole,
    ):
        assert len(held["y"]) + len(held["y_test"]) == len(whole["y"])
        rows = {row.tobytes() for row in whole["x"]}
        assert all(row.tobytes() in rows for row in held["x_test"])
    chosen = [config for config in made if config.seed == 0]
    reported = [config for config in made if config.seed != 0]
    assert {config.data.name.endswith("-held.npz") for config in chosen} == {True}
    assert {config.data.name.endswith("-held.npz") for config in reported} == {False}
    rows = json.loads(tiny.results.read_text())["rows"]
    assert [(row["partition"], row["kind"], row["seeds"]) for row in rows] == [
        ("even", "pairwise", [1]), (None, "pooled", [1]), ("0.5", "pairwise", [1]),
    ]  # fmt: skip
    assert all(row["commit"] and row["versions"] and row["device"] for row in rows)
    before = len(made)
    experiment.run("digits", tiny)
    assert len(made) == before


def test_what_was_chosen_is_what_is_run(experiment, tiny, monkeypatch):
    made = here(monkeypatch)
    experiment.keep(tiny.results, "choices", {"data": "digits", "changes": ["privacy.clip=2.0"]})
    tiny.partitions = ["even"]
    experiment.run("digits", tiny)
    assert {config.privacy.clip for config in made} == {2.0}


def test_rows_that_were_run_before_a_choice_are_named(experiment):
    choice = {"data": "mnist", "epsilon": 1.0, "tried": {}, "chosen": "clip halved", "changes": ["privacy.clip=2.25"]}
    for clip, named in ((4.5, True), (2.25, False), (None, False)):
        lines = experiment._choices({"rows": [ROW | TOLD | {"clip": clip}], "choices": [choice]})
        assert ("not yet again: even (clip 4.5)" in " ".join(lines)) == named


def test_rows_of_others_stay_and_the_same_row_is_replaced(experiment, tmp_path):
    path = tmp_path / "record.json"
    for row in (ROW | TOLD, ROW | TOLD | {"asked": 3.0}, ROW | TOLD | {"kind": "pooled", "partition": None}):
        experiment.keep(path, "rows", row)
    experiment.keep(path, "rows", ROW | TOLD | {"accuracy": {"mean": 0.6, "sd": 0.0, "each": [0.6]}})
    told = experiment.read(path)
    assert len(told["rows"]) == 3
    assert "| even | 1 | 60.00 |  | 50.00 ± 1.00 |  |" in experiment.table(told)
    assert "| 60.00 |  | 50.00 ± 1.00 |  |" in experiment.short(told)
    assert "commit `abc` on a GPU" in experiment.table(told)
    assert "Not run yet: mnist even at ε = 0.4; mnist Dirichlet, α = 0.5; " in experiment.table(told)


@pytest.mark.parametrize("kind", ["local", "pairwise", "pooled", "none"])
@pytest.mark.parametrize("name", ["mnist", "cifar10", "a9a"])
def test_every_cell_and_candidate_is_a_configuration(experiment, name, kind, tmp_path):
    source, options = experiment.SOURCES[name], argparse.Namespace(steps=None, device="cpu")
    for more in source.candidates.values():
        data = experiment.Prepared("some.npz", 8000)
        tuning = experiment.Tuning(source, (), {"": experiment.Variant(more, data)}, Bench(tmp_path), options)
        for partition in experiment.PARTITIONS:
            config = tuning.config(experiment.Cell(partition, kind, None if kind == "none" else 1.0), 8.0)
            assert (config.privacy.noise == "pairwise") == (kind == "pairwise")
            assert config.private == (kind != "none")
            assert config.algorithm.batch <= 8000 / config.data.nodes
            assert config.algorithm.step_size * config.algorithm.steps == pytest.approx(8.0)
            assert source.bare(more).features.name == source.bare().features.name
