"""Models and budgets that the record table does not have, three seeds each, as `privsgp train` runs them.

    python experiments/single.py --data-dir DATA --out RUNS [--only mnist-mlp a9a] [--device cpu] [--jobs 1]
    python experiments/single.py --page docs/results-accuracy.md          # write the tables

Rows that are not run again stay in the JSON.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import joining
import pages

from privsgp.files import write_json
from privsgp.runs import config as configs
from privsgp_research.bench import Bench
from privsgp_research.provenance import provenance

Row = dict[str, Any]
HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results" / "single.json"
# words, a file of experiments/configs, what is changed
RUNS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "mnist-features-mlp": (
        "MNIST, 50, MLP-64 on scattering features", "mnist.toml",
        ("model.name=mlp", "privacy.clip=2.0", "algorithm.step_size=0.5"),
    ),
    "mnist-mlp": ("MNIST, 50, MLP-64 on pixels", "mnist-mlp.toml", ()),
    "a9a": ("a9a, 16 of unequal sizes, logistic", "a9a.toml", ()),
    "a9a-samples": ("the same, nodes count by their records", "a9a.toml", ("algorithm.weights=samples",)),
    "a9a-equal": ("the same, nodes count alike", "a9a.toml", ("algorithm.weights=equal",)),
}  # fmt: skip


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/single"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="+", default=list(RUNS), choices=list(RUNS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--page", type=Path, help="run nothing: write the tables of the JSON file into this page")
    return parser.parse_args()


def main() -> None:
    """Run what is asked for, or write the page."""
    options = arguments()
    if options.page is not None:
        told = json.loads(options.results.read_text())
        pages.put(options.page, "single configurations", table(told["rows"]))
        pages.put(options.page, "joining", joined(told))
        return
    for name in options.only:
        row = measured(name, options)
        print(name, cell(row), flush=True)
        keep(options.results, row, options.device)


def measured(name: str, options: argparse.Namespace) -> Row:
    """Run one configuration with every seed."""
    _, file, changes = RUNS[name]
    config = configs.read(HERE / "configs" / file, ["seed=0", *changes, f"engine.device={options.device}"])
    bench = Bench(options.out, options.data_dir, options.jobs)
    runs = bench.several({name: config}, range(options.seeds), name)[name]
    if runs.accuracy is None:
        raise RuntimeError(f"{name} has no labels")
    spent = [epsilon for run in runs.runs if run.summary is not None for epsilon in run.summary["epsilon_spent"]]
    return {
        "name": name, "epsilon": [min(spent), max(spent)], "seeds": list(range(options.seeds)),
        "accuracy": runs.accuracy.as_json(), **provenance(options.device),
    }  # fmt: skip


def keep(path: Path, row: Row, device: str) -> None:
    """Put a row into the JSON, in the place of the one of the same name, and how noise falls as nodes join."""
    told = json.loads(path.read_text()) if path.exists() else {"rows": [], "joining": None}
    rows = {one["name"]: one for one in [*told["rows"], row]}
    about = {"format": "privsgp-single", "version": 1, "simulation": True}
    told |= about | {"rows": [rows[name] for name in RUNS if name in rows]}
    if row["name"] == "a9a":
        told["joining"] = {"rows": joining.rows(HERE / "configs" / "a9a.toml"), **provenance(device)}
    write_json(path, told)


def table(rows: list[Row]) -> str:
    """Return a line for each configuration."""
    lines = ["| data, nodes, model | certified ε | accuracy | command |", "|---|---|---|---|"]
    for row in rows:
        words, file, changes = RUNS[row["name"]]
        command = f"privsgp train experiments/configs/{file} --data-dir DATA --set seed=S"
        command += "".join(f" --set {change}" for change in changes)
        lines.append(f"| {words} | {_budgets(row)} | {cell(row)} | `{command}` |")
    return "\n".join([*lines, "", pages.commits(rows)])


def cell(row: Row) -> str:
    """Return the mean over the seeds, and each of them."""
    each = ", ".join(f"{100 * one:.2f}" for one in row["accuracy"]["each"])
    return f"**{100 * row['accuracy']['mean']:.1f}** ({each})"


def _budgets(row: Row) -> str:
    low, high = (f"{epsilon:.3g}" for epsilon in row["epsilon"])
    return low if low == high else f"{low} … {high}"


def joined(told: Row) -> str:
    """Return a line for each number of nodes."""
    return "\n".join([joining.table(told["joining"]["rows"]), "", pages.commits([told["joining"]])])


if __name__ == "__main__":
    main()
