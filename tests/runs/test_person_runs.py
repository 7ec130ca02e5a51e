"""A person, not a row: order and files change nothing, one row a person is the run on rows, and identifiers stay."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import privsgp
import runs
from privsgp.accounting.book import Book
from privsgp.accounting.statements import statements
from privsgp.algorithms import ALGORITHMS, Drawn, Exchange, Release, State, ToServer
from privsgp.algorithms.block import Randomness
from privsgp.audit.attack import _ZeroedOut
from privsgp.clock import Event
from privsgp.data import persons
from privsgp.data.dataset import from_arrays, stack
from privsgp.engine.drive import drive
from privsgp.errors import Refused
from privsgp.gradients import Layout
from privsgp.gradients import stack as gradients
from privsgp.gradients.persons import of_samples
from privsgp.runs import build, config, views
from privsgp.runs import problem as problems
from privsgp.runs.resolve import resolve

METHODS = ("privsgp", "privsgp-vr", "privsgp-sag", "dp2-sgd")
SCHEMA = """
[target]
column = "y"
classes = ["no", "yes"]
[columns]
patient_id = { type = "ignored" }
visit = { type = "ignored" }
u = { type = "number", range = [-3, 3] }
v = { type = "number", range = [-3, 3] }
"""
RUN = """
name = "persons"
seed = 1
[data]
schema = "schema.toml"
sites = ["a", "b"]
path = "{site}.csv"
person = "patient_id"
rows_per_person = 3
[model]
name = "mlp"
hidden = 4
[graph]
name = "complete"
[privacy]
epsilon = 3.0
[algorithm]
name = "privsgp-vr"
batch = 10
steps = 6
[engine]
device = "cpu"
checkpoint_every = 3
"""


def table(seed, people=25, most=5, name="PAT-{}-{:03d}"):
    rng = np.random.default_rng(seed)
    return [
        f"{name.format(seed, p)},2024-0{k + 1}-1{k},{u:.3f},{v:.3f},{'yes' if u > v else 'no'}"
        for p in range(people)
        for k in range(rng.integers(1, most + 1))
        for u, v in [rng.normal(size=2)]
    ]


def write(folder, name, lines):
    (folder / f"{name}.csv").write_text("\n".join(["patient_id,visit,u,v,y", *lines]) + "\n")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "run.toml").write_text(RUN)
    for seed, name in enumerate("ab"):
        write(tmp_path, name, table(seed))
    return tmp_path


def train(place, out, *options):
    ran = runs.command("train", place / "run.toml", "--out", place / out, *options)
    assert ran.code == 0, ran.err
    return ran


def weights(place, out):
    return [
        {name: array.tolist() for name, array in load_file(file).items()}
        for file in [place / out / "model.safetensors", *sorted((place / out / "nodes").iterdir())]
    ]


@pytest.mark.parametrize("choice", [(), ("--set=data.rows_choice=latest", "--set=data.rows_date=visit")])
def test_the_order_of_rows_changes_nothing(place, choice):
    train(place, "one", *choice)
    for seed, name in enumerate("ab"):
        write(place, name, np.random.default_rng(9).permutation(table(seed)).tolist())
    train(place, "other", *choice)
    assert weights(place, "one") == weights(place, "other") != []


@pytest.mark.parametrize("method", METHODS)
def test_one_row_a_person_is_the_run_on_rows_to_the_bit(place, method):
    for seed, name in enumerate("ab"):
        write(place, name, table(seed, most=1))
    method = f"--set=algorithm.name={method}"
    train(place, "persons", method, "--set=data.rows_per_person=1")
    train(place, "rows", method, "--set=data.person=", "--set=data.rows_per_person=")
    assert weights(place, "persons") == weights(place, "rows")
    train(place, "several", method, "--set=privacy.epsilon=", "--set=privacy.sigma=0.1")
    train(place, "fixed", method, "--set=privacy.epsilon=", "--set=privacy.sigma=0.1", "--set=data.rows_per_person=1")
    several, fixed = (load_file(place / out / "model.safetensors") for out in ("several", "fixed"))
    torch.testing.assert_close(several, fixed, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_a_row_of_weight_two_counts_as_two_rows(place, method):
    for seed, name in enumerate("ab"):
        rows = [(line, 1 + (i % 2)) for i, line in enumerate(table(seed, most=2))]
        write(place, name, [line for line, weight in rows for _ in range(weight)])
        weighted = [f"{line},{weight}" for line, weight in rows]
        (place / f"heavy-{name}.csv").write_text("\n".join(["patient_id,visit,u,v,y,weight", *weighted]) + "\n")
    (place / "heavy.toml").write_text(SCHEMA + 'weight = { type = "ignored" }\n')
    options = f"--set=algorithm.name={method}", "--set=data.rows_per_person=4"
    train(place, "rows", *options)
    heavy = "--set=data.schema=heavy.toml", "--set=data.path=heavy-{site}.csv", "--set=data.rows_weight=weight"
    train(place, "weights", *options, *heavy)
    one, other = (load_file(place / out / "model.safetensors") for out in ("rows", "weights"))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    (place / "heavy-a.csv").write_text((place / "heavy-a.csv").read_text().replace(",2\n", ",0\n", 1))
    ran = runs.command("train", place / "run.toml", "--out", place / "zero", *options, *heavy)
    assert (ran.code, "a weight is not above 0" in ran.err) == (2, True)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("noise", ["independent", "pairwise"])
def test_a_run_that_stops_goes_on_and_counts_persons(place, method, noise):
    options = f"--set=algorithm.name={method}", f"--set=privacy.noise={noise}"
    train(place, "whole", *options)
    assert runs.killed("train", place / "run.toml", "--out", place / "broken", *options, steps=4)
    train(place, "broken", *options, "--resume")
    assert weights(place, "whole") == weights(place, "broken")
    found = statements(place / "whole")
    assert [(one.unit, one.budget) for one in found] == [("one person, up to 3 rows", 3.0)] * 2
    assert json.loads((place / "whole" / "summary.json").read_text())["samples"] == [25, 25]
    counted = [epsilon for _, epsilon in found[0].by_sites]
    assert counted == sorted(counted)
    assert counted[0] == found[0].epsilon


def test_a_person_at_two_sites_is_what_the_noise_is_for(place):
    train(place, "one")
    train(place, "two", "--set=privacy.sites_per_person=2")
    one, two = (statements(place / out)[0] for out in ("one", "two"))
    assert one.by_sites[0][1] <= 3 < one.by_sites[1][1]
    assert two.by_sites[1][1] == two.epsilon <= 3
    assert "one person, up to 3 rows; at 2 sites: " in runs.unwrapped(runs.command("ledger", place / "two").out)
    text = " ".join(views.read(place / "two").privacy)
    assert "for each person" in text
    assert "record" not in text


def test_a_plan_is_for_a_person_at_as_many_sites(place):
    words = '--set=algorithm.step_size="auto"', "--set=privacy.noise=pairwise", "--set=privacy.honest=2"
    words = *words, "--set=algorithm.name=privsgp", "--set=privacy.sites_per_person=2", "--set=seed="
    plan = json.loads(runs.command("plan", place / "run.toml", "--json", *words).out)
    assert [sites for sites, _ in plan["by_sites"]] == [1, 2, 3]
    assert plan["by_sites"][1][1] == pytest.approx(3, rel=0.03)
    assert plan["pairwise"]["curve"][1] == pytest.approx([2, plan["by_sites"][1][1]])


def test_identifiers_stay_where_they_are(place):
    ran = train(place, "secret", "--set=seed=")
    assert "persons have more than 3 rows, and 3 of each are used" in ran.err
    for file in (file for file in (place / "secret").rglob("*") if file.is_file()):
        assert b"PAT-" not in file.read_bytes(), file
        assert b"have more than" not in file.read_bytes(), file
    assert "PAT-" not in ran.out + ran.err
    entries = Book().entries()
    assert {entry.relation for entry in entries} == {"zero-out, one person"}
    assert sum(one.records for one in Book().data_sets()) == 50


def test_rows_of_a_person_in_another_file_are_in_the_book(place):
    train(place, "first", "--set=seed=")
    write(place, "a", [line.replace(",2024", ",2025").replace(",0.", ",0.7") for line in table(0)])
    assert "25 of these records" not in (err := train(place, "again", "--set=seed=").err), err
    assert "of these records are also in 'persons'" in err
    rows = train(place, "rows", "--set=seed=", "--set=data.person=", "--set=data.rows_per_person=")
    assert "ε is for a row" in rows.err


@pytest.mark.parametrize(
    ("line", "options", "said"),
    [
        (" ,2024-01-01,1,1,yes", (), "no identifier of a person"),
        ("NA,2024-01-01,1,1,yes", (), "no identifier of a person"),
        ("X,,1,1,yes", ("--set=data.rows_choice=latest", "--set=data.rows_date=visit"), "no date"),
        (None, ("--set=data.person=u",), "no model may see"),
        (None, ("--set=data.person=nobody",), "has no column 'nobody'"),
        (None, ("--set=data.rows_per_person=",), "without data.rows_per_person"),
        (None, ("--set=data.rows_per_person=65",), "64"),
        (None, ("--set=algorithm.name=adp2-sgd", "--set=privacy.sites_per_person=2"), "algorithm.name"),
        (None, ("--set=algorithm.name=dp-sgd", "--set=privacy.sites_per_person=2"), "algorithm.name"),
        (None, ("--set=privacy.sites_per_person=3",), "at most as many"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(place, line, options, said):
    if line is not None:
        write(place, "b", [*table(1), line])
    ran = runs.command("train", place / "run.toml", "--out", place / "out", *options)
    assert ran.code == 2
    assert said in ran.err


def test_a_site_sees_how_many_persons_are_cut_and_init_suggests_the_key(place):
    ran = runs.command(
        "data", "check", place / "schema.toml", place / "a.csv", "--person=patient_id", "--rows-per-person=3"
    )
    assert "persons with more than 3 rows" in ran.out
    assert "│ 25" in ran.out
    assert "data.person" not in runs.command("data", "check", place / "schema.toml", place / "a.csv").out.replace(
        "[data] person", ""
    )
    write(place, "public", table(7))
    options = "--target", "y", "--sites", "a,b", "--path", f"{place}/{{site}}.csv", "--out", place / "new"
    assert runs.command("init", "--public", place / "public.csv", *options).code == 0
    assert '# person = "patient_id"' in (place / "new" / "run.toml").read_text()
    assert 'patient_id = { type = "ignored" }' in (place / "new" / "schema.toml").read_text()


def grouped(names, most, dates=None, seed=0):
    rng = np.random.default_rng(seed)
    x = np.arange(2.0 * len(names), dtype=np.float32).reshape(-1, 2)
    data = from_arrays(x, rng.integers(0, 2, len(names)), classes=2)
    choice = {"rows_choice": "latest", "rows_date": "d"} if dates is not None else {}
    options = persons.PersonOptions(person="p", rows_per_person=most, **choice)
    return persons.grouped(data, persons.Named(names, dates), options)


def test_the_latest_rows_are_used_and_the_others_cut():
    made, cut, _ = grouped(["b", "a", "b", "b"], 2, np.array([3.0, 1.0, 1.0, 2.0]))
    assert cut == 1
    assert made.x[:, 0].tolist() == [2, 0, 6]
    stacked = stack(made, [np.arange(3)])
    assert stacked.samples == [2]
    assert stacked.inputs.shape == (1, 3, 2, 2)
    assert (stacked.targets[0] >= 0).tolist() == [[True, False], [True, True], [False, False]]


def test_which_rows_are_used_depends_on_the_person_alone():
    names = [f"p{i % 7}" for i in range(40)]
    one = grouped(names, 3)[0]
    gone = grouped([name if name != "p3" else "zz" for name in names], 3)[0]
    kept = {tuple(row) for row in one.x[~np.isin(one.x[:, 0] // 2 % 7, 3)]}
    assert kept <= {tuple(row) for row in gone.x}


def problem_of(settings):
    rng = np.random.default_rng(0)
    names = np.repeat([f"p{i}" for i in range(40)], rng.integers(1, 6, 40))
    x = (5 * rng.standard_normal((len(names), 24))).astype(np.float32)
    data = from_arrays(x, rng.integers(0, 2, len(names)), classes=2)
    weights = rng.uniform(0.1, 5, len(names)) if settings.data.rows_weight else None
    data = persons.grouped(data, persons.Named(names.tolist(), None, weights), settings.data.persons)[0]
    return problems.assembled(settings, data, problems.split(settings, data))


def configured(method, weight=None, **algorithm):
    return config.parse({
        "seed": 0, "data": {"name": "x.npz", "nodes": 2, "person": "p", "rows_per_person": 4, "rows_weight": weight},
        "model": {"name": "mlp", "hidden": 16}, "privacy": {"sigma": 0.1, "clip": 0.5},
        "algorithm": {"name": method, "batch": 5, "steps": 8} | algorithm,
    })  # fmt: skip


class Everybody(Randomness):
    """Draws everybody at every step, adds no noise, and keeps what noise would be added to."""

    secret = True

    def __init__(self, nodes, people):
        rows = torch.arange(people).expand(nodes, -1)
        self.drawn, self.bare = [Drawn(rows, torch.ones_like(rows, dtype=torch.bool))], []

    def sample(self, k):
        return self.drawn

    def sample_some(self, numbers):
        return self.drawn

    def events(self, k):
        return [Event(0.0, node, 1 - node, k) for node in (0, 1)]

    def noise(self, k, g, node=None):
        self.bare.append((k, g.double().clone()))


def released(spec, absent, *, messages):
    """Return all messages, or all that noise is added to, with one person of each node or without.

    Answers of others are the same in both.
    """
    learning, layout, sent = spec.learning, Layout.of(spec.learning.model), []
    present = torch.ones(learning.inputs.shape[:2], dtype=torch.bool)
    present[:, absent] = False
    gradient = of_samples(gradients(learning.model, learning.loss, learning.made_up()), learning.rows)
    people = len(learning.inputs[0]) - 1
    block = _ZeroedOut(
        mechanisms=spec.mechanisms, data=learning.data, gradient=gradient,
        random=Everybody(len(present), people), step_size=lambda _k: 1.0, present=present,
        taken=torch.zeros_like(present),
    )  # fmt: skip
    algorithm = spec.algorithm(block, spec.settings)
    state = State.start(layout.flatten(learning.model), len(present))
    algorithm.begin(state.z)
    back = torch.Generator().manual_seed(1)

    def answer(k, event):
        if isinstance(event, Release):
            sent.append((k, event.message.double()))
            if event.node is not None:  # nodes act one at a time: what a node goes on from is its message
                event.message.copy_(torch.randn(event.message.shape, generator=back))
        if isinstance(event, ToServer):
            return torch.randn(event.messages[0].shape, generator=back)
        return (event.x, event.w) if isinstance(event, Exchange) else None

    for k in range(6):
        drive(algorithm.step(k, state), k, answer)
        state = State.debiased(torch.randn(state.x.shape, generator=back), state.w)
    return sent if messages else block.random.bare


PRIVATE = [name for name in ALGORITHMS if ALGORITHMS[name].private]


@pytest.mark.parametrize(
    ("method", "algorithm"),
    [*((name, {}) for name in PRIVATE), ("privsgp-vr", {"difference_clip": 0.1}), ("dp-srm", {"alpha": 0.5})]
    + [(name, {"weight": "w"}) for name in METHODS],
)
def test_removing_a_person_moves_a_release_by_at_most_the_counted_shift(method, algorithm):
    settings = configured(method, **algorithm)
    spec = build.build_run(resolve(settings, problem_of(settings)))
    nodes = 1 if ALGORITHMS[method].pooled else 2
    assert spec.learning.samples == [40 // nodes] * nodes
    mechanism, largest = spec.mechanisms[0], {True: 0.0, False: 0.0}
    for messages in (True, False)[0 if method in METHODS else 1 :]:  # those of others remember earlier messages
        everyone = released(spec, 40 // nodes, messages=messages)
        for person in range(40 // nodes):
            for (k, a), (_, b) in zip(everyone, released(spec, person, messages=messages), strict=True):
                moved = float((a - b).norm(dim=-1).max()) / mechanism.at(k).largest_shift
                largest[messages] = max(largest[messages], moved)
    assert max(largest.values()) <= 1 + 1e-6
    if mechanism.weighted is None:
        assert largest[False] > 0.99  # the clip is used


def test_what_is_drawn_from_is_what_is_counted(monkeypatch):
    settings = configured("privsgp-sag")
    problem = problem_of(settings)
    monkeypatch.setattr(problems.Problem, "samples", property(lambda one: [len(rows) for rows in one.parts]))
    with pytest.raises(Refused, match="counted as if they held"):
        build.build_run(resolve(settings, problem))


def test_rows_from_python_belong_to_persons(tmp_path):
    rng = np.random.default_rng(0)
    x, y, names = rng.normal(size=(90, 3)), rng.integers(0, 2, 90), [f"PAT-{i % 30}" for i in range(90)]
    given = {"algorithm": {"name": "privsgp", "steps": 3, "batch": 5}, "privacy": {"sigma": 0.1}, "classes": 2}
    model, order = torch.nn.Linear(3, 2), rng.permutation(90)
    one = privsgp.train(model, (x, y), persons=names, rows_per_person=3, nodes=2, seed=1, out=tmp_path / "a", **given)
    shuffled = [names[i] for i in order]
    other = privsgp.train(
        model, (x[order], y[order]), persons=shuffled, rows_per_person=3, nodes=2, seed=1, out=tmp_path / "b", **given
    )
    assert one.summary["samples"] == other.summary["samples"] == [15, 15]
    assert all(map(torch.equal, one.model.state_dict().values(), other.model.state_dict().values()))
    with pytest.raises(Refused, match="89 identifiers for 90 rows"):
        privsgp.train(model, (x, y), persons=names[1:], rows_per_person=3, nodes=2, seed=1, out=tmp_path / "c", **given)


def short(place, data, *more):
    """Write a short run on files of two sites."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in data.items()]
    (place / "run.toml").write_text("\n".join([
        'name = "files"', "seed = 1", "[data]", "nodes = 2", *lines, *more, '[graph]\nname = "complete"',
        "[privacy]\nepsilon = 3.0", '[algorithm]\nname = "privsgp-vr"\nbatch = 3\nsteps = 4',
        '[engine]\ndevice = "cpu"',
    ]))  # fmt: skip


