"""What one noised sum over sites gives: metrics of a model on held-out persons, and a description of tables.

Scores are simulated: 25 % positives, a true AUC of 0.8, calibrated probabilities, and a subgroup of half of the
persons. Then a9a over 16 sites, and nafld1 of R's package `survival` over four, as nafld1.csv with its columns id, age,
male, weight, height, bmi, futime and status.

    python experiments/private_evaluation.py --data-dir data      # run, write the JSON and the tables: ten minutes
    python experiments/private_evaluation.py --page docs/howto/evaluate.md
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pages
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import norm
from typer.testing import CliRunner

from privsgp.accounting.accountant import epsilon as epsilon_of
from privsgp.accounting.calibration import gaussian_shift
from privsgp.accounting.mechanisms import SampledMean
from privsgp.accounting.renyi_bound import renyi
from privsgp.accounting.shown import up
from privsgp.cli import app
from privsgp.data import load, tables
from privsgp.data.dataset import Dataset
from privsgp.data.schema import Schema
from privsgp.data.schema_text import written
from privsgp.files import write_json
from privsgp.runs import config as configs
from privsgp.runs import description, evaluation, sums
from privsgp.runs.build import build_run
from privsgp.runs.problem import assembled, unencoded
from privsgp.runs.resolve import resolve
from privsgp.runs.result import load as load_result
from privsgp.statistics.estimates import Groups, Scores
from privsgp_research.provenance import provenance

if TYPE_CHECKING:
    import argparse

    from numpy.random import Generator

Array = NDArray[Any]
ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "docs" / "results" / "private_evaluation.json", ROOT / "docs" / "howto" / "evaluate.md"
RUNS, REPEATS, MOSTLY = 1000, 5, 0.5
A9A = """
[data]
path = "{node}.npz"
nodes = 16
[model]
name = "logistic"
[graph]
name = "exponential"
[privacy]
epsilon = 1.0
noise = "pairwise"
honest = 12
clip = 1.0
[algorithm]
name = "privsgp"
batch = 256
steps = 100
step_size = 1.0
average = "tail"
[evaluation]
share = 0.3
bins = [0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9]  # a quarter earns more than 50,000, which is public
"""
PATIENTS: dict[str, Any] = {  # ranges are those of the field, not of the table
    "target": {"column": "status", "classes": ["0", "1"]},
    "columns": {
        "age": {"type": "number", "range": [18, 98]},
        "male": {"type": "yes/no"},
        "weight": {"type": "number", "range": [30, 190], "missing": 80},
        "height": {"type": "number", "range": [120, 220], "missing": 170},
        "bmi": {"type": "number", "range": [10, 70], "missing": 28},
        "futime": {"type": "number", "range": [0, 7300]},
    },
}
HEIGHTS: dict[str, Any] = {
    "target": {"column": "height", "centre": 170, "scale": 20, "range": [120, 220]},
    "columns": {
        "age": {"type": "number", "centre": 50, "scale": 40, "range": [18, 98]},
        "male": {"type": "yes/no"},
        "weight": {"type": "number", "centre": 80, "scale": 50, "range": [30, 190], "missing": 80},
    },
}
SITES, POSITIVES, AUC = 16, 0.25, 0.8
SHIFT = float(np.sqrt(2) * norm.ppf(AUC))
GROUPS = Groups(("group",), (("a", "b"),))
LAYOUT = {"no subgroups": Scores.of(10), "two groups": Scores.of(10, groups=GROUPS)}


def draw(n: int, rng: Generator) -> tuple[Array, Array]:
    """Return probabilities and labels of a calibrated model."""
    y = (rng.random(n) < POSITIVES).astype(int)
    s = rng.normal(y * SHIFT, 1)
    return expit(np.log(POSITIVES / (1 - POSITIVES)) + SHIFT * s - SHIFT**2 / 2), y


def exact(p: Array, y: Array) -> dict[str, float]:
    """Return the metrics of these persons themselves."""
    ranks, positives = np.argsort(np.argsort(p)), y.sum()
    auc = (ranks[y == 1].sum() - positives * (positives - 1) / 2) / (positives * (len(y) - positives))
    return {"auc": auc, "accuracy": np.mean((p >= 0.5) == y), "brier": np.mean((p - y) ** 2),
            "calibration_in_the_large": np.mean(y - p)}  # fmt: skip


def noise(layout: Scores, persons: int, honest: int | None) -> float:
    """Return the noise of a cell in the sum over all sites, as a release of each site would have it."""
    shared = {} if honest is None else {"noise": "pairwise", "honest": honest}
    values = {"data": {"nodes": SITES}, "privacy": {"epsilon": 1.0} | shared, "sum": {"kind": "evaluation"}}
    config = configs.parse(values | {"algorithm": {"name": "privsgp"}})
    config = sums.study(config, [persons // SITES] * SITES, layout.norm, 1.0, 1e-5)
    blank = Dataset("blank", np.zeros((persons, layout.length)), np.zeros(persons), None, None, None)
    problem = assembled(config, sums.vectors(blank, blank.x), np.array_split(np.arange(persons), SITES))
    return sums.noise(build_run(resolve(config, problem)), problem.samples)


def one_row(persons: int, honest: int | None, runs: int, layout: str) -> dict[str, Any]:
    """Return RMS errors against the exact metrics, and coverage of the true ones."""
    scores, rng = LAYOUT[layout], np.random.default_rng(persons)
    truth = exact(*draw(4_000_000, np.random.default_rng(1)))
    sigma = noise(scores, persons, honest)
    errors: dict[str, list[float]] = {}
    covered: dict[str, list[bool]] = {}
    printed: dict[str, int] = {}
    for _ in range(runs):
        p, y = draw(persons, rng)
        group = rng.integers(0, scores.groups.count, persons)
        total = scores.rows(p, y, group).sum(0) + rng.normal(0, sigma, scores.length)
        known = exact(p, y)
        for one in scores.estimates(total, persons, sigma):
            name = f"{one.metric}, {one.group}"
            printed[name] = printed.get(name, 0) + (one.value is not None)
            if one.value is None or one.metric not in truth:
                continue
            if one.group == "all":
                errors.setdefault(one.metric, []).append(one.value - known[one.metric])
            covered.setdefault(name, []).append(one.low <= truth[one.metric] <= one.high)
    return {
        "persons": persons, "noise": "independent" if honest is None else f"pairwise, {honest} of {SITES} honest",
        "layout": layout, "runs": runs, "epsilon": 1.0, "sigma_of_a_cell": sigma,
        "rms_error": {name: float(np.sqrt(np.mean(np.square(found)))) for name, found in errors.items()},
        "coverage": {name: float(np.mean(found)) for name, found in covered.items()},
        "printed": {name: count / runs for name, count in printed.items()},
    }  # fmt: skip


def on_a9a(data_dir: Path | None) -> list[dict[str, Any]]:
    """Return the metrics of one model on held-out persons of a9a, exact and private: RMS over five releases each.

    A third of 32,561 persons at 16 sites is held out. No seed: training and evaluation are as private as they say.
    """
    found = load("a9a", data_dir=data_dir)
    with tempfile.TemporaryDirectory() as place:
        os.environ["PRIVSGP_STATE"] = str(Path(place) / "state")
        for i, rows in enumerate(np.array_split(np.random.default_rng(0).permutation(len(found.y)), SITES)):
            np.savez(Path(place) / f"{i}.npz", x=found.x[rows], y=found.y[rows], classes=2)
        file = Path(place) / "run.toml"
        file.write_text(A9A)
        run = Path(place) / "run"
        trained = CliRunner().invoke(app, ["train", str(file), "--out", str(run)])
        if trained.exit_code:
            raise SystemExit(f"{trained.output} {trained.exception}")
        config = configs.read(file)
        held = unencoded(config, None, range(SITES)).side(config.evaluation, held_out=True)
        p, y = load_result(run).predict_proba(held.dataset.x[np.concatenate(held.parts)]), None
        y = held.dataset.y[np.concatenate(held.parts)]
        rows = []
        for noise, shared in (("pairwise", ["privacy.noise='pairwise'", "privacy.honest=12"]), ("independent", [])):
            for epsilon in (0.5, 1.0, 2.0):
                asked = configs.read(file, [f"evaluation.epsilon={epsilon}", *shared])
                each, seconds = [], list[float]()
                for _ in range(REPEATS):
                    begun = time.process_time()
                    told = evaluation.of_run(run, asked, say=lambda _line: None)
                    seconds.append(time.process_time() - begun)
                    each.append({one["metric"]: one for one in told["metrics"]})
                rows.append({
                    "epsilon": epsilon, "noise": noise, "persons": len(y), "releases": REPEATS, "seconds": seconds[0],
                    "exact": exact(p[:, 1], y), "metrics": _together(each, exact(p[:, 1], y)),
                })  # fmt: skip
    return rows


def _together(each: list[dict[str, Any]], known: dict[str, float]) -> dict[str, Any]:
    """Return of each metric the first release, and RMS errors and mean half-widths of all; None: never shown."""
    found: dict[str, Any] = {}
    for name, value in known.items():
        shown = [one[name] for one in each if one[name]["value"] is not None]
        found[name] = None if not shown else {
            "first": [shown[0][key] for key in ("value", "low", "high")],
            "rms_error": float(np.sqrt(np.mean([(one["value"] - value) ** 2 for one in shown]))),
            "half_width": float(np.mean([(one["high"] - one["low"]) / 2 for one in shown])),
        }  # fmt: skip
    return found


def of_patients(table: Path, repeats: int = 20) -> dict[str, Any]:
    """Describe nafld1 (17,549 patients, 7 columns, a quarter of the weights missing) over four sites at ε = 0.5.

    Medians and missing rates of 20 releases; then a ridge regression of the height, of the patients whose height is
    known, beside least squares without privacy.
    """
    frame = pd.read_csv(table).drop(columns="id")
    known = frame.loc[frame["height"].notna(), ["age", "male", "weight", "height"]]
    with tempfile.TemporaryDirectory() as place:
        os.environ["PRIVSGP_STATE"] = str(Path(place) / "state")
        medians, missing, announced = [], [], list[str]()
        config = _over_sites(Path(place) / "all", frame, PATIENTS)
        for number in range(repeats):
            told = description.describe(config, 0.5, 1e-5, out=Path(place) / f"d{number}", say=announced.append)
            for name, one in told["columns"].items():
                missing.append(one["missing"]["value"] - frame[name].isna().mean())
                if "estimates" in one:
                    middle = {each["metric"]: each["value"] for each in one["estimates"]}["quantile 0.5"]
                    low, high = PATIENTS["columns"][name]["range"]
                    medians.append((middle - frame[name].median()) / ((high - low) / 20))
        config, fits = _over_sites(Path(place) / "known", known, HEIGHTS), []
        schema = config.data.schema
        of_frame = tables.of_frame(known, schema)
        x, y = np.column_stack([of_frame.x, np.ones(len(known))]).astype(float), of_frame.y.astype(float)
        least = _explained(x, y, np.linalg.lstsq(x, y, rcond=None)[0])
        for number in range(10):
            told = description.describe(
                config, 0.5, 1e-5, out=Path(place) / f"r{number}", columns=["male"], moments=1.5, say=announced.append
            )
            model = told["columns"]["moments"]["ridge"]
            (claimed,) = [one for one in told["columns"]["moments"]["estimates"] if one["metric"].startswith("R²")]
            weights = np.array([*model["weights"].values(), model["constant"]])
            fits.append({"r2": _explained(x, y, weights)} | {key: claimed[key] for key in ("value", "low", "high")})
    return {
        "patients": len(frame), "releases": repeats, "sites": 4, "epsilon": 0.5, "announced": announced[0],
        "medians_in_bins": {"rms": _rms(medians), "worst": float(np.max(np.abs(medians)))},
        "missing_rms": _rms(missing), "ridge": {"patients": len(known), "least_squares": least, "private": fits},
    }  # fmt: skip


def _rms(values: list[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _explained(x: Array, y: Array, weights: Array) -> float:
    return float(1 - np.mean((y - x @ weights) ** 2) / y.var())


def _over_sites(folder: Path, frame: pd.DataFrame, schema: dict[str, Any]) -> configs.Config:
    """Write four sites' tables and a run.toml; return its configuration."""
    folder.mkdir()
    order = np.random.default_rng(0).permutation(len(frame))
    for i, rows in enumerate(np.array_split(order, 4)):
        frame.iloc[rows].to_csv(folder / f"{i}.csv", index=False)
    (folder / "schema.toml").write_text(written(Schema.model_validate(schema)))
    loss = "cross-entropy" if "classes" in schema["target"] else "mse"
    text = '[data]\nschema = "schema.toml"\nnodes = 4\npath = "{node}.csv"\n[privacy]\nepsilon = 1.0\n'
    (folder / "run.toml").write_text(f'{text}[model]\nname = "linear"\nloss = "{loss}"\n')
    return configs.read(folder / "run.toml")


