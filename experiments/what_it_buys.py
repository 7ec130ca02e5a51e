"""What variance reduction buys: accuracy at one certified budget over the gradients that a node evaluates.

PrivSGP, the paper's PrivSGP-VR (θ = 1), clipped differences, SAG and scaled differences at batches from 1 to J, or at
several K with one batch. Each has its own best of three step sizes, chosen on seed 0 by test accuracy, and of one more
beyond where the best is an edge of them (`--wider` many); what is reported are fresh seeds. With one seed it is that
same seed, and the row says so. Runs that are done are not made again, and rows of other batches and methods in the JSON
stay, so a part can be made in pieces.

    python experiments/what_it_buys.py --data-dir DATA --out RUNS --only mnist-logistic [--device cuda] [--jobs 4]
        [--batches 1 48] [--methods privsgp scaled] [--step-sizes 0.016 0.048] [--seeds 3] [--noise pairwise]
    python experiments/what_it_buys.py --page docs/results-accuracy.md          # write the tables from the JSON files

Evaluations are K b, and J more where a table begins with the gradients at x⁰.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pages

from privsgp.algorithms import ALGORITHMS
from privsgp.files import write_json
from privsgp.runs import config as configs
from privsgp_research import picture
from privsgp_research.bench import Bench
from privsgp_research.provenance import provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.runs.config import Config
    from privsgp_research.bench import Several

Row = dict[str, Any]
RESULTS = Path(__file__).parent.parent / "docs" / "results" / "what-it-buys"
LABELS = {
    "privsgp": "PrivSGP", "paper": "PrivSGP-VR as printed", "clipped": "clipped differences", "sag": "SAG",
    "scaled": "scaled differences",
}  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One picture: a data set, a model and a budget, several batches or several K."""

    words: str
    data: dict[str, Any]
    model: dict[str, Any]
    samples: int  # J of a node
    epsilon: float
    clip: float
    batches: tuple[float, ...]
    steps: tuple[int, ...]
    distances: tuple[float, ...]  # γK that are tried
    features: dict[str, Any] = field(default_factory=lambda: {"name": "none"})
    table: dict[str, Any] = field(default_factory=dict)
    methods: tuple[str, ...] = tuple(LABELS)

    def algorithm(self, method: str) -> dict[str, Any]:
        """Return what [algorithm] says of a method."""
        table = self.table | {"name": "privsgp-vr"}
        return {
            "privsgp": {"name": "privsgp"},
            "paper": table | {"difference_scale": 1.0},
            "clipped": table | {"difference_scale": 1.0, "difference_clip": self.clip / 2},
            "sag": table | {"name": "privsgp-sag"},
            "scaled": table | {"difference_scale": "auto"},
        }[method]

    def config(self, method: str, batch: float, steps: int, device: str, changes: Sequence[str]) -> Config:
        """Return the configuration of a run but for its step size and seed."""
        own = self.algorithm(method) | {"batch": batch, "steps": steps}
        values = {
            "seed": 0, "data": self.data, "features": self.features, "model": self.model,
            "privacy": {"epsilon": self.epsilon, "delta": 1e-5, "clip": self.clip}, "algorithm": own,
            "engine": {"device": device, "evaluate_every": steps, "checkpoint_every": 0},
        }  # fmt: skip
        return configs.parse(values, changes)


