"""Survival: targets in bins, the loss of a person, and metrics that lifelines or a plain loop also give."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from privsgp import curves, models
from privsgp.cli import app
from privsgp.data import schema as schemas
from privsgp.data import survival
from privsgp.errors import Refused
from privsgp.gradients import stack
from privsgp.planner import planning, stand_in
from privsgp.runs import config as configs
from privsgp.runs.result import load

BINS = [30.0, 60.0, 180.0, 365.0]
PEOPLE = st.lists(st.tuples(st.floats(0, 400), st.booleans()), min_size=1, max_size=30)


@settings(max_examples=50)
@given(PEOPLE)
def test_targets_keep_times_to_the_last_edge_and_events(people):
    time, event = map(np.array, zip(*people, strict=True))
    y = survival.targets(time, event, BINS)
    found, died = survival.decoded(y)
    assert died.tolist() == (event & (time <= BINS[-1])).tolist()
    back = np.interp(found, range(5), [0.0, *BINS])
    assert np.allclose(back, np.minimum(time, BINS[-1]), atol=1e-3)


def test_what_is_no_target_or_no_time_is_refused():
    for bad in ([[1.5, 0]], [[0.5, 0.5]], [[-0.5, 0.5]]):
        with pytest.raises(Refused, match="not a survival target"):
            survival.decoded(np.array(bad))
    for time, bins in (([-1.0], BINS), ([1.0], [3, 2]), ([np.nan], BINS)):
        with pytest.raises(Refused):
            survival.targets(time, [True], bins)


def loss_of_a_person(logits, time, event):
    """The cross-entropy of each bin that the person reached, bin by bin."""
    total, start = 0.0, 0.0
    for logit, end in zip(logits, BINS, strict=True):
        if time <= start:
            break
        hazard = 1 / (1 + np.exp(-logit))
        if event and time <= end:
            return total - np.log(hazard)
        if time >= (start + end) / 2:
            total -= np.log(1 - hazard)
        start = end
    return total


def test_the_loss_and_its_clipped_gradients_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    time, event = rng.uniform(1, 400, 40), rng.random(40) < 0.6
    x, y = rng.standard_normal((40, 5)), survival.targets(time, event, BINS)
    model = models.make("hazard", input_shape=(5,), outputs=4, seed=0).double()
    torch.nn.init.normal_(model[1].weight)
    loss, given = models.per_sample("survival"), (torch.from_numpy(x), torch.from_numpy(y).double())
    with torch.no_grad():
        outputs = model(given[0])
    wanted = [loss_of_a_person(o, t, e) for o, t, e in zip(outputs.numpy(), time, event, strict=True)]
    assert np.allclose(loss(outputs, given[1]), wanted, atol=1e-6)
    gradient = stack(model, loss, given)
    z = gradient.layout.flatten(model)[None]
    assert gradient.layout.dim == 5 + 4, "one score, a level for each bin"
    padded = [torch.cat([t, torch.zeros_like(t[:1])])[None] for t in given]
    found = gradient(z, *padded).dense()[0]
    rows = []
    for xi, yi in zip(*given, strict=True):
        model.zero_grad()
        loss(model(xi[None]), yi[None]).sum().backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad]))
    assert torch.allclose(found[:40], torch.stack(rows), atol=1e-12)
    assert (found[40] == 0).all(), "a padding row, which was seen in no bin, has no gradient"


def test_metrics_are_those_of_lifelines_and_of_plain_loops():
    utils = pytest.importorskip("lifelines.utils")
    from lifelines import KaplanMeierFitter

    rng = np.random.default_rng(1)
    risk = rng.standard_normal(200).round(1)  # some are equal
    until, seen = rng.exponential(np.exp(-risk)), rng.exponential(2, 200)
    time, event = np.minimum(until, seen).round(2), until <= seen
    assert curves.concordance(time, event, risk) == pytest.approx(utils.concordance_index(time, -risk, event))
    at = [0.1, 0.5, 1.0, 5.0]
    wanted = KaplanMeierFitter().fit(time, event).predict(at).to_numpy()
    assert np.allclose(curves.kaplan_meier(time, event, at), wanted)
    predicted = np.exp(-0.5 * np.exp(risk))

    def seen_until(t):  # the share not censored before t: an event at the same time comes first
        kept = 1.0
        for u in sorted(set(time[time < t])):
            kept *= 1 - ((time == u) & ~event).sum() / ((time >= u).sum() - ((time == u) & event).sum())
        return kept

    total = 0.0
    for t, e, s in zip(time, event, predicted, strict=True):
        total += s**2 / seen_until(t) if e and t <= 0.5 else 0.0
        total += (1 - s) ** 2 / seen_until(0.5) if t > 0.5 or (t == 0.5 and not e) else 0.0
    assert curves.brier(predicted, time, event, 0.5) == pytest.approx(total / 200)


def people(rows, seed):
    """A table in which the risk rises with age, with times in days."""
    rng = np.random.default_rng(seed)
    age, mark = rng.uniform(40, 80, rows), rng.random(rows) < 0.5
    until = rng.exponential(300 * np.exp(-(age - 60) / 8))
    seen = rng.uniform(50, 500, rows)
    cells = zip(age, mark, np.minimum(until, seen), until <= seen, strict=True)
    return [(f"{a:.2f}", "yes" if m else "no", f"{t:.0f}", int(d)) for a, m, t, d in cells]


def write(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("age", "mark", "days", "died"), *rows])


def command(*words):
    result = CliRunner().invoke(app, list(map(str, words)))
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def test_from_init_to_curves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, rows, seed in (("public", 200, 0), ("a", 300, 1), ("b", 300, 2), ("test", 300, 3)):
        write(tmp_path / f"{name}.csv", people(rows, seed))
    command(
        "init", "--public", "public.csv", "--target", "days", "--event", "died", "--sites", "a,b", "--test", "test.csv"
    )
    run = configs.read(tmp_path / "run.toml", ["plan.data=public.csv", "data.sizes=[300, 300]"])
    source, made = planning.rehearsed_on(run, planning.problem_of(run, None), None)
    assert (source.name, len(made)) == ("synthetic", len(stand_in.SIGNALS))  # 200 rows say too little
    schema = schemas.read(tmp_path / "schema.toml")
    assert schema.times == sorted(schema.times)
    assert len(schema.times) == 8
    problems = json.loads(command("data", "check", "schema.toml", "a.csv", "--json"))["problems"]
    assert not any(one["refused"] for one in problems)
    given = ("algorithm.steps=60", "algorithm.batch=64", "algorithm.step_size=1.0", "privacy.clip=2.0", "seed=0")
    command("train", "run.toml", "--out", "run", *(f"--set={key}" for key in given))
    result = load(tmp_path / "run")
    s, predicted = result.summary, result.predict(tmp_path / "test.csv")
    assert s["c_index"] > 0.65
    assert s["survival_brier"] < s["baseline"]["survival_brier"]
    assert predicted.shape == (300, 8)
    assert (np.diff(predicted) <= 0).all()
    again = result.evaluate(tmp_path / "test.csv")
    assert (again["c_index"], again["survival"]["times"]) == (pytest.approx(s["c_index"]), schema.times)
    head, *rows = csv.reader(command("predict", "run", "test.csv").splitlines())
    assert head == ["row", *(f"S({time:g})" for time in schema.times)]
    assert len(rows) == 300
    found = json.loads(command("evaluate", "run", "test.csv", "--alone", "a.csv", "--json"))
    assert found["metrics"]["c_index"]["joint"] == pytest.approx(s["c_index"])
    assert found["metrics"]["c_index"]["alone"] > 0.65
    command("report", "run")
    assert "Kaplan–Meier" in (tmp_path / "run" / "report.html").read_text()
    with pytest.raises(Refused, match="survival"):
        load(tmp_path / "run").predict_proba(tmp_path / "test.csv")


def test_an_event_in_other_words_is_refused_by_init(tmp_path):
    (tmp_path / "public.csv").write_text("ward,days,died\n" + "A,3,ja\nA,5,nein\n" * 20)
    given = ("init", "--public", tmp_path / "public.csv", "--sites", "a,b", "--target", "days", "--event", "died")
    result = CliRunner().invoke(app, [*map(str, given), "--out", str(tmp_path / "new")])
    assert "'ja' is neither yes nor no" in str(result.exception)


def test_made_up_survival_has_the_signal_that_it_names():
    schema = schemas.parse({
        "target": {"type": "survival", "time": "t", "event": "e", "bins": BINS},
        "columns": {name: {"type": "number", "range": [0, 1]} for name in "abcd"},
    })  # fmt: skip
    found = []
    for signal in (stand_in.NONE, *stand_in.SIGNALS[:-1]):
        made = stand_in.table(schema, signal, samples=400)
        time, event = survival.decoded(made.y_test.numpy())
        x = np.c_[made.x_test.numpy(), np.ones(len(time))]
        w = np.linalg.lstsq(x, time, rcond=None)[0]
        found.append(curves.concordance(time, event, -(x @ w)))
        assert found[-1] == pytest.approx(signal.c_index, abs=0.05)
        assert made.name == f"{signal.name} (C-index {signal.c_index:.2f})"
    assert found == sorted(found)
    assert abs(found[0] - 0.5) < 0.05 < 0.25 < found[-1] - 0.5


def test_a_schema_of_survival_is_refused_by_its_key():
    text = {
        "target": {"type": "survival", "time": "t", "event": "e", "bins": [2, 1]},
        "columns": {"t": {"type": "ignored"}},
    }
    with pytest.raises(Refused, match=r"target: bins = "):
        schemas.parse(text)
    with pytest.raises(Refused, match=r"'t' is the target"):
        schemas.parse(text | {"target": text["target"] | {"bins": [1, 2]}})
    with pytest.raises(Refused, match=r"target.time"):
        schemas.parse({"target": {"type": "survival"}})
    with pytest.raises(Refused, match=r"target has an unknown type\n.*type = 'survival'"):
        schemas.parse(text | {"target": {"type": "time"}})
