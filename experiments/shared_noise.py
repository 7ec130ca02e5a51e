"""Noise that neighbours share: accuracy at one certified budget, beside noise of one's own and beside pooled data.

Four kinds of run at the same (ε, δ): every node's noise its own (`local`), noise that pairs share where three quarters
of the nodes are honest, where all are, and DP-SGD on all data in one place, which everybody has to trust. Each has its
own best of several step sizes, chosen on seed 0 by test accuracy; what is reported are fresh seeds. Runs that are done
are not made again, and rows of other parts in the JSON stay.

    python experiments/shared_noise.py --data-dir DATA --out RUNS [--only mnist] [--device cuda] [--jobs 4] [--seeds 3]
    python experiments/shared_noise.py --page docs/trust.md     # write the table
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pages

from privsgp.files import write_json
from privsgp.research.bench import Bench
from privsgp.research.provenance import provenance
from privsgp.runs import config as configs

if TYPE_CHECKING:
    from privsgp.research.bench import Several
    from privsgp.runs.config import Config

Row = dict[str, Any]
HERE = Path(__file__).parent
RESULTS = HERE.parent / "docs" / "results" / "shared-noise" / "accuracy.json"
KINDS = {"local": "own noise", "pairwise": "shared, ¾ honest", "all": "shared, all honest", "pooled": "pooled `dp-sgd`"}


@dataclass(frozen=True)
class Part:
    """One line of the table: a configuration, what differs from it, and the distances γK that are tried."""

    words: str
    config: str
    local: tuple[float, ...]
    shared: tuple[float, ...]
    changes: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()  # what differs where noise is shared: more steps pay there

    def asked(self, kind: str, device: str) -> Config:
        """Return the configuration of a kind of run but for its step size and seed."""
        own = [] if kind == "local" else [*self.steps, *_kind(kind)]
        return configs.read(HERE / "configs" / self.config, [*self.changes, *own, f"engine.device={device}"])

    def grid(self, kind: str) -> tuple[float, ...]:
        """Return the distances that are tried."""
        return self.local if kind == "local" else self.shared


def _kind(kind: str) -> list[str]:
    if kind == "pooled":
        return ["algorithm.name=dp-sgd", "algorithm.weights=equal", "algorithm.final_mixing=0", "algorithm.momentum=0"]
    return ["privacy.noise=pairwise"]


_FEW = ("algorithm.batch=240", "algorithm.steps=1500")
_MANY = ("algorithm.batch=120", "algorithm.steps=4800")
_CIFAR = ("algorithm.batch=780", "algorithm.steps=600")
_LONGER = ("algorithm.batch=780", "algorithm.steps=1500")
PARTS = {
    "mnist": Part(
        "MNIST, 50 nodes, linear on scattering features, ε = 1", "mnist.toml",
        (10, 20, 40), (24, 48, 96, 192), steps=_FEW,
    ),
    "mnist-0.4": Part("the same, ε = 0.4", "mnist.toml", (4, 8, 16), (12, 24, 48, 96), ("privacy.epsilon=0.4",), _FEW),
    "mnist-mlp": Part(
        "MNIST, 50 nodes, MLP-64 on pixels, ε = 1", "mnist-mlp.toml", (75, 150, 300), (600, 1200, 2400), steps=_MANY
    ),
    "cifar10": Part(
        "CIFAR-10, 16 nodes, linear on scattering features, ε = 3", "cifar10.toml",
        (14, 28, 56, 112), (56, 112, 224, 448), steps=_CIFAR,
    ),
    "cifar10-1": Part(
        "the same, ε = 1", "cifar10.toml", (10, 20, 40), (28, 56, 112, 224), ("privacy.epsilon=1",), _LONGER
    ),
    "a9a": Part("a9a, 16 nodes, ε from 0.2 to 2", "a9a.toml", (600, 1200, 2400, 4800), (600, 1200, 2400)),
}  # fmt: skip


def main() -> None:
    """Run what is asked for, or write the page."""
    options = arguments()
    if options.page is not None:
        pages.put(options.page, "shared noise", shown(json.loads(options.results.read_text())["rows"]))
        return
    for name in options.only:
        for kind, row in tuned(name, options).items():
            print(name, kind, _cell(row), f"γ={row['step_size']:.3g}", flush=True)
            keep(options.results, row | {"part": name, "kind": kind} | provenance(options.device))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/shared-noise"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--page", type=Path, help="run nothing: write the table of the JSON file into this")
    return parser.parse_args()


def tuned(name: str, options: argparse.Namespace) -> dict[str, Row]:
    """Choose every kind's step size on seed 0, run it with fresh seeds, and return a row for each."""
    part, bench = PARTS[name], Bench(options.out / name, options.data_dir, options.jobs)
    asked: dict[tuple[str, float], Config] = {}
    for kind in options.kinds:
        bare = part.asked(kind, options.device)
        bare = bare.with_section("privacy", honest=bare.data.nodes) if kind == "all" else bare
        asked |= {(kind, T): bare.with_algorithm(step_size=T / bare.algorithm.steps) for T in part.grid(kind)}
    keys = {key: f"{key[0]}/distance-{key[1]:g}" for key in asked}
    tried = bench.several({keys[key]: config for key, config in asked.items()}, [0], "step sizes")
    best = {kind: max(part.grid(kind), key=lambda T: tried[keys[kind, T]].score) for kind in options.kinds}
    last = {keys[key]: asked[key] for key in best.items()}
    found = bench.several(last, range(1, 1 + options.seeds), "fresh seeds")
    return {
        kind: row_of(found[keys[kind, T]], {D: tried[keys[kind, D]] for D in part.grid(kind)})
        for kind, T in best.items()
    }


