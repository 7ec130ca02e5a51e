"""SoteriaFL's own MNIST figure: 10 nodes sorted by label, an MLP with 64 sigmoid units, random-k with k = d/20.

Each setting twice: as its code has it (the mean of a batch is clipped, noise by its formula: not DP), which should give
the accuracies of its plots, and certified (every record is clipped, noise by the certified accountant) at the same ε.
Both start from x⁰ = N(0, 1)/5, as the notebook does; `--start 0` shows that it matters.

    python experiments/soteriafl_mnist.py --data-dir DATA --out soteriafl.json [--start 0] [--epsilons 1 2 4 8 16]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from privsgp.accounting import accountant
from privsgp.runs import build as jobs
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs import train as training

# ε: (K, γ of SGD, γ of SVRG), and the accuracies read off the plots (±0.01)
SETTINGS = {1: (150, 0.6, 0.3), 2: (200, 0.6, 0.3), 4: (300, 1.0, 0.6), 8: (500, 1.0, 0.6), 16: (1000, 1.0, 0.6)}
PLOTTED = {
    "soteriafl-sgd": {1: 0.735, 2: 0.83, 4: 0.89, 8: 0.915, 16: 0.94},
    "soteriafl-svrg": {1: 0.485, 2: 0.68, 4: 0.78, 8: 0.855, 16: 0.905},
}
BATCH = {"soteriafl-sgd": 128, "soteriafl-svrg": 82}
AS_CODED = {"clip_what": "mean", "accountant": "published"}


def main() -> None:
    """Run everything and print the table."""
    options = arguments()
    torch.set_num_threads(1)
    rows = []
    for name in options.methods:
        for epsilon in options.epsilons:
            coded, certified = (run(options, name, epsilon, privacy) for privacy in (AS_CODED, {}))
            row = {
                "method": name, "epsilon": epsilon, "steps": coded["steps"], "plotted": PLOTTED[name][epsilon],
                "as_coded": coded["test_accuracy"], "sigma": coded["sigma"][0], "certified": certified["test_accuracy"],
                "certified_sigma": certified["sigma"][0], "epsilon_of_their_sigma": honest(options, name, epsilon),
            }  # fmt: skip
            rows.append(row)
            print(line(row), flush=True)
    options.out.write_text(json.dumps({"start": options.start, "seed": options.seed, "rows": rows}, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epsilons", type=int, nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--methods", nargs="+", default=list(PLOTTED), choices=list(PLOTTED))
    parser.add_argument("--start", type=float, default=0.2, help="x⁰ = N(0, START²); 0 for torch's own")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def configured(options: argparse.Namespace, name: str, epsilon: int, privacy: dict[str, Any]) -> configs.Config:
    """Return one setting of the notebook."""
    steps, sgd, svrg = SETTINGS[epsilon]
    return configs.parse(
        {
            "name": f"{name}-{epsilon}",
            "seed": options.seed,
            "data": {"name": "mnist", "nodes": 10, "partition": "sorted"},
            "model": {"name": "mlp", "hidden": 64, "activation": "sigmoid"},
            "privacy": {"epsilon": float(epsilon), "delta": 1e-3, "spare": 0.0} | privacy,
            "algorithm": {
                "name": name, "batch": BATCH[name], "steps": steps, "compressor": "random-k",
                "step_size": sgd if name == "soteriafl-sgd" else svrg,
            },
            "engine": {"device": "cpu", "evaluate_every": steps},
        }
    )  # fmt: skip


def run(options: argparse.Namespace, name: str, epsilon: int, privacy: dict[str, Any]) -> dict[str, Any]:
    """Train once and return the summary."""
    config = configured(options, name, epsilon, privacy)
    problem = problems.load_problem(config, options.data_dir)
    if options.start:
        generator = torch.Generator().manual_seed(options.seed)
        with torch.no_grad():
            for p in problem.model.parameters():
                p.copy_(options.start * torch.randn(p.shape, generator=generator))
    with tempfile.TemporaryDirectory() as folder:
        return training.run(config, problem, Path(folder) / "run").summary


def honest(options: argparse.Namespace, name: str, epsilon: int) -> float:
    """Return the certified ε of noise by their formula, if every record were clipped."""
    config = configured(options, name, epsilon, {"accountant": "published"})
    job = jobs.prepare(config, problems.load_problem(config, options.data_dir))
    return accountant.epsilon(job.protection.mechanisms[0], job.steps, 1e-3).epsilon


def line(row: dict[str, Any]) -> str:
    """Return a row of the table in docs/algorithms.md."""
    return (
        f"| {row['method']} | {row['epsilon']} | {row['steps']} | {row['plotted']} | {row['as_coded']:.3f} "
        f"| {row['epsilon_of_their_sigma']:.2f} | {row['certified']:.3f} |"
    )


if __name__ == "__main__":
    main()