_MNIST = {"name": "mnist", "nodes": 50}
_SMALL = {"name": "mnist", "nodes": 20, "sizes": [600] * 20}
_CIFAR = {"name": "cifar10", "nodes": 16}
_LOGISTIC, _MLP = {"name": "logistic"}, {"name": "mlp", "hidden": 64}
_ALL = (1.0, 4.0, 12.0, 48.0, 240.0, 1200.0)
_SCATTERING = {"name": "scattering", "like": "leaves", "components": 1024, "mirror": True}
PARTS = {
    "mnist-logistic": Part(
        "MNIST, logistic regression, 50 nodes", _MNIST, _LOGISTIC, 1200, 1.0, 1.0, _ALL, (1000,), (16, 48, 144)
    ),
    "mnist-mlp": Part("MNIST, MLP-64, 50 nodes", _MNIST, _MLP, 1200, 1.0, 1.0, _ALL, (1000,), (16, 48, 144)),
    "mnist-logistic-steps": Part(
        "MNIST, logistic regression, 50 nodes, one sample a step", _MNIST, _LOGISTIC, 1200, 1.0, 1.0, (1.0,),
        (125, 250, 500, 1000, 2000, 4000), (16, 48, 144),
    ),
    "mnist-logistic-small": Part(
        "MNIST, logistic regression, 20 nodes with 600 samples each", _SMALL, _LOGISTIC, 600, 1.0, 1.0,
        (1.0, 6.0, 24.0, 120.0, 600.0), (300,), (8, 24, 72),
    ),
    "mnist-mlp-small": Part(
        "MNIST, MLP-32, 20 nodes with 600 samples each", _SMALL, {"name": "mlp", "hidden": 32}, 600, 1.0, 1.0,
        (1.0, 24.0, 600.0), (300,), (8, 24, 72),
    ),
    "cifar-features": Part(
        "CIFAR-10, linear on scattering features, 16 nodes", _CIFAR, _LOGISTIC, 3125, 3.0, 6.4,
        (1.0, 5.0, 25.0, 125.0, 3125.0), (1000,), (7, 21, 63), features=_SCATTERING,
    ),
    # The step sizes are half, once and twice the figure's. Entries in bfloat16 cannot have clipped differences.
    "cifar-resnet18": Part(
        "CIFAR-10, ResNet-18, 16 nodes", _CIFAR, {"name": "resnet18"}, 3125, 3.0, 10.0, (25.0, 125.0), (3000,),
        (5.48, 10.95, 21.9), table={"table_dtype": "bfloat16"}, methods=("privsgp", "paper", "sag", "scaled"),
    ),
}  # fmt: skip


def main() -> None:
    """Run what is asked for, or write the page."""
    options = arguments()
    if options.page is not None:
        pages.put(options.page, "what it buys", written(options.results))
        return
    for name in options.only:
        run_part(name, options)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/what-it-buys"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files and pictures")
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--methods", nargs="+", default=list(LABELS), choices=list(LABELS))
    parser.add_argument("--batches", type=float, nargs="+", help="of the part's; left out: all")
    parser.add_argument("--steps", type=int, nargs="+", help="other K than the part's")
    parser.add_argument("--step-sizes", type=float, nargs="+", help="other γ than the part's three")
    parser.add_argument("--wider", type=int, default=1, help="times that step sizes beyond an edge are tried")
    parser.add_argument("--seeds", type=int, default=3, help="1: the seed on which step sizes are chosen")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--noise", default="independent", choices=["independent", "pairwise"], help="privacy.noise")
    parser.add_argument("--set", dest="changes", nargs="+", default=[], metavar="KEY=VALUE")
    parser.add_argument("--page", type=Path, help="run nothing: write the tables of all JSON files into this page")
    return parser.parse_args()


def run_part(name: str, options: argparse.Namespace) -> None:
    """Run a part, one batch and K after the other, and keep every one in the JSON as soon as it is there."""
    part, stem = PARTS[name], name if options.noise == "independent" else f"{name}-{options.noise}"
    path, changes = options.results / f"{stem}.json", [f"privacy.noise={options.noise}", *options.changes]
    bench = Bench(options.out / stem, options.data_dir, options.jobs)
    methods = [method for method in part.methods if method in options.methods]
    for steps in options.steps or part.steps:
        for batch in options.batches or part.batches:
            bare = {m: part.config(m, batch, steps, options.device, changes) for m in methods}
            grid = options.step_sizes or [distance / steps for distance in part.distances]
            found = tuned(bare, part.samples, grid, bench, options.seeds, options.wider)
            rows = [row | {"method": m} | provenance(options.device) for m, row in found.items()]
            for row in rows:
                print(" ".join(_cells(row)), flush=True)
            keep(path, name, rows, changes)


