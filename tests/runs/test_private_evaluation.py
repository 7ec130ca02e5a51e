"""`privsgp evaluate RUN run.toml --private`: held-out records, budgets, ledgers, and records that were trained on."""

from __future__ import annotations

import json

import numpy as np
import pytest

import runs
from privsgp.accounting.book import Book
from privsgp.accounting.shown import up
from privsgp.accounting.statements import statements
from privsgp.runs import booked, problem
from privsgp.runs import config as configs

SCHEMA = """
[target]
column = "back"
classes = ["no", "yes"]
[columns]
age = { type = "number", range = [0, 100] }
dose = { type = "number", range = [0, 1] }
sex = { type = "category", values = ["F", "M"] }
"""
RUN = """
name = "held"
[data]
schema = "schema.toml"
sites = ["aachen", "basel", "cork"]
path = "{site}.csv"
[model]
name = "logistic"
[graph]
name = "ring"
[privacy]
sigma = 0.05
delta = 1e-4
[algorithm]
name = "privsgp"
batch = 20
steps = 12
step_size = 1.0
[engine]
device = "cpu"
[evaluation]
epsilon = 2.0
delta = 1e-4
subgroups = ["sex"]
"""
SITES = ("aachen", "basel", "cork")


def write(folder, name, count, rng):
    age, dose, sex = rng.uniform(0, 100, count), rng.random(count), rng.choice(["F", "M"], count)
    said = np.where(age + 20 * rng.normal(size=count) > 50, "yes", "no")
    lines = [f"{a:.4f},{d:.4f},{s},{y}" for a, d, s, y in zip(age, dose, sex, said, strict=True)]
    (folder / f"{name}.csv").write_text("\n".join(["age,dose,sex,back", *lines]) + "\n")


@pytest.fixture
def place(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "run.toml").write_text(RUN)
    for name in (*SITES, *(f"test-{site}" for site in SITES)):
        write(tmp_path, name, 600, rng)
    return tmp_path


def train(place, *options):
    ran = runs.command("train", place / "run.toml", "--out", place / "run", *options)
    assert ran.code == 0, ran.err


def evaluate(place, *options, file="test-{site}.csv"):
    return runs.command("evaluate", place / "run", place / file, "--private", *options)


SHARE = ("--set", "seed=1", "--set", "evaluation.share=0.3")


def records(place, template="{site}.csv", *, share=None, held_out=False):
    config = configs.read(place / "run.toml").with_section("data", path=str(place / template))
    one = problem.unencoded(config, None, range(3)).side(share, held_out=held_out)
    return booked.records_of(one.hashes, one.dataset, one.parts)