def written(place, out):
    """Return all that a run wrote, and its model's weights."""
    files = {file: file.read_bytes() for file in (place / out).rglob("*") if file.is_file()}
    return b"".join(files.values()), load_file(place / out / "model.safetensors")


TEXTS = ("[data.text]", 'labels = ["no", "yes"]', "vocabulary = 50", "length = 4", '[model]\nname = "embedding"')


@pytest.mark.parametrize("choice", [{}, {"rows_choice": "latest", "rows_date": "day"}])
def test_texts_belong_to_persons(tmp_path, choice):
    rng = np.random.default_rng(0)
    rows = [
        {"who": f"PAT-{site}-{i % 9}", "day": f"2024-0{1 + i // 9}-11T08:00", "text": f"word{rng.integers(30)} {i}",
         "label": "yes" if i % 2 else "no"}
        for site in range(2) for i in range(27)
    ]  # fmt: skip
    person = {"path": "{node}.jsonl", "person": "who", "rows_per_person": 2} | choice

    def write(order):
        for site in range(2):
            own = [json.dumps(row) for row in rows if row["who"].startswith(f"PAT-{site}")]
            (tmp_path / f"{site}.jsonl").write_text("\n".join(order(own)))

    write(list)
    short(tmp_path, person, *TEXTS)
    ran = train(tmp_path, "one")
    assert "9 persons have more than 2 rows" in ran.err
    write(lambda own: own[::-1])
    train(tmp_path, "other")
    (all_of_it, one), (_, other) = written(tmp_path, "one"), written(tmp_path, "other")
    assert b"PAT-" not in all_of_it
    assert "PAT-" not in ran.out + ran.err
    assert all(map(torch.equal, one.values(), other.values()))
    assert json.loads((tmp_path / "one" / "summary.json").read_text())["samples"] == [9, 9]
    if choice:  # the first of three texts of each is never used
        rows = [row | {"text": "other", "label": "no"} if "2024-01" in row["day"] else row for row in rows]
        write(list)
        train(tmp_path, "cut")
        assert all(map(torch.equal, one.values(), written(tmp_path, "cut")[1].values()))