def tuned(
    bare: dict[str, Config], samples: int, grid: list[float], bench: Bench, seeds: int, wider: int
) -> dict[str, Row]:
    """Choose every method's step size on seed 0, run it with fresh seeds, and return a row for each."""
    tried: dict[str, dict[float, Several]] = {m: {} for m in bare}
    asked = [(m, gamma) for m in bare for gamma in grid]
    for _ in range(1 + wider):
        runs = bench.several(
            {key_of(bare[m], m, g): bare[m].with_section("algorithm", step_size=g) for m, g in asked}, [0], "step sizes"
        )
        for m, gamma in asked:
            tried[m][gamma] = runs[key_of(bare[m], m, gamma)]
        asked = [(m, beyond) for m in bare if (beyond := beyond_edge(tried[m])) is not None]
        if not asked:
            break
    best = {m: best_of(tried[m]) for m in bare}
    if seeds == 1:
        return {m: row_of(tried[m][best[m]], samples, best[m], tried[m]) for m in bare}
    chosen = {key_of(bare[m], m, best[m]): bare[m].with_section("algorithm", step_size=best[m]) for m in bare}
    found = bench.several(chosen, range(1, 1 + seeds), "fresh seeds")
    return {m: row_of(found[key_of(bare[m], m, best[m])], samples, best[m], tried[m]) for m in bare}


def key_of(config: Config, method: str, step_size: float) -> str:
    """Name the folder of a run."""
    a = config.algorithm
    return f"batch-{a.batch:g}-steps-{a.steps}/{method}/step-{step_size:.4g}"


def best_of(tried: dict[float, Several]) -> float:
    """Return the step size with the highest test accuracy, then the lowest loss."""
    return max(sorted(tried), key=lambda step_size: tried[step_size].score)


def beyond_edge(tried: dict[float, Several]) -> float | None:
    """Return the next step size beyond the best where that is an edge, at the ratio there; None where it is not."""
    grid, best = sorted(tried), best_of(tried)
    if len(grid) < 2 or best not in (grid[0], grid[-1]):
        return None
    return grid[0] ** 2 / grid[1] if best == grid[0] else grid[-1] ** 2 / grid[-2]


def row_of(runs: Several, samples: int, step_size: float, tried: dict[float, Several]) -> Row:
    """Return what a method came to."""
    a, summary = runs.config.algorithm, runs.summary
    return {
        "batch": a.batch, "steps": a.steps, "evaluations": evaluations(runs.config, samples),
        "difference_scale": summary.get("difference_scale"), "sigma": (summary.get("sigma") or [None])[0],
        "epsilon": runs.epsilon, "step_size": step_size, "seeds": [run.config.seed for run in runs.runs],
        "accuracy": None if runs.accuracy is None else runs.accuracy.as_json(),
        "tried": [
            {"step_size": gamma, "accuracy": None if one.accuracy is None else one.accuracy.mean}
            for gamma, one in sorted(tried.items())
        ],
        "seconds": sum(run.summary["seconds"] for run in runs.runs if run.summary is not None),
    }  # fmt: skip


def evaluations(config: Config, samples: int) -> float:
    """Return how many gradients a node takes: K b, and J for a table that begins with them."""
    own = ALGORITHMS[config.algorithm.name].Options(**config.options("algorithm"))
    table = getattr(own, "table_init", None) == "gradients"
    return config.algorithm.steps * config.algorithm.batch + (samples if table else 0)


