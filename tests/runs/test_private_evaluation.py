"""`privsgp evaluate RUN run.toml --private`: held-out records, budgets, ledgers, and records that were trained on."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import runs
from privsgp import metrics
from privsgp.accounting.book import Book
from privsgp.accounting.shown import up
from privsgp.accounting.statements import statements
from privsgp.errors import Refused
from privsgp.runs import booked, evaluation, problem, sums
from privsgp.runs import config as configs
from privsgp.runs.result import load
from privsgp.runs.rows import labelled_rows
from privsgp.sites import sums as between
from privsgp.sites.run import read_own

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
    (tmp_path / "schema.toml").write_text(SCHEMA + 'who = { type = "ignored" }\n')
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
    asked = config.with_section("evaluation", share=share).evaluation
    one = problem.unencoded(config, None, range(3)).side(asked, held_out=held_out)
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


def test_noised_counts_calibrate_the_model_and_choose_its_threshold(place):
    train(place)
    assert evaluate(place, "--set", "evaluation.epsilon=20").code == 0
    counts = place / "run" / "evaluation-1" / "evaluation.json"
    spent = Book().spent_on(records(place, "test-{site}.csv")[0].hashes, "zero-out")
    result = load(place / "run")
    rows = [pair for site in SITES for pair in [rows_of(result, place / f"test-{site}.csv")]]
    p, y = (np.concatenate(part) for part in zip(*rows, strict=True))
    ran = runs.command("evaluate", place / "run", counts, "--calibrate", "--threshold-for=sensitivity=0.9")
    assert ran.code == 0, ran.err
    kept = json.loads((place / "run" / "calibration.json").read_text())
    shift, slope = metrics.platt(p, y)
    assert (kept["shift"], kept["slope"]) == pytest.approx((shift, slope), abs=0.15)
    assert kept["samples"] == 1800
    recall = (load(place / "run").predict_proba(features(place))[:, 1] >= kept["threshold"])[y == 1].mean()
    assert 0.88 < recall < 1
    assert Book().spent_on(records(place, "test-{site}.csv")[0].hashes, "zero-out") == spent
    again = runs.command("evaluate", place / "run", counts, "--calibrate", "--threshold-for=specificity=0.8")
    assert again.code == 0, again.err
    second = json.loads((place / "run" / "calibration.json").read_text())
    assert (second["shift"], second["slope"]) == (kept["shift"], kept["slope"])
    assert second["threshold"] > kept["threshold"]


def test_counts_of_another_model_and_a_silent_option_are_refused(place):
    train(place)
    assert evaluate(place).code == 0
    counts = place / "run" / "evaluation-1" / "evaluation.json"
    assert "--private does not go with --calibrate" in evaluate(place, "--calibrate").err
    assert "has metrics already" in runs.command("evaluate", place / "run", counts).err
    found = json.loads(counts.read_text())
    counts.write_text(json.dumps(found | {"model": "0" * 64}))
    ran = runs.command("evaluate", place / "run", counts, "--calibrate")
    assert ran.code == 2
    assert "is no private evaluation of" in ran.err
    counts.write_text(json.dumps(found | {"histogram": found["histogram"] | {"edges": [0.0, 1.0]}}))
    assert runs.command("evaluate", place / "run", counts, "--calibrate").code == 2


def test_a_threshold_that_came_from_samples_is_in_no_release(place):
    """A score of one test record was an edge of the released histogram."""
    train(place)
    ran = runs.command("evaluate", place / "run", place / "test-aachen.csv", "--threshold-for=sensitivity=0.9")
    assert ran.code == 0, ran.err
    threshold = json.loads((place / "run" / "calibration.json").read_text())["threshold"]
    ran = evaluate(place)
    assert (ran.code, "calibration.json is not used" in ran.err) == (0, True)
    edges = json.loads((place / "run" / "evaluation-1" / "evaluation.json").read_text())["histogram"]["edges"]
    assert edges == pytest.approx(np.linspace(0, 1, 11))
    assert threshold not in edges


def rows_of(result, path):
    x, y = labelled_rows(path, result.card)
    return result.predict_proba(x)[:, 1], y


def features(place):
    card = load(place / "run").card
    return np.concatenate([labelled_rows(place / f"test-{site}.csv", card)[0] for site in SITES])


def test_the_report_shows_the_model_on_held_out_patients(place):
    train(place)
    assert evaluate(place).code == 0
    assert runs.command("report", place / "run", "--out", place / "page.html").code == 0
    page = (place / "page.html").read_text()
    assert "The model on held-out patients" in page
    assert "together with training" in page
    assert "sex = M" in page


def test_a_private_run_holds_records_out_by_their_place(place):
    """The sizes tell nothing of the records: they are those of a file whose rows are all equal."""
    private = ("--set", "privacy.epsilon=1.0", "--set", "privacy.sigma=")
    share = ("--set", "evaluation.share=0.3")
    train(place, *private, *share)
    ran = evaluate(place, *private, *share, "--json", file="run.toml")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert "together with training ε = 2.9" in ran.err
    text = (place / "aachen.csv").read_text().splitlines()
    (place / "aachen.csv").write_text("\n".join([text[0], *[text[1]] * 600]) + "\n")
    equal = records(place, share=0.3, held_out=True)
    assert [len(one.hashes) for one in equal] == found["held_out"]
    ran = evaluate(place, *private, *share, file="run.toml")
    assert (ran.code, "node 0 holds out other records now" in ran.err) == (2, True)


def test_both_sides_of_a_split_by_record_are_charged(place):
    private = ("--set", "privacy.epsilon=1.0", "--set", "privacy.sigma=", "--set", "evaluation.share=0.3")
    train(place, *private)
    held, kept = (records(place, share=0.3, held_out=which) for which in (True, False))
    assert {Book().spent_on(one.hashes, "zero-out").epsilon for one in held} == {0}
    assert evaluate(place, *private, file="run.toml").code == 0
    assert {Book().spent_on(one.hashes, "zero-out").epsilon for one in held} == {2}
    assert {Book().spent_on(one.hashes, "zero-out").epsilon for one in kept} == {3}


PERSONS = (
    "--set", 'data.person="who"', "--set", "data.rows_per_person=2", "--set", "privacy.epsilon=1.0",
    "--set", "privacy.sigma=", "--set", "evaluation.share=0.3",
)  # fmt: skip


def with_persons(place, template="{}", first=0):
    """Give each two rows of a file a person."""
    for number, site in enumerate(SITES):
        path = place / f"{template.format(site)}.csv"
        head, *lines = path.read_text().splitlines()
        lines = [f"{line},p{first + 1000 * number + i // 2}" for i, line in enumerate(lines)]
        path.write_text("\n".join([f"{head},who", *lines]) + "\n")


def of_persons(place, *, held_out):
    config = configs.read(place / "run.toml", [*PERSONS[1::2]])
    one = problem.unencoded(config, None, range(3)).side(config.evaluation, held_out=held_out)
    return booked.records_of(one.hashes, one.dataset, one.parts)


def test_a_person_pays_for_training_or_for_the_evaluation(place):
    with_persons(place)
    train(place, *PERSONS)
    ran = evaluate(place, *PERSONS, "--json", file="run.toml")
    assert ran.code == 0, ran.err
    assert "nobody pays for both training and this evaluation: ε = 2, δ = 0.0001 at most" in ran.err
    found = json.loads(ran.out)
    assert (found["unit"], found["added"], sum(found["held_out"])) == ("person", None, pytest.approx(270, abs=40))
    held, kept = (of_persons(place, held_out=which) for which in (True, False))
    assert not {int(h) for one in held for h in one.hashes[:, -1]} & {int(h) for one in kept for h in one.hashes[:, -1]}
    spent = [{Book().spent_on(one.hashes, "zero-out, one person").epsilon for one in side} for side in (held, kept)]
    assert spent == [{2}, {1}]


def test_a_split_that_keeps_everybody_is_found(place, monkeypatch):
    """Planted: the evaluation counts persons that the run trained on, by another side or another column."""
    with_persons(place)
    train(place, *PERSONS)
    with monkeypatch.context() as planted:
        planted.setattr(problem, "side", lambda _dataset, rows, _asked, *, held_out: rows)
        ran = evaluate(place, *PERSONS, file="run.toml")
        assert (ran.code, "holds out other records now than it did" in ran.err) == (2, True)
    ran = runs.command("train", place / "run.toml", "--out", place / "all", *PERSONS[:-2])
    assert ran.code == 0, ran.err
    ran = runs.command("evaluate", place / "all", place / "{site}.csv", "--private", "--set", 'data.person="row"')
    assert (ran.code, "counts persons by 'who'" in ran.err) == (2, True)


def test_another_identifier_between_sites_is_refused(place, monkeypatch):
    """Planted: an evaluation that counts trained persons by another column, in which all of them look new."""
    with_persons(place)
    path = place / "aachen.csv"
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([f"{head},row", *(f"{line},r{i}" for i, line in enumerate(lines))]) + "\n")
    (place / "schema.toml").write_text((place / "schema.toml").read_text() + 'row = { type = "ignored" }\n')
    train(place, *PERSONS[:-2])
    for who, said in (("row", "counts persons by 'who', not by 'row'"), ("who", "that a site trained on")):
        config = configs.read(place / "run.toml", [*PERSONS[1:-2:2], f'data.person="{who}"'])
        config = config.with_section("data", path=None, sizes=[300] * 3)
        study, _ = between.like(config, place / "run", [300] * 3, 2.0)
        with pytest.raises(Refused, match=said):
            between.counted(study, 0, read_own(study, path), place / "run" / "model.safetensors", print)
    with_persons(place, "test-{}", first=5000)
    monkeypatch.setattr(evaluation, "refuse_other_terms", lambda *_: None)  # the model's file says that s is 2, too
    forged, new = study.with_section("privacy", sites_per_person=2), place / "test-basel.csv"
    with pytest.raises(Refused, match=r"privacy\.sites_per_person"):
        between.counted(forged, 0, read_own(forged, new), place / "run" / "model.safetensors", print)


def test_a_models_file_that_lies_about_the_budget_of_training_is_refused(place):
    """Planted: a site would say that nobody pays more than the smaller ε of the file."""
    with_persons(place)
    with_persons(place, "test-{}", first=5000)
    train(place, *PERSONS[:-2])
    path, new = place / "run" / "model.safetensors", place / "test-aachen.csv"
    config = configs.read(place / "run.toml", PERSONS[1:-2:2]).with_section("data", path=None, sizes=[300] * 3)
    study, _ = between.like(config, place / "run", [300] * 3, 2.0)
    between.counted(study, 0, read_own(study, new), path, print)
    text, forged = path.read_bytes(), b'\\"epsilon\\": 0.5'
    path.write_bytes(text.replace(b'\\"epsilon\\": 1.0', forged))
    assert forged in path.read_bytes()
    study, _ = between.like(config, place / "run", [300] * 3, 2.0)
    with pytest.raises(Refused, match=r"cost ε = 0\.5, δ = 0\.0001, and the budget book has 1\.0, 0\.0001"):
        between.counted(study, 0, read_own(study, new), path, print)


def test_a_later_split_by_another_key_adds_up(place):
    """Whom the first study holds out and evaluates, the second trains on: both are charged."""
    with_persons(place)
    train(place, *PERSONS)
    assert evaluate(place, *PERSONS, file="run.toml").code == 0
    held = of_persons(place, held_out=True)
    other = (*PERSONS, "--set", 'evaluation.key="other"')
    ran = runs.command("train", place / "run.toml", "--out", place / "later", *other)
    assert ran.code == 0, ran.err
    assert "are held out by 'held'" in runs.unwrapped(ran.err)
    spent = {Book().spent_on(one.hashes[[i]], "zero-out, one person").epsilon for one in held for i in range(40)}
    assert spent == {2, 3}


def test_two_models_on_the_same_held_out_persons_are_two_releases(place):
    """A comparison: held-out persons pay for both evaluations, all others for both trainings."""
    with_persons(place)
    for name, step in (("first", 1.0), ("second", 0.1)):
        step_size = ("--set", f"algorithm.step_size={step}")
        ran = runs.command("train", place / "run.toml", "--out", place / name, *PERSONS, *step_size)
        assert ran.code == 0, ran.err
        ran = runs.command("evaluate", place / name, place / "run.toml", "--private", *PERSONS)
        assert ran.code == 0, ran.err
    sides = [of_persons(place, held_out=held) for held in (True, False)]
    spent = [{Book().spent_on(one.hashes, "zero-out, one person").epsilon for one in side} for side in sides]
    assert spent == [{4}, {2}]


def test_a_person_at_several_sites_pays_for_both(place):
    with_persons(place)
    several = (*PERSONS, "--set", "privacy.sites_per_person=2")
    train(place, *several)
    ran = evaluate(place, *several, file="run.toml")
    assert "held out at another: this is the sum" in ran.err, ran.err
    spent = {Book().spent_on(one.hashes, "zero-out, one person").epsilon for one in of_persons(place, held_out=False)}
    assert spent == {3}


def test_another_key_moves_persons_and_is_refused(place):
    with_persons(place)
    train(place, *PERSONS)
    ran = evaluate(place, *PERSONS, "--set", 'evaluation.key="other"', file="run.toml")
    assert (ran.code, "another [data], seed or evaluation.share" in ran.err) == (2, True)


def test_persons_that_were_trained_on_are_refused(place):
    """Planted: evaluation on persons that another site trained on."""
    with_persons(place)
    with_persons(place, "test-{}", first=5000)
    train(place, *PERSONS[:-2])
    assert evaluate(place).code == 0
    path = place / "test-cork.csv"
    path.write_text(path.read_text().replace(",p7000\n", ",p 3\n").replace("p 3", "p3"))  # of aachen
    ran = evaluate(place)
    assert (ran.code, "the run trained on 1 of the persons" in ran.err) == (2, True)


def test_two_evaluations_are_two_releases(place):
    """Planted: the same noise for two releases."""
    train(place, "--set", "privacy.epsilon=1.0", "--set", "privacy.sigma=")
    ran = [evaluate(place, "--json") for _ in range(2)]
    assert "2 evaluations of this run are 2 releases: together ε = 4, δ = 0.0002" in runs.unwrapped(ran[1].err)
    first, second = (json.loads(one.out) for one in ran)
    values = [[one["value"] for one in found["metrics"]] for found in (first, second)]
    assert values[0] != values[1]
    (held,) = {Book().spent_on(one.hashes, "zero-out").epsilon for one in records(place, "test-{site}.csv")}
    (trained,) = {Book().spent_on(one.hashes, "zero-out").epsilon for one in records(place)}
    assert (held, trained) == (pytest.approx(4), pytest.approx(5))  # a person may have both


def test_an_evaluation_that_dies_after_its_release_is_charged(place, monkeypatch):
    """Another call is another release with other noise: both are in the book, also if a folder is deleted."""
    train(place, "--set", "privacy.epsilon=1.0", "--set", "privacy.sigma=")
    with monkeypatch.context() as dying:
        dying.setattr(evaluation, "written", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            evaluate(place)
    assert (place / "run" / "evaluation-1" / "ledger").exists()
    shutil.rmtree(place / "run" / "evaluation-1")
    assert evaluate(place).code == 0
    assert {Book().spent_on(one.hashes, "zero-out").epsilon for one in records(place, "test-{site}.csv")} == {4}


def test_a_file_that_was_trained_on_is_refused(place):
    """Planted: evaluation on trained records. Records that are equal by chance are reported, and pay for both."""
    train(place)
    (place / "test-cork.csv").write_text((place / "basel.csv").read_text())
    ran = evaluate(place)
    assert (ran.code, "records that a site trained on" in ran.err) == (2, True)
    text = (place / "test-basel.csv").read_text().splitlines()
    trained = (place / "basel.csv").read_text().splitlines()[1:4]
    (place / "test-cork.csv").write_text("\n".join([*text, *trained]) + "\n")
    ran = evaluate(place)
    assert (ran.code, "3 of 603 test records equal a trained one" in ran.err) == (0, True)


def test_a_release_in_a_folder_of_another_one_is_refused(place, monkeypatch):
    """Two commands that begin at once may choose the same folder."""
    train(place)
    assert evaluate(place).code == 0
    monkeypatch.setattr(sums, "next_folder", lambda folder, name: folder / f"{name}-1")
    ran = evaluate(place)
    assert (ran.code, "holds a release of another process" in ran.err) == (2, True)


def test_the_book_knows_the_unit_that_the_models_file_may_lie_about(place, monkeypatch):
    with_persons(place)
    with_persons(place, "test-{}", first=5000)
    train(place, "--set", "privacy.epsilon=1.0", "--set", "privacy.sigma=")
    monkeypatch.setattr(evaluation, "refuse_other_terms", lambda _config, _result: None)
    ran = evaluate(place, *PERSONS[:4])
    assert (ran.code, "under another privacy.relation, seed, data.person" in ran.err) == (2, True)


def test_another_share_than_in_training_is_refused(place):
    train(place, *SHARE)
    ran = evaluate(place, *SHARE, "--set", "evaluation.share=0.4", file="run.toml")
    assert ran.code == 2
    assert "another [data], seed or evaluation.share" in ran.err


def test_a_run_with_a_site_without_noise_is_refused(place):
    train(place, "--set", "privacy.sigma=[0.0, 0.05, 0.05]")
    ran = evaluate(place)
    assert (ran.code, "trained without a finite" in ran.err) == (2, True)


def test_the_policy_counts_a_record_that_several_nodes_have(place, monkeypatch):
    monkeypatch.setenv("PRIVSGP_SITE", str(place / "site"))
    (place / "site").mkdir()
    train(place, "--set", "privacy.epsilon=1.0", "--set", "privacy.sigma=")
    (place / "site" / "policy.toml").write_text("epsilon_total = 4.5\ndelta_run = 0.01\n")
    assert evaluate(place).code == 0
    write(place, "test-aachen", 300, np.random.default_rng(7))
    (place / "test-basel.csv").write_text((place / "test-aachen.csv").read_text())
    assert "policy.toml: epsilon_total" in evaluate(place).err


@pytest.mark.parametrize("change", ['privacy.relation="replace-one"', "seed=3"])
def test_an_epsilon_of_other_terms_is_refused(place, change):
    train(place)
    ran = evaluate(place, "--set", change, file="test-{site}.csv")
    assert (ran.code, "under another privacy.relation, seed" in ran.err) == (2, True)


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
    assert not list((place / "run").glob("evaluation-*/ledger/*"))
    assert evaluate(place, "--set", "evaluation.epsilon=1.4").code == 2  # 2.4 of a person with records on both sides
    assert evaluate(place, "--set", "evaluation.epsilon=0.5").code == 0


BY_PERSON, BY_RECORD = PERSONS[:4], ("--set", "data.person=", "--set", "data.rows_per_person=")


@pytest.mark.parametrize(("trained", "evaluated"), [((), BY_PERSON), (BY_PERSON, BY_RECORD)])
def test_the_unit_is_that_of_training(place, trained, evaluated):
    """By person, records of a run by record would all be new: nobody would seem to pay for both."""
    with_persons(place)
    train(place, *PERSONS[4:8], *trained)
    ran = evaluate(place, *evaluated, file="{site}.csv")
    assert (ran.code, "under another privacy.relation, seed, data.person" in ran.err) == (2, True)


def test_persons_have_no_sides_of_public_sizes_if_one_is_replaced(place):
    with_persons(place)
    ran = runs.command("train", place / "run.toml", *PERSONS, "--set", 'privacy.relation="replace-one"')
    assert (ran.code, "another person may be on the other side" in ran.err) == (2, True)


def test_both_parts_of_a_sum_name_their_condition_and_a_large_delta(place):
    private = (*PERSONS[4:8], "--set", "evaluation.share=0.3")
    train(place, "--set", 'privacy.noise="pairwise"', *private)
    ran = evaluate(place, *private, "--set", "evaluation.delta=0.006", file="run.toml")
    assert ran.code == 0, ran.err
    assert "training's part holds only if 3 of 3 sites are honest" in ran.err
    assert "WARNING: δ = 0.006 is not below 1/J of a site with 1" in ran.err


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
    assert (ran.code, "the budget book does not know this run" in ran.err) == (2, True)


def test_sites_agree_on_a_held_out_share(place):
    for share in (None, 0.3):
        changed = [] if share is None else ["seed=1", f"evaluation.share={share}"]
        assert configs.read(place / "run.toml", changed).shared()["evaluation"]["share"] == share


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
    ran = evaluate(place, *options, "--set", "evaluation.residual=1e300", file="run.toml")
    assert (ran.code, list((place / "run").glob("evaluation-*"))) == (2, [])
    ran = evaluate(place, *options, "--set", "evaluation.epsilon=20.0", "--json", file="run.toml")
    assert ran.code == 0, ran.err
    metrics = {one["metric"]: one for one in json.loads(ran.out)["metrics"]}
    assert set(metrics) == {"r2", "mae", "clipped"}
    assert metrics["mae"]["value"] == pytest.approx(1.6, abs=0.4)
    assert metrics["r2"]["low"] < 0.91 < metrics["r2"]["high"] + 0.02