def row_of(runs: Several, tried: dict[float, Several]) -> Row:
    """Return what a kind of run came to."""
    a, p, summary = runs.config.algorithm, runs.config.privacy, runs.summary
    return {
        "batch": a.batch, "steps": a.steps, "step_size": a.step_size, "clip": p.clip,
        "honest": runs.config.honest if p.noise == "pairwise" else None,
        "sigma": _least(summary.get("sigma")), "epsilon": runs.epsilon,
        "seeds": [run.config.seed for run in runs.runs],
        "accuracy": None if runs.accuracy is None else runs.accuracy.as_json(),
        "tried": [
            {"distance": T, "accuracy": None if one.accuracy is None else one.accuracy.mean} for T, one in tried.items()
        ],
    }  # fmt: skip


def _least(sigma: list[float] | None) -> float | None:
    return None if sigma is None else min(sigma)


def keep(path: Path, row: Row) -> None:
    """Put a row into the JSON, in the place of the one of the same part and kind."""
    told = json.loads(path.read_text()) if path.exists() else {"rows": []}
    rows = {(r["part"], r["kind"]): r for r in [*told["rows"], row]}
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"format": "privsgp-shared-noise", "version": 1, "simulation": True, "delta": 1e-5}
    write_json(path, about | {"rows": list(rows.values())})


def shown(rows: list[Row]) -> str:
    """Return what pages show: the table, and where its numbers come from."""
    return table(rows) + "\n" + pages.commits(rows)


def table(rows: list[Row]) -> str:
    """Return a line for each part that has been run, and a column for each kind."""
    lines = ["| | " + " | ".join(KINDS.values()) + " |", "|---" * (1 + len(KINDS)) + "|"]
    for name, part in PARTS.items():
        here = {row["kind"]: row for row in rows if row["part"] == name}
        if here:
            lines.append(f"| {part.words} | " + " | ".join(_cell(here[k]) if k in here else "" for k in KINDS) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: Row) -> str:
    a = row["accuracy"]
    return f"{100 * a['mean']:.2f}" + (f" ± {100 * a['sd']:.2f}" if len(a["each"]) > 1 else "")


if __name__ == "__main__":
    main()