@pytest.mark.parametrize(
    ("changed", "data", "said"),
    [
        ({"who": None}, {}, "no identifier of a person"),
        ({"who": " "}, {}, "no identifier of a person"),
        ({}, {"person": "nobody"}, "has no 'nobody'"),
        ({}, {"person": "text"}, "no model may see"),
        ({"day": "soon"}, {"rows_choice": "latest", "rows_date": "day"}, "no date"),
    ],
)
def test_texts_of_nobody_are_refused(tmp_path, changed, data, said):
    for site in range(2):
        rows = [{"who": f"{i % 9}", "day": "2024-01-11", "text": "a b", "label": "no"} for i in range(18)]
        (tmp_path / f"{site}.jsonl").write_text("\n".join(map(json.dumps, [*rows, rows[0] | changed])))
    short(tmp_path, {"path": "{node}.jsonl", "person": "who", "rows_per_person": 2} | data, *TEXTS)
    ran = runs.command("train", tmp_path / "run.toml", "--out", tmp_path / "out")
    assert ran.code == 2
    assert said in ran.err
    short(tmp_path, {"path": "{node}.jsonl"}, *TEXTS)
    if not changed:
        assert "column 'who' has 9 different values in 19 rows" in runs.unwrapped(train(tmp_path, "rows").err)


def test_images_belong_to_persons_by_their_names(tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    for site in range(2):
        for i in range(18):
            folder = tmp_path / f"site-{site}" / "ab"[i % 2]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 255, (6, 6, 3), np.uint8)
            Image.fromarray(pixels).save(folder / f"PAT-{site}{i % 6}_{i}.png")
    images = "[data.images]", 'labels = ["a", "b"]', '[model]\nname = "logistic"'
    person = {"path": "site-{node}", "person": "{person}_*.png", "rows_per_person": 2}
    short(tmp_path, person, *images)
    ran = train(tmp_path, "one")
    assert "6 persons have more than 2 rows" in ran.err
    assert b"PAT-" not in written(tmp_path, "one")[0]
    assert json.loads((tmp_path / "one" / "summary.json").read_text())["samples"] == [6, 6]
    for wrong, said in (("{person}-x.png", "no identifier of a person"), ("patient", "write it like")):
        short(tmp_path, person | {"person": wrong}, *images)
        ran = runs.command("train", tmp_path / "run.toml", "--out", tmp_path / "out")
        assert (ran.code, said in ran.err, "PAT-" in ran.err) == (2, True, False), ran.err