def of_tuning() -> dict[str, float]:
    """Return ε of ten runs of ε = 1, δ = 1e-5: planned ahead, by two computations, or each chosen after the last."""
    one = SampledMean(samples=1, batch=1, clip=1.0, sigma=1 / gaussian_shift(1.0, 1e-5))
    mu = np.sqrt(10) * gaussian_shift(1.0, 1e-5)

    def over(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - 1e-5)

    return {
        "planned": epsilon_of(one, 10, 1e-5).epsilon, "planned, closed form": float(brentq(over, 0.1, 20)),
        "chosen one after the other": renyi(one, 10, "zero-out").epsilon(1e-5),
    }  # fmt: skip


_PAGE = """Simulated: 16 sites, 25 % positives, a true AUC of 0.8, ε = 1, δ = 1e-5, ten bins, {runs:,} runs of each row.
The error is that against the exact AUC of the same persons (RMS). The interval should hold the true AUC 95 % of times.

| persons | noise | error of the AUC | intervals right: AUC | accuracy | calibration in the large | a group's AUC |
|---|---|---|---|---|---|---|
{simulated}

a9a over 16 sites, {held:,} persons held out, δ = 1e-5, one model trained at ε = 1: the first release, and the RMS error
of {repeats} releases against the exact metrics of the same persons.

| noise | ε | AUC | error | accuracy | error | calibration in the large | error |
|---|---|---|---|---|---|---|---|
{a9a}

The first evaluation took {seconds:.1f} s of one core, reading the files included. Later ones take longer, as the budget
book compares with all before them.

nafld1 (R's package `survival`): {patients:,} patients, 7 columns, over four sites at ε = 0.5. privsgp announced:
*{announced}*.

- Medians of numbers, {described} releases: off by {rms:.2f} bins (RMS), at most {worst:.2f}.
- Missing rates: off by {missing:.2f} percentage points (RMS).
- Ridge regression of the height of {known:,} patients, from moments at ε = 0.5: R² is {low:.3f} to {high:.3f} in ten
  releases, and {least:.3f} by least squares without privacy. {right} of 10 intervals hold the R² of their weights.

Ten runs at ε = 1, δ = 1e-5 cost ε = {planned} if all are planned ahead, and {chosen} if each is chosen after the last.

{commits}"""


