"""Does the planner's choice hold on data it has never seen? MNIST, 50 nodes, MLP-64, certified ε = 1.

For every method and batch a grid of K, with the step size tuned for each K, against the planner's own K and step size.
Step sizes are tuned on the first seed, and what is compared are
means over the others, of the grid as of the planner. The planner looks at synthetic stand-in data alone.

    python experiments/planner_mnist.py --data-dir DATA --out planner.json [--workers 2] [--batches 1 48 240]
    python experiments/planner_mnist.py --data-dir DATA --out planner.json --workers 14 --quick
    python experiments/planner_mnist.py --page docs/planner.md          # write the tables of docs/results/planner.json

Cells that are done lie in a folder beside the JSON and are not made again.
`--quick` is four cells, two methods at two batches with one K and three step sizes, and one fresh seed: some minutes on
16 cores instead of hours. Both fill the tables of docs/planner.md, "Does it hold?".
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pages

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "planner.json"
METHODS: dict[str, dict[str, Any]] = {
    "privsgp": {"name": "privsgp"},
    "privsgp-sag": {"name": "privsgp-sag"},
    "scaled": {"name": "privsgp-vr", "difference_scale": "auto"},
    "differences": {"name": "privsgp-vr", "difference_scale": 1.0, "difference_clip": 0.5},
    "privsgp-vr": {"name": "privsgp-vr", "difference_scale": 1.0},
}
Task = tuple[argparse.Namespace, float, str, int | str]
DISTANCES = (6.25, 12.5, 25, 50, 100, 150, 200)  # γK: the step sizes tried are these over K
QUICK = {
    "batches": [1.0, 48.0], "methods": ["privsgp", "scaled"], "steps": [1200], "distances": (50, 100, 150),
    "seeds": [0, 1],
}  # fmt: skip


def main() -> None:
    """Run everything and print the tables."""
    options = arguments()
    if options.page is not None:
        pages.put(options.page, "planner", written(options.out))
        return
    tasks: list[Task] = [
        (options, b, method, K)
        for b in options.batches
        for method in options.methods
        for K in ("auto", *options.steps[::-1])
    ]
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        rows = [row for found in pool.imap_unordered(done, tasks, chunksize=1) for row in found]
    rows.sort(key=lambda row: (row["batch"], row["method"], str(row["asked"]), row["step_size"]))
    about = {"format": "privsgp-planner", "version": 1, "simulation": True, "rows": rows}
    options.out.write_text(json.dumps(about, indent=1) + "\n")
    print(tables(rows))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--batches", type=float, nargs="+", default=[1.0, 48.0, 240.0])
    parser.add_argument("--steps", type=int, nargs="*", default=[125, 270, 575, 1200, 2075])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--distances", type=float, nargs="+", default=DISTANCES, help="γK of the step sizes tried")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="four cells and one fresh seed, unless told otherwise")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, help="run nothing: write the tables of --out into this page")
    if parser.parse_known_args()[0].quick:
        parser.set_defaults(**QUICK)
    return parser.parse_args()


def done(task: Task) -> list[dict[str, Any]]:
    """Return a cell's rows: those of a run that was killed later, or made now."""
    from privsgp.files import write_json
    from privsgp_research.provenance import provenance

    options, batch, method, asked = task
    about = [options.data, options.nodes, options.epsilon, list(options.seeds), list(options.distances)]
    folder = options.out.with_suffix("") / hashlib.sha256(json.dumps(about).encode()).hexdigest()[:8]
    kept = folder / f"{batch:g}-{method}-{asked}.json"
    if not kept.exists():
        rows = [row | provenance("auto") for row in work(task)]
        folder.mkdir(parents=True, exist_ok=True)
        write_json(kept, {"rows": rows})
    found: list[dict[str, Any]] = json.loads(kept.read_text())["rows"]
    return found


