"""Additive models: inputs beside a plain loop, shapes that add up to the score, and the band beside many runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import privsgp
from privsgp import models
from privsgp.cli import app
from privsgp.data import tables
from privsgp.data.schema import parse
from privsgp.data.schema_text import written
from privsgp.errors import Refused

COLUMNS = {
    "age": {"type": "number", "range": [0, 100], "bins": [30, 65]},
    "bmi": {"type": "number", "centre": 25, "scale": 5, "missing": 25},
    "sex": {"type": "category", "values": ["F", "M"]},
    "smoker": {"type": "yes/no"},
}
SCHEMA = parse({"target": {"column": "ill", "classes": ["no", "yes"]}, "columns": COLUMNS})
PAIRS = [["sex", "age"]]


def made(schema=SCHEMA, **more):
    return models.make("additive", input_shape=(schema.width,), outputs=1, seed=0, schema=schema, **more)


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    age, bmi = rng.integers(0, 101, n), rng.integers(10, 45, n).astype(object)
    bmi[rng.random(n) < 0.2] = None
    logit = np.where(age < 30, -1, np.where(age < 65, 0, 1.5))
    return {
        "age": age.tolist(), "bmi": bmi.tolist(), "sex": rng.choice(["F", "M", "X"], n).tolist(),
        "smoker": rng.choice(["yes", "no"], n).tolist(),
        "ill": np.where(rng.random(n) < 1 / (1 + np.exp(-logit)), "yes", "no").tolist(),
    }  # fmt: skip


def level(name, value):
    """Return the number of the level of a value, as the docs say it."""
    if name == "age":
        return 0 if value < 30 else 1 if value < 65 else 2
    if name == "bmi":  # eight parts of 15 to 35
        return int(np.clip((25 if value is None else value) - 15, 0, 19.9) // 2.5)
    return ["F", "M"].index(value) if value in "FM" else 2 if name == "sex" else int(value == "yes")


def test_the_score_of_a_row_is_the_sum_of_its_levels_scores():
    pa = pytest.importorskip("pyarrow")
    table = rows(50)
    torch.manual_seed(1)
    model = made(pairs=PAIRS)
    with torch.no_grad():
        torch.nn.init.normal_(model[1].weight)
    x = torch.from_numpy(tables.of_frame(pa.table(table), SCHEMA).x)
    shapes = {s.title: s for s in models.shapes(SCHEMA, 8, PAIRS, model[1].weight.detach(), 0.1)}
    assert list(shapes) == ["age", "bmi", "bmi is missing", "sex", "smoker", "sex × age"]
    assert shapes["age"].labels == ["below 30", "30 to 65", "from 65"]
    plain = []
    for i in range(50):
        at = {name: level(name, table[name][i]) for name in ("age", "bmi", "sex", "smoker")}
        at["bmi is missing"] = int(table["bmi"][i] is None)
        at["sex × age"] = at["sex"] * 3 + at["age"]
        plain.append(sum(shapes[title].scores[place] for title, place in at.items()))
    off = model(x)[:, 0].detach().numpy() - plain
    assert np.ptp(off) < 1e-5  # all rows have one constant
    for shape in shapes.values():
        assert abs(sum(shape.scores)) < 1e-4


def test_each_column_has_inputs_of_norm_one():
    pa = pytest.importorskip("pyarrow")
    inputs = made(pairs=PAIRS).double()[0](torch.from_numpy(tables.of_frame(pa.table(rows(50)), SCHEMA).x).double())
    sizes = [2, 7, 1, 3, 1, 6]
    norms = torch.stack([part.norm(dim=1) for part in inputs.split(sizes, 1)], 1)
    assert torch.allclose(norms[:, [0, 1, 3, 4, 5]], torch.ones(50, 5).double(), atol=1e-6)
    assert set(norms[:, 2].tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(("more", "what"), [
    ({"schema": None}, "without a schema"), ({"outputs": 3}, "the data need 3"), ({"pairs": [["age", "ag"]]}, "'ag'"),
    ({"pairs": [["age", "age"]]}, "age"), ({"pairs": [["age", "sex"], ["sex", "age"]]}, "sex"),
])  # fmt: skip
def test_refusals(more, what):
    form = {"input_shape": (SCHEMA.width,), "outputs": 1, "seed": 0, "schema": SCHEMA}
    with pytest.raises(Refused, match=what):
        models.make("additive", **(form | more))


def test_bins_are_part_of_the_digest_of_a_schema_and_rise():
    def schema(**bins):
        columns = {"x": {"type": "number", "range": [0, 1], **bins}}
        return parse({"target": {"column": "y", "range": [0, 1]}, "columns": columns})

    assert schema(bins=[0.5]).digest != schema().digest
    assert schema(bins=[0.5]).digest == schema(bins=[0.5]).digest
    with pytest.raises(Refused, match="rising"):
        schema(bins=[0.5, 0.5])


RUN = """
[data]
name = "table.csv"
schema = "schema.toml"
nodes = 2
test_path = "test.csv"
[model]
name = "additive"
loss = "binary"
pairs = [["sex", "age"]]
[privacy]
sigma = 0.05
clip = 1.0
[algorithm]
name = "privsgp"
batch = 100
steps = 30
step_size = 0.5
average = "tail"
[engine]
device = "cpu"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    pa, csv = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.csv")
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("table", "test")):
        csv.write_csv(pa.table(rows(200, seed)), f"{name}.csv")
    (tmp_path / "schema.toml").write_text(written(SCHEMA))
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


def trained(out, *more):
    ran = CliRunner().invoke(app, ["train", "run.toml", "--out", out, *(f"--set={one}" for one in more)])
    assert ran.exit_code == 0, ran.output
    return privsgp.load(out)


def test_a_run_from_its_file_to_its_report(folder):
    result = trained("run", "seed=0")
    sigma = 0.05 / 2**0.5
    share = [min(1.0, (30 - k) / 15) for k in range(30)]
    assert result.summary["weight_noise"] == pytest.approx(0.5 * sigma * np.linalg.norm(share))
    age = result.shapes()[0]
    assert age.scores[0] < age.scores[1] < age.scores[2]
    page = (folder / "run" / "report.html").read_text()
    assert "What each column adds" in page
    assert "sex × age" in page
    low, high = (age.scores[0] + sign * age.half_widths[0] for sign in (-1, 1))
    assert f"{low:.3f} to {high:.3f}" in page
    assert "sex × age" in result._repr_html_()
    assert len(privsgp.load("run").predict("test.csv")) == 200


def test_the_band_holds_the_noise_of_many_runs(folder):
    """With batches of all records there is no other randomness: scores are those of no noise, and the noise's part."""
    without = trained("none", "seed=0", "privacy.sigma=0").shapes()
    inside = []
    for seed in range(12):
        noised = trained(str(seed), f"seed={seed}", "engine.evaluate_every=30", "data.partition=even").shapes()
        for clean, shape in zip(without, noised, strict=True):
            away = np.abs(np.subtract(clean.scores, shape.scores))
            inside += (away <= np.array(shape.half_widths)).tolist()
    assert np.mean(inside) >= 0.95
    assert np.mean(inside) < 1  # it is not much too wide
