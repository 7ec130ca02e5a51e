"""Schedules of clip and noise at one certified budget: what they gain over equal steps, by logistic regression.

Every kind of run has the same nodes, (ε, δ), batch and steps, and is run at every distance γ̄K: nothing is chosen, so
that no difference of step size passes for one of schedules.

    python experiments/schedules.py --data-dir DATA --out RUNS [--jobs 1] [--seeds 3]
    python experiments/schedules.py --page docs/algorithms.md  # write the table
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pages

from privsgp.files import write_json
from privsgp.runs import config as configs
from privsgp.studies.provenance import provenance
from privsgp.studies.several import Bench

if TYPE_CHECKING:
    from privsgp.runs.config import Config
    from privsgp.studies.several import Several

Row = dict[str, Any]
RESULTS = Path(__file__).parent.parent / "docs" / "results" / "schedules.json"
# data, model, batch of a node, and the distances
PROBLEMS: dict[str, tuple[dict[str, Any], dict[str, Any], int, tuple[float, ...]]] = {
    "mnist": ({"name": "mnist", "nodes": 50}, {"name": "logistic"}, 60, (50.0, 100.0, 200.0, 400.0)),
    "a9a": ({"name": "a9a", "nodes": 16}, {"name": "logistic", "loss": "binary"}, 200, (300.0, 600.0, 1200.0, 2400.0)),
}
WORDS = {"mnist": "MNIST, 50 nodes, batch 60", "a9a": "a9a, 16 nodes, batch 200"}
STEPS = 100
_FALLING = {"schedule": "linear", "start": 1.0, "end": 0.3}
_TAIL = {"average": "tail"}
OPTIMAL = {"noise_schedule": "optimal"}
# words: whether γ falls (cosine to 0), keys of [algorithm], keys of [privacy]
KINDS: dict[str, tuple[str, bool, dict[str, Any], dict[str, Any]]] = {
    "equal": ("all steps alike", False, {}, {}),
    "fading": ("σ for noise that fades, λγK = 2", False, {}, OPTIMAL),
    "cosine": ("γ falls to 0 (cosine)", True, {}, {}),
    "cosine-optimal": ("the same, σ optimal", True, {}, OPTIMAL),
    "tail": ("mean of the last half", False, _TAIL, {}),
    "tail-optimal": ("the same, σ optimal", False, _TAIL, OPTIMAL),
    "clip": ("clip from 1 to 0.3, σ constant", False, {}, {"clip": _FALLING}),
    "clip-proportional": ("the same, σ proportional", False, {}, {"clip": _FALLING, "noise_schedule": "proportional"}),
    "clip-cosine-optimal": ("the same, γ falls, σ optimal", True, {}, {"clip": _FALLING, **OPTIMAL}),
}


def asked(problem: str, kind: str, distance: float) -> Config:
    """Return the configuration of a kind of run, whose mean step size makes up the distance."""
    _, falls, algorithm, privacy = KINDS[kind]
    data, model, batch, _ = PROBLEMS[problem]
    gamma = distance / STEPS
    step_size: Any = {"schedule": "cosine", "start": 2 * gamma} if falls else gamma
    fading = {"noise_curvature": 2 / distance} if kind == "fading" else {}
    return configs.parse(
        {
            "name": f"schedules-{kind}",
            "seed": 0,
            "data": data,
            "model": model,
            "privacy": {"epsilon": 1.0, "delta": 1e-5, "clip": 1.0, "spare": 0.0, **privacy, **fading},
            "algorithm": {"name": "privsgp", "batch": batch, "steps": STEPS, "step_size": step_size, **algorithm},
            "engine": {"device": "cpu", "checkpoint_every": 0, "evaluate_every": STEPS},
        }
    )


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/schedules"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--page", type=Path, help="run nothing: write the table of the JSON file into this page")
    return parser.parse_args()


def main() -> None:
    """Run everything, or write the page."""
    options = arguments()
    if options.page is not None:
        pages.put(options.page, "schedules", part(json.loads(options.results.read_text())["rows"]))
        return
    for problem in options.only:
        for kind in options.kinds:
            row = measured(problem, kind, options)
            print(problem, kind, *(cell(one) for one in row["at"]), flush=True)
            keep(options.results, row)


def measured(problem: str, kind: str, options: argparse.Namespace) -> Row:
    """Run a kind at every distance."""
    bench, distances = Bench(options.out, options.data_dir, options.jobs), PROBLEMS[problem][3]
    keys = {distance: f"{problem}/{kind}/distance-{distance:g}" for distance in distances}
    runs = bench.several({keys[d]: asked(problem, kind, d) for d in distances}, range(options.seeds), kind)
    one = runs[keys[distances[0]]]
    return {
        "problem": problem, "kind": kind,
        "epsilon": one.epsilon, "sigma": min(one.summary["sigma"]), "seeds": list(range(options.seeds)),
        "at": [{"distance": d, "accuracy": _accuracy(runs[keys[d]])} for d in distances], **provenance("cpu"),
    }  # fmt: skip


def _accuracy(runs: Several) -> Row:
    if runs.accuracy is None:
        raise RuntimeError("these data have labels")
    return runs.accuracy.as_json()


def keep(path: Path, row: Row) -> None:
    """Put a row into the JSON, in the place of the one of the same problem and kind."""
    told = json.loads(path.read_text()) if path.exists() else {"rows": []}
    rows = {(r["problem"], r["kind"]): r for r in [*told["rows"], row]}
    order = [(problem, kind) for problem in PROBLEMS for kind in KINDS]
    about = {"format": "privsgp-schedules", "version": 3, "simulation": True, "epsilon": 1.0, "delta": 1e-5}
    write_json(path, about | {"rows": [rows[one] for one in order if one in rows]})


def part(rows: list[Row]) -> str:
    """Return what the page has between its marks."""
    return table(rows) + "\n" + pages.commits(rows)


def table(rows: list[Row]) -> str:
    """Return a table for each problem: a line for each kind, a column for each distance."""
    lines = []
    for problem, (*_, distances) in PROBLEMS.items():
        lines += [f"| {WORDS[problem]}: γ̄K | " + " | ".join(f"{d:g}" for d in distances) + " |"]
        lines += ["|---" * (1 + len(distances)) + "|"]
        here = [row for row in rows if row["problem"] == problem]
        lines += [f"| {KINDS[row['kind']][0]} | " + " | ".join(map(cell, row["at"])) + " |" for row in here]
        lines += [""]
    return "\n".join(lines)


def cell(at: Row) -> str:
    """Return mean and standard deviation over the seeds at a distance."""
    return f"{100 * at['accuracy']['mean']:.2f} ± {100 * at['accuracy']['sd']:.2f}"


if __name__ == "__main__":
    main()