def part(told: dict[str, Any]) -> str:
    """Return the tables of the page."""
    rows = {(one["persons"], one["noise"], one["layout"]): one for one in told["simulated"]}
    names, d, t = ("auc", "accuracy", "calibration_in_the_large"), told["described"], told["tuning"]
    fits = d["ridge"]["private"]
    r2 = [one["r2"] for one in fits]
    return _PAGE.format(
        simulated="\n".join(_simulated(one, rows[key[0], key[1], "two groups"]) for key, one in rows.items()
                            if key[2] == "no subgroups"),
        held=told["a9a"][0]["persons"], repeats=told["a9a"][0]["releases"], runs=told["simulated"][0]["runs"],
        a9a="\n".join([
            "| none | – | " + " | ".join(f"{told['a9a'][0]['exact'][name]:.3f} | –" for name in names) + " |",
            *(f"| {one['noise']} | {one['epsilon']:g} | {_of_a9a(one, names)} |" for one in told["a9a"]),
        ]),
        seconds=told["a9a"][0]["seconds"], patients=d["patients"], described=d["releases"], announced=d["announced"],
        missing=100 * d["missing_rms"], known=d["ridge"]["patients"], low=min(r2), high=max(r2),
        least=d["ridge"]["least_squares"],
        right=sum(one["value"] is not None and one["low"] <= one["r2"] <= one["high"] for one in fits),
        planned=up(t["planned"], 3), chosen=up(t["chosen one after the other"], 3), commits=pages.commits([told]),
        **d["medians_in_bins"],
    )  # fmt: skip


