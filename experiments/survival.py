"""Survival with and without privacy: two tables of lifelines over eight sites, three divisions into training and test.

A quarter of the persons are test data. The hazard model without privacy, and with pairwise noise at ε = 1 and ε = 0.4
(6 of 8 sites honest), beside lifelines' Cox model of all training records. C-indices are on exact test times.

    pip install lifelines
    python experiments/survival.py                                      # run, write the JSON and the table
    python experiments/survival.py --page docs/howto/survival.md        # write the table alone
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import pages
from typer.testing import CliRunner

from privsgp.cli import app
from privsgp.data import tables
from privsgp.data.schema import Schema
from privsgp.data.schema_text import written
from privsgp.files import write_json
from privsgp.runs.result import load
from privsgp_research.provenance import provenance

if TYPE_CHECKING:
    import argparse

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "docs" / "results" / "survival.json", ROOT / "docs" / "howto" / "survival.md"
NODES, SEEDS = 8, (0, 1, 2)
SCHEMAS: dict[str, dict[str, Any]] = {  # ranges and bins are those of the field, not of the tables
    "GBSG2": {
        "target": {
            "type": "survival",
            "time": "time",
            "event": "cens",
            "bins": [365, 545, 730, 1095, 1460, 1825, 2190],
        },
        "columns": {
            "horTh": {"type": "yes/no"},
            "age": {"type": "number", "range": [20, 80]},
            "menostat": {"type": "yes/no", "yes": ["Post"], "no": ["Pre"]},
            "tsize": {"type": "number", "range": [0, 80]},
            "tgrade": {"type": "number", "range": [1, 3]},
            "pnodes": {"type": "number", "range": [0, 20]},
            "progrec": {"type": "number", "range": [0, 300]},
            "estrec": {"type": "number", "range": [0, 300]},
        },
    },
}
SETTINGS = {"steps": 48, "step_size": 0.5, "batch": 64, "clip": 1.0}  # chosen on divisions 10 to 17
SHARED = {"privacy.noise": "pairwise", "privacy.honest": 6}
ARMS = {
    "no privacy": {
        "privacy.sigma": 0,
        "privacy.clip": 100,
        "algorithm.steps": 600,
        "algorithm.step_size": 0.5,
    },
    "ε = 1": SHARED | {"privacy.epsilon": 1.0},
    "ε = 0.4": SHARED | {"privacy.epsilon": 0.4},
}
RUN = """
name = "survival"
[data]
schema = "schema.toml"
path = "{{node}}.csv"
nodes = {nodes}
test_path = "test.csv"
[model]
name = "hazard"
loss = "survival"
[graph]
name = "complete"
[privacy]
delta = 1e-5
clip = {clip}
[algorithm]
name = "privsgp"
batch = {batch}
steps = {steps}
step_size = {step_size}
average = "tail"
weights = "samples"
[engine]
device = "cpu"
"""


def measured(name: str, seed: int) -> dict[str, Any]:
    """Return the C-index and the Brier score of every arm on one division."""
    from lifelines import CoxPHFitter
    from lifelines import datasets as ours
    from lifelines.utils import concordance_index

    table = getattr(ours, f"load_{name.lower()}")()
    if name == "GBSG2":
        table["tgrade"] = table["tgrade"].map({"I": 1, "II": 2, "III": 3})
    schema = Schema.model_validate(SCHEMAS[name])
    time, event = schema.target.columns
    order = np.random.default_rng(seed).permutation(len(table))
    test, learn = table.iloc[order[: len(table) // 4]], table.iloc[order[len(table) // 4 :]]
    encoded = learn[[time, event]].reset_index(drop=True)
    encoded[schema.features] = tables.of_frame(learn, schema, labelled=False).x
    x = test[[]].reset_index(drop=True)
    x[schema.features] = tables.of_frame(test, schema, labelled=False).x
    risk = CoxPHFitter().fit(encoded, time, event).predict_partial_hazard(x)
    found: dict[str, Any] = {"Cox": {"c_index": concordance_index(test[time], -risk, test[event])}}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "schema.toml").write_text(written(schema))
        (folder / "run.toml").write_text(RUN.format(nodes=NODES, **SETTINGS))
        test.to_csv(folder / "test.csv", index=False)
        for i, rows in enumerate(np.array_split(np.arange(len(learn)), NODES)):
            learn.iloc[rows].to_csv(folder / f"{i}.csv", index=False)
        for i, (arm, changes) in enumerate(ARMS.items()):
            words = ["train", str(folder / "run.toml"), "--out", str(folder / str(i)), f"--set=seed={seed}"]
            ran = CliRunner().invoke(app, [*words, *(f"--set={key}={value}" for key, value in changes.items())])
            if ran.exit_code:
                raise SystemExit(f"{arm}: {ran.output} {ran.exception}")
            result = load(folder / str(i))
            curves, s = result.predict(folder / "test.csv"), result.summary
            c_index = concordance_index(test[time], curves.sum(1), test[event])
            found[arm] = {"c_index": c_index, "binned": s["c_index"], "brier": s["survival_brier"]}
            found["one curve"] = {"brier": s["baseline"]["survival_brier"]}
    print(json.dumps({"table": name, "seed": seed} | found), flush=True)
    return {"table": name, "seed": seed, "arms": found}


def part(told: dict[str, Any]) -> str:
    """Return the table of the page: means over the divisions."""
    lines = []
    for name in SCHEMAS:
        own = [row["arms"] for row in told["rows"] if row["table"] == name]
        lines += [f"| {name} | C-index | each division | Brier score, mean over times |", "|---|---|---|---|"]
        for arm in ("Cox", *ARMS, "one curve"):
            known = [row[arm] for row in own]
            each = [one["c_index"] for one in known if "c_index" in one]
            mean = f"{fmean(each):.3f}" if each else "0.5"
            score = f"{fmean(one['brier'] for one in known):.4f}" if "brier" in known[0] else "–"
            lines.append(f"| {arm} | {mean} | {', '.join(f'{c:.3f}' for c in each)} | {score} |")
    return "\n".join([*lines, "", pages.commits([told])])


def arguments() -> argparse.Namespace:
    """Read the command line."""
    return pages.asked(__doc__)


def main() -> None:
    """Run, or write the page."""
    if (page := arguments().page) is None:
        found = [measured(name, seed) for name in SCHEMAS for seed in SEEDS]
        write_json(RESULTS, {"simulation": True, "settings": SETTINGS, "rows": found} | provenance("cpu"))
    pages.put(page or PAGE, "survival", part(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
