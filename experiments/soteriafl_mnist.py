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
from typing import TYPE_CHECKING, Any

import torch

import privsgp
from privsgp.accounting import accountant, published
from privsgp.accounting.mechanisms import Saga, SampledMean, Unprotected
from privsgp.algorithms.soteriafl import SoteriaFL, SoteriaFLSGD, SoteriaFLSVRG
from privsgp.runs import build
from privsgp.runs import config as configs
from privsgp.runs import problem as problems
from privsgp.runs import train as training

if TYPE_CHECKING:
    from torch import Tensor

    from privsgp.accounting.mechanisms import Mechanism
    from privsgp.algorithms import Drawn, Settings

# ε: (K, γ of SGD, γ of SVRG), and the accuracies read off the plots (±0.01)
SETTINGS = {1: (150, 0.6, 0.3), 2: (200, 0.6, 0.3), 4: (300, 1.0, 0.6), 8: (500, 1.0, 0.6), 16: (1000, 1.0, 0.6)}
PLOTTED = {
    "soteriafl-sgd": {1: 0.735, 2: 0.83, 4: 0.89, 8: 0.915, 16: 0.94},
    "soteriafl-svrg": {1: 0.485, 2: 0.68, 4: 0.78, 8: 0.855, 16: 0.905},
}
BATCH = {"soteriafl-sgd": 128, "soteriafl-svrg": 82}


class _MeanClipped(SoteriaFL):
    """What their code does: the mean of a batch is clipped, no record's gradient is. Not DP: no ε is finite."""

    @staticmethod
    def mechanism(settings: Settings, *, sigma: float, batch: float, samples: int, kappa: float) -> Mechanism:
        """Declare nothing: one sample may decide the whole of a clipped mean."""
        return Unprotected(sigma=sigma, batch=batch, samples=samples, sampling=settings.sampling, kappa=kappa)

    def estimate(self, k: int, z: Tensor, batch: list[Drawn]) -> Tensor:
        """Return clip_G(ĝ_i)."""
        g = super().estimate(k, z, batch)  # type: ignore[safe-super]
        return g.mul_((self.settings.clip / torch.linalg.vector_norm(g, dim=1, keepdim=True)).clamp(max=1))


class _SGD(_MeanClipped, SoteriaFLSGD):
    name = "soteriafl-sgd-as-coded"


class _SVRG(_MeanClipped, SoteriaFLSVRG):
    name = "soteriafl-svrg-as-coded"


def main() -> None:
    """Run everything and print the table."""
    options = arguments()
    for method in (_SGD, _SVRG):
        privsgp.register(method)
    torch.set_num_threads(1)
    rows = []
    for name in options.methods:
        for epsilon in options.epsilons:
            coded, certified = (run(options, name, epsilon, as_coded=coded) for coded in (True, False))
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


def configured(
    options: argparse.Namespace, name: str, epsilon: int, *, accountant: str = "certified", as_coded: bool = False
) -> configs.Config:
    """Return one setting of the notebook."""
    steps, sgd, svrg = SETTINGS[epsilon]
    budget = {"epsilon": float(epsilon), "accountant": accountant}
    privacy = {"sigma": their_sigma(name, epsilon)} if as_coded else budget
    return configs.parse(
        {
            "name": f"{name}-{epsilon}",
            "seed": options.seed,
            "data": {"name": "mnist", "nodes": 10, "partition": "sorted"},
            "model": {"name": "mlp", "hidden": 64, "activation": "sigmoid"},
            "privacy": {"delta": 1e-3, "spare": 0.0} | privacy,
            "algorithm": {
                "name": f"{name}-as-coded" if as_coded else name, "batch": BATCH[name], "steps": steps,
                "compressor": "random-k",
                "step_size": sgd if name == "soteriafl-sgd" else svrg,
            },
            "engine": {"device": "cpu", "evaluate_every": steps},
        }
    )  # fmt: skip


def their_sigma(name: str, epsilon: int) -> float:
    """Return the noise of their formula, for 6,000 samples a node and a clip of 1."""
    kind = SampledMean if name == "soteriafl-sgd" else Saga
    release = kind(sigma=0.0, clip=1.0, batch=BATCH[name], samples=6000)
    return published.sigma(release, SETTINGS[epsilon][0], float(epsilon), 1e-3, algorithm=name)


def run(options: argparse.Namespace, name: str, epsilon: int, *, as_coded: bool) -> dict[str, Any]:
    """Train once and return the summary."""
    config = configured(options, name, epsilon, as_coded=as_coded)
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
    config = configured(options, name, epsilon, accountant="published")
    spec = build.build_run(config, problems.load_problem(config, options.data_dir))
    return accountant.epsilon(spec.protection.mechanisms[0], spec.steps, 1e-3).epsilon


def line(row: dict[str, Any]) -> str:
    """Return a row of the table in docs/algorithms.md."""
    return (
        f"| {row['method']} | {row['epsilon']} | {row['steps']} | {row['plotted']} | {row['as_coded']:.3f} "
        f"| {row['epsilon_of_their_sigma']:.2f} | {row['certified']:.3f} |"
    )


if __name__ == "__main__":
    main()