def _simulated(one: dict[str, Any], groups: dict[str, Any]) -> str:
    cells = [_cover(one, f"{name}, all") for name in ("auc", "accuracy", "calibration_in_the_large")]
    error = f"{one['rms_error']['auc']:.4f}" if one["printed"]["auc, all"] > MOSTLY else "not shown"
    right = " | ".join([*cells, _cover(groups, "auc, group = a")])
    return f"| {one['persons']:,} | {one['noise']} | {error} | {right} |"


def _of_a9a(one: dict[str, Any], names: tuple[str, ...]) -> str:
    known = [one["metrics"][name] for name in names]
    return " | ".join(
        "not shown | –" if v is None else f"{_interval(v['first'])} | {v['rms_error']:.4f}" for v in known
    )


def _cover(row: dict[str, Any], name: str) -> str:
    return f"{100 * row['coverage'][name]:.1f} %" if row["printed"].get(name, 0) > MOSTLY else "not shown"


def _interval(told: list[float]) -> str:
    return f"{told[0]:.3f} ({told[1]:.3f} to {told[2]:.3f})"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    return pages.asked(__doc__, data=True)


def main() -> None:
    """Run, or write the page."""
    asked = arguments()
    if asked.page is None:
        rows = [
            one_row(n, trusted, RUNS, kind) for n in (3200, 800) for trusted in (12, None) for kind in LAYOUT
        ]  # fmt: skip
        told = {"simulated": rows, "a9a": on_a9a(asked.data_dir), "tuning": of_tuning()}
        write_json(RESULTS, told | {"described": of_patients(asked.data_dir / "nafld1.csv")} | provenance("cpu"))
    pages.put(asked.page or PAGE, "private_evaluation", part(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
