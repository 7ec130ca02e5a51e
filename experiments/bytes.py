"""A fraction of the bytes: accuracy and bytes of `transport.bits` and `algorithm.local_steps`, 16 sites at ε = 3.

CIFAR-10, its first 16,000 training images (1,000 a site) and first 4,000 test images, a linear model on 256 features
of the synthetic encoder; even sites, and Dirichlet shares of the classes. K and the step size are the same for all
rows. The model trains on files of features, which `--encode` writes once: 65 images a second on a core.

    python experiments/bytes.py --encode --data-dir DATA --out RUNS [--device cuda]      # the features, once
    python experiments/bytes.py --out RUNS [--jobs 1] [--only even] [--noise pairwise]   # continues where it was
    python experiments/bytes.py --page docs/howto/bytes.md                               # write the table of the JSON
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pages
import torch

from privsgp import data
from privsgp.accounting.shown import up
from privsgp.features.encode import encode
from privsgp.features.encoder import SyntheticEncoder
from privsgp.files import write_json
from privsgp.runs import config as configs
from privsgp_research.bench import Bench
from privsgp_research.provenance import provenance

if TYPE_CHECKING:
    from privsgp.runs.config import Config

RESULTS = Path(__file__).parent.parent / "docs" / "results" / "bytes.json"
SITES, TRAINED, TESTED, SEEDS, STEPS, COMPONENTS = 16, 16_000, 4_000, 3, 64, 256
PARTITIONS = {"even": {"partition": "even"}, "dirichlet": {"partition": "dirichlet", "alpha": 0.1}}
STEP_SIZES = {"even": 0.8, "dirichlet": 0.4}  # the best up to 0.8 on seed 0, for 32 bits and one local step
WORDS = {"even": "even", "dirichlet": "Dirichlet, α = 0.1"}
ROWS = ((32, 1), (8, 1), (4, 1), (4, 2), (32, 4), (4, 4))  # bits, local steps


def features(data_dir: Path, out: Path, device: str) -> None:
    """Write the features of the images, for training and for the test."""
    images = data.load("cifar10", data_dir=data_dir)
    out.mkdir(parents=True, exist_ok=True)
    for name, x, y in (
        ("test", images.x_test[:TESTED], images.y_test[:TESTED]),
        ("train", images.x[:TRAINED], images.y[:TRAINED]),
    ):
        rows = encode(SyntheticEncoder(COMPONENTS, 1.0), x, torch.device(device))
        np.savez(out / f"{name}.npz", x=rows, y=y, classes=10)


def config(out: Path, partition: str, noise: str, bits: int, local: int) -> Config:
    """Return the configuration of a row but for its seed."""
    values = {
        "seed": 0,
        "data": {
            "name": str(out / "train.npz"), "test_path": str(out / "test.npz"), "nodes": SITES, **PARTITIONS[partition],
        },
        "model": {"name": "logistic"},
        "graph": {"name": "exponential"},
        "privacy": {"epsilon": 3.0, "delta": 1e-5, "clip": 8.0, "spare": 0.0, "noise": noise},
        "algorithm": {
            "name": "privsgp", "batch": TRAINED // SITES, "steps": STEPS, "step_size": STEP_SIZES[partition],
            "average": "tail", "average_share": 0.25, "final_mixing": 4, "local_steps": local,
            "weights": "noise" if partition == "dirichlet" else "equal",
        },
        "transport": {"bits": bits},
        "engine": {"device": "cpu", "checkpoint_every": 0, "evaluate_every": STEPS},
    }  # fmt: skip
    return configs.parse(values)


def measured(partition: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all rows of a partition, with every seed."""
    rows = ROWS
    made = {f"{b}-{t}": config(options.out.resolve(), partition, options.noise, b, t) for b, t in rows}
    bench = Bench(options.out / "runs" / f"{partition}-{options.noise}", None, options.jobs)
    found = []
    for (bits, local), runs in zip(rows, bench.several(made, range(SEEDS), partition).values(), strict=True):
        spent = [one for run in runs.runs if run.summary is not None for one in run.summary["epsilon_spent"]]
        row = {"partition": partition, "noise": options.noise, "bits": bits, "local_steps": local}
        row |= runs.spreads("test_accuracy", "mean_node_accuracy", "bytes_sent") | {"epsilon": max(spent)}
        found.append(row | {"releases": runs.summary["releases"]} | provenance("cpu"))
        print(json.dumps(found[-1]), flush=True)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """Return the table of the page."""
    lines = ["| sites | noise | bits | local steps | bytes of a site | share | average model | sites' own models |"]
    lines += ["|---" * 8 + "|"]
    for (partition, noise), group in itertools.groupby(rows, lambda row: (row["partition"], row["noise"])):
        own = list(group)
        whole = own[0]["bytes_sent"]["mean"]
        for row in own:
            size = row["bytes_sent"]["mean"]
            cells = [WORDS[partition], noise, row["bits"], row["local_steps"], f"{size / SITES / 1e6:.2f} MB"]
            cells += ["1" if size == whole else f"1/{whole / size:.1f}"]
            cells += [_accuracy(row[key]) for key in ("test_accuracy", "mean_node_accuracy")]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    epsilon = up(max(row["epsilon"] for row in rows))
    about = f"Every site spends ε = {epsilon} at δ = 1e-5, and {STEPS} releases, in all rows."
    return "\n".join([*lines, "", f"{about} {pages.commits(rows)}"])


def _accuracy(spread: dict[str, Any]) -> str:
    return f"{100 * spread['mean']:.2f} ± {100 * spread['sd']:.2f}"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encode", action="store_true")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/bytes"), help="folder of the features and the runs")
    parser.add_argument("--only", nargs="+", default=list(PARTITIONS), choices=list(PARTITIONS))
    parser.add_argument("--noise", default="independent", choices=["independent", "pairwise"])
    parser.add_argument("--device", default="cpu", help="for features")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--page", type=Path, help="run nothing: write the table of the JSON file into this page")
    return parser.parse_args()


def main() -> None:
    """Encode, run, or write the page."""
    options = arguments()
    if options.page is not None:
        pages.put(options.page, "bytes", table(json.loads(RESULTS.read_text())["rows"]))
    elif options.encode:
        features(options.data_dir, options.out, options.device)
    else:
        for partition in options.only:
            keep(measured(partition, options))


def keep(rows: list[dict[str, Any]]) -> None:
    """Put rows into the JSON, in the place of those of the same partition and noise."""
    kind = rows[0]["partition"], rows[0]["noise"]
    told = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    others = [row for row in told if (row["partition"], row["noise"]) != kind]
    both = sorted([*others, *rows], key=lambda row: (row["noise"], list(PARTITIONS).index(row["partition"])))
    write_json(RESULTS, {"format": "privsgp-bytes", "version": 1, "simulation": True, "rows": both})


if __name__ == "__main__":
    main()