def test_held_out_records_give_metrics_and_are_charged(place):
    train(place)
    ran = evaluate(place, "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    metrics = {(one["metric"], one["group"]): one for one in found["metrics"]}
    accuracy = metrics["accuracy", "all"]
    assert accuracy["low"] < 0.85
    assert accuracy["high"] > 0.7
    assert ("auc", "sex = F") in metrics
    summary = json.loads((place / "run" / "summary.json").read_text())
    assert summary["samples"] == found["held_out"] == [600] * 3
    ledgers = statements(place / "run" / "evaluation-1")
    assert [one.releases for one in ledgers] == [1, 1, 1]
    assert all(1.98 < one.epsilon <= 2 for one in ledgers)
    trained = max(summary["epsilon_spent"])
    for template, wanted in (("{site}.csv", float("inf")), ("test-{site}.csv", 2)):
        spent = max(Book().spent_on(one.hashes, "zero-out").epsilon for one in records(place, template))
        assert spent == pytest.approx(wanted)
    assert f"together with training ε = {up(trained + found['epsilon'])}, δ = 0.0002" in ran.err, ran.err


def test_the_report_shows_the_model_on_held_out_patients(place):
    train(place)
    assert evaluate(place).code == 0
    assert runs.command("report", place / "run", "--out", place / "page.html").code == 0
    page = (place / "page.html").read_text()
    assert "The model on held-out patients" in page
    assert "together with training" in page
    assert "sex = M" in page


def test_sides_are_those_of_the_records_at_every_site_and_in_every_run(place):
    train_, test = records(place, share=0.3), records(place, share=0.3, held_out=True)
    rows = [set(one.hashes[:, 0].tolist()) for one in (*train_, *test)]
    assert not set.union(*rows[:3]) & set.union(*rows[3:])
    text = (place / "aachen.csv").read_text().splitlines()
    (place / "basel.csv").write_text("\n".join([text[0], *reversed(text[1:])]) + "\n")  # the same records elsewhere
    moved = records(place, share=0.3, held_out=True)
    assert set(moved[0].hashes[:, 0].tolist()) == set(moved[1].hashes[:, 0].tolist())


def test_two_evaluations_are_two_releases(place):
    """Planted: the same noise for two releases."""
    train(place, "--set", "privacy.epsilon=1.0", "--set", "privacy.sigma=")
    first, second = (json.loads(evaluate(place, "--json").out) for _ in range(2))
    values = [[one["value"] for one in found["metrics"]] for found in (first, second)]
    assert values[0] != values[1]
    (held,) = {Book().spent_on(one.hashes, "zero-out").epsilon for one in records(place, "test-{site}.csv")}
    (trained,) = {Book().spent_on(one.hashes, "zero-out").epsilon for one in records(place)}
    assert (held, trained) == (pytest.approx(4), pytest.approx(1))


def test_records_that_were_trained_on_are_refused(place):
    """Planted: evaluation on trained records."""
    train(place)
    for name in SITES:
        write(place, f"other-{name}", 50, np.random.default_rng(9))
    with (place / "other-cork.csv").open("a") as file:
        file.write((place / "basel.csv").read_text().splitlines()[1] + "\n")
        file.write((place / "basel.csv").read_text().splitlines()[2] + "\n")
        file.write((place / "basel.csv").read_text().splitlines()[3] + "\n")
    ran = evaluate(place, file="other-{site}.csv")
    assert ran.code == 2
    assert "were trained on" in ran.err
    assert not list((place / "run").glob("evaluation-*"))
    assert evaluate(place, file="test-{site}.csv").code == 0


def test_another_share_than_in_training_is_refused(place):
    train(place, *SHARE)
    ran = evaluate(place, *SHARE, "--set", "evaluation.share=0.4", file="run.toml")
    assert ran.code == 2
    assert "another [data], seed or evaluation.share" in ran.err


def test_a_private_run_with_a_share_is_refused(place):
    """Its sizes would count the records with equal inputs, without noise."""
    ran = runs.command("train", place / "run.toml", "--out", place / "run", "--set", "evaluation.share=0.3")
    assert (ran.code, "evaluation.share = 0.3 without seed" in ran.err) == (2, True)


def test_a_run_with_a_site_without_noise_is_refused(place):
    train(place, "--set", "privacy.sigma=[0.0, 0.05, 0.05]")
    ran = evaluate(place)
    assert (ran.code, "trained without a finite" in ran.err) == (2, True)


def test_the_policy_counts_a_record_that_several_nodes_have(place, monkeypatch):
    monkeypatch.setenv("PRIVSGP_SITE", str(place / "site"))
    (place / "site").mkdir()
    train(place, "--set", "privacy.epsilon=1.0", "--set", "privacy.sigma=")
    (place / "site" / "policy.toml").write_text("epsilon_total = 3.5\ndelta_run = 0.01\n")
    assert evaluate(place).code == 0
    write(place, "test-aachen", 300, np.random.default_rng(7))
    (place / "test-basel.csv").write_text((place / "test-aachen.csv").read_text())
    assert "policy.toml: epsilon_total" in evaluate(place).err


@pytest.mark.parametrize("change", ['privacy.relation="replace-one"', "seed=3"])
def test_an_epsilon_of_other_terms_is_refused(place, change):
    train(place)
    ran = evaluate(place, "--set", change, file="test-{site}.csv")
    assert (ran.code, "under another privacy.relation, or seed" in ran.err) == (2, True)


def test_several_processes_are_refused(place, monkeypatch):
    train(place)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "without torchrun" in evaluate(place).err


def test_the_policy_bounds_training_and_evaluation_together(place, monkeypatch):
    monkeypatch.setenv("PRIVSGP_SITE", str(place / "site"))
    train(place, "--set", "privacy.epsilon=1.0", "--set", "privacy.sigma=")
    (place / "site").mkdir()
    (place / "site" / "policy.toml").write_text("epsilon_total = 1.5\ndelta_run = 0.01\n")
    ran = evaluate(place)
    assert (ran.code, "policy.toml: epsilon_total" in ran.err) == (2, True)
    assert not list((place / "run").glob("evaluation-*"))
    assert evaluate(place, "--set", "evaluation.epsilon=1.4").code == 0


def test_pairwise_noise_and_a_simulation(place):
    train(place, "--set", "seed=1", "--set", 'privacy.noise="pairwise"')
    again = [evaluate(place, "--json", "--set", "seed=1", "--set", 'privacy.noise="pairwise"') for _ in range(2)]
    assert [one.code for one in again] == [0, 0], again[0].err
    found = json.loads(again[0].out)
    assert (found["simulation"], found["honest"], found["noise"]) == (True, 3, "pairwise")
    assert "only if 3 of 3 sites are honest" in again[0].err


def test_a_run_that_the_book_does_not_know_is_refused(place, monkeypatch):
    train(place)
    monkeypatch.setenv("PRIVSGP_STATE", str(place / "elsewhere"))
    ran = evaluate(place)
    assert (ran.code, "the budget book does not know the run" in ran.err) == (2, True)


def test_sites_refuse_what_runs_in_one_process_only(place):
    from privsgp.sites.agreement import _algorithm_faults

    config = configs.read(place / "run.toml", ["seed=1", "evaluation.share=0.3"])
    assert any(broken and "evaluation.share" in what for broken, what, _ in _algorithm_faults(config))
    assert "evaluation" in config.shared()
    assert "evaluation" not in configs.read(place / "run.toml").shared()


def test_several_classes_give_a_confusion(tmp_path):
    (tmp_path / "run.toml").write_text(
        runs.SMALL.replace("sizes = [300, 300, 300, 300]\n", "") + "[evaluation]\nshare = 0.3\n"
    )
    train(tmp_path)
    ran = evaluate(tmp_path, "--set", "evaluation.epsilon=20.0", "--json", file="run.toml")
    assert ran.code == 0, ran.err
    metrics = {(one["metric"], one["group"]): one for one in json.loads(ran.out)["metrics"]}
    assert metrics["accuracy", "all"]["value"] > 0.5
    assert ("recall", "all, class 9") in metrics


def test_numbers_give_r2_and_mae_in_the_unit_of_the_table(place):
    schema = SCHEMA.replace('column = "back"\nclasses = ["no", "yes"]', 'column = "stay"\nrange = [0, 40]')
    (place / "schema.toml").write_text(schema)
    rng = np.random.default_rng(5)
    for name in SITES:
        age, dose = rng.uniform(0, 100, 600), rng.random(600)
        lines = [
            f"{a:.4f},{d:.4f},F,{a / 5 + 10 * d + e:.3f}"
            for a, d, e in zip(age, dose, rng.normal(0, 2, 600), strict=True)
        ]
        (place / f"{name}.csv").write_text("\n".join(["age,dose,sex,stay", *lines]) + "\n")
    options = (
        "--set",
        "seed=1",
        "--set",
        "evaluation.share=0.3",
        "--set",
        "evaluation.subgroups=",
        "--set",
        'model.name="linear"',
        "--set",
        'model.loss="mse"',
    )
    train(
        place, *options, "--set", "algorithm.steps=60", "--set", "algorithm.step_size=0.1", "--set", "privacy.clip=4.0"
    )
    ran = evaluate(place, *options, "--set", "evaluation.epsilon=20.0", "--json", file="run.toml")
    assert ran.code == 0, ran.err
    metrics = {one["metric"]: one for one in json.loads(ran.out)["metrics"]}
    assert set(metrics) == {"r2", "mae", "clipped"}
    assert metrics["mae"]["value"] == pytest.approx(1.6, abs=0.4)
    assert metrics["r2"]["low"] < 0.91 < metrics["r2"]["high"] + 0.02