def work(task: Task) -> list[dict[str, Any]]:
    """Run one K with every step size, or the planner's choice."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    from privsgp.planner import planning
    from privsgp.runs import config as configs

    options, batch, method, asked = task
    torch.set_num_threads(1)
    auto = asked == "auto"
    values: dict[str, Any] = {
        "seed": options.seeds[0],
        "data": {"name": options.data, "nodes": options.nodes},
        "privacy": {"epsilon": options.epsilon},
        "algorithm": METHODS[method] | {"batch": batch, "steps": asked, "step_size": "auto"},
    }
    row = {"batch": batch, "method": method, "asked": asked}
    if auto:
        config = configs.parse(values)
        plan = planning.make(config, problem_of(config, options), options.data_dir)
        rows, best = [], planning.apply(config, plan)
    else:
        tried = [
            configs.parse(values | {"algorithm": values["algorithm"] | {"step_size": T / asked}})
            for T in options.distances
        ]
        rows = [row | train(config, options.seeds[:1], options) for config in tried]
        best = max(zip(rows, tried, strict=True), key=lambda pair: pair[0]["accuracy"])[1]
    rows.append(row | train(best, options.seeds[1:], options) | {"tuned": True})
    print(rows[-1], flush=True)
    return rows


PROBLEMS: dict[int, Any] = {}


def problem_of(config: Any, options: argparse.Namespace) -> Any:  # noqa: ANN401 - imported late
    """Return data and model, which here depend on the seed alone."""
    from privsgp.runs import problem as problems

    if config.seed not in PROBLEMS:
        PROBLEMS[config.seed] = problems.load_problem(config, options.data_dir)
    return PROBLEMS[config.seed]


def train(config: Any, seeds: list[int], options: argparse.Namespace) -> dict[str, Any]:  # noqa: ANN401
    """Run with every one of the seeds, and return what came out."""
    from privsgp.runs import train as training

    steps = config.algorithm.steps
    engine = config.engine.model_copy(update={"evaluate_every": steps, "checkpoint_every": steps})
    started, summaries = time.perf_counter(), []
    for seed in seeds:
        seeded = config.model_copy(update={"engine": engine, "seed": seed})
        with tempfile.TemporaryDirectory() as folder:
            problem = problem_of(seeded, options)
            summaries.append(training.run(seeded, problem, Path(folder) / "run").summary)
    accuracies = [summary["test_accuracy"] for summary in summaries]
    return {
        "algorithm": config.algorithm.name,
        "difference_clip": getattr(config.algorithm, "difference_clip", None),
        "difference_scale": summaries[0]["difference_scale"],
        "steps": steps,
        "step_size": config.algorithm.step_size,
        "sigma": summaries[0]["sigma"][0],
        "accuracy": sum(accuracies) / len(accuracies),
        "accuracies": accuracies,
        "seeds": seeds,
        "epsilon": max(max(summary["epsilon_spent"]) for summary in summaries),
        "seconds": time.perf_counter() - started,
    }


def written(path: Path) -> str:
    """Return what the page shows of a JSON, where there is one."""
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    return tables(rows) + "\n\n" + pages.commits(rows)


def tables(rows: list[dict[str, Any]]) -> str:
    """Write one table per batch: the best step size at every K, and the planner's choice."""
    lines = []
    rows = [row for row in rows if row.get("tuned")]
    for batch in sorted({row["batch"] for row in rows}):
        here = [row for row in rows if row["batch"] == batch]
        asked = [*sorted({row["asked"] for row in here if row["asked"] != "auto"}), "auto"]
        lines += ["", f"batch {batch:g}", "", f"| method | {' | '.join(f'K = {K}' for K in asked)} | planner's K, γ |"]
        lines.append("|---" * (len(asked) + 2) + "|")
        for method in [m for m in METHODS if any(row["method"] == m for row in here)]:
            own = {K: [row for row in here if row["method"] == method and row["asked"] == K] for K in asked}
            cells = [f"{max(row['accuracy'] for row in own[K]):.2%}" if own[K] else "" for K in asked]
            plan = own["auto"][0]
            lines.append(f"| {method} | {' | '.join(cells)} | {plan['steps']}, {plan['step_size']:.3g} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