def keep(path: Path, name: str, rows: list[Row], changes: list[str]) -> None:
    """Put rows into a part's JSON, in the place of those of the same batch, K and method, and draw it."""
    told = json.loads(path.read_text()) if path.exists() else {"rows": []}
    by_key = {(row["steps"], row["batch"], list(LABELS).index(row["method"])): row for row in [*told["rows"], *rows]}
    part = PARTS[name]
    shared = ", pairwise noise" if "privacy.noise=pairwise" in changes else ""
    about = {"format": "privsgp-what-it-buys", "version": 1, "simulation": True, "name": path.stem}
    about |= {"words": part.words + shared}
    budget = {"epsilon": part.epsilon, "delta": 1e-5, "clip": part.clip, "samples": part.samples}
    told = about | budget | {"changes": changes}
    told |= {"rows": [by_key[key] for key in sorted(by_key)]}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, told)
    draw(told, path.with_suffix(".svg"))


def draw(told: dict[str, Any], path: Path) -> None:
    """Draw accuracy over evaluations, a line for each method."""
    figure, (axis,) = picture.panes(1)
    lines = {
        LABELS[m]: [{"x": row["evaluations"]} | row["accuracy"] for row in told["rows"] if row["method"] == m]
        for m in LABELS
    }
    picture.lines(axis, {label: points for label, points in lines.items() if points}, marker="o")
    picture.dress(axis, "gradient evaluations per node", f"test accuracy at a certified ε = {told['epsilon']:g}")
    axis.set(xscale="log", title=told["words"])
    picture.save(figure, path, dpi=100)


def written(folder: Path) -> str:
    """Return a table and a picture for each part that has been run."""
    files = [folder / f"{name}{kind}.json" for name in PARTS for kind in ("", "-pairwise")]
    return "\n".join(section(json.loads(path.read_text()), folder) for path in files if path.exists())


def section(told: dict[str, Any], folder: Path) -> str:
    """Return a part's table: a line for each batch and K, a column for each method."""
    rows: list[Row] = told["rows"]
    methods = [m for m in LABELS if any(row["method"] == m for row in rows)]
    seeds = sorted({len(row["seeds"]) for row in rows})
    many = " or ".join(map(str, seeds)) + (" seeds" if seeds != [1] else " seed, on which step sizes were chosen too")
    lines = [f"**{told['words']}**, ε = {told['epsilon']:g}, J = {told['samples']}, {many}:", ""]
    lines += ["| K | batch | evaluations | " + " | ".join(LABELS[m] for m in methods) + " | θ |"]
    lines += ["|---" * (4 + len(methods)) + "|"]
    for steps, batch in sorted({(row["steps"], row["batch"]) for row in rows}):
        here = {row["method"]: row for row in rows if (row["steps"], row["batch"]) == (steps, batch)}
        theta = here["scaled"]["difference_scale"] if "scaled" in here else None
        cells = [_accuracy(here[m]) if m in here else "" for m in methods]
        lines += [
            f"| {steps} | {batch:g} | {_counts(here)} | {' | '.join(cells)} | {'' if theta is None else f'{theta:g}'} |"
        ]
    drawn = f"{re.sub(r'.*/docs/', '', folder.resolve().as_posix())}/{told['name']}.svg"
    return "\n".join([*lines, "", pages.commits(rows), "", f"![{told['words']}]({drawn}){{ loading=lazy }}", ""])


def _counts(here: dict[str, Row]) -> str:
    """Return evaluations without a table, and with one where they differ."""
    return " or ".join(f"{count:,.0f}" for count in sorted({row["evaluations"] for row in here.values()}))


def _accuracy(row: Row) -> str:
    a = row["accuracy"]
    return f"{100 * a['mean']:.2f}" + (f" ± {100 * a['sd']:.2f}" if len(a["each"]) > 1 else "")


def _cells(row: Row) -> list[str]:
    theta = row["difference_scale"]
    return [
        f"K={row['steps']}", f"b={row['batch']:g}", f"{row['method']:8}", _accuracy(row), f"γ={row['step_size']:.3g}",
        f"σ={row['sigma']:.4g}", f"ε={row['epsilon']:.4g}", "" if theta is None else f"θ={theta:g}",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
