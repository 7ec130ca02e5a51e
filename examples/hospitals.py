"""Six hospitals with unequal data and unequal budgets train one model together, and each learns what it gains.

    python examples/hospitals.py

Patients are made up: twenty measurements each, and whether they came back within a month. Every hospital has another
mix of patients, and chooses its own ε. The script trains twice on the same patients: once with all hospitals together
and once with each hospital by itself, with half of each budget. What both runs reveal together is at most the sum, so
it stays below each hospital's ε. (Without a seed, `privsgp budget` shows these sums.)
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import privsgp

RECORDS = [4000, 2500, 1500, 1000, 600, 400]
EPSILON = [0.2, 0.3, 0.3, 0.5, 1.0, 1.0]  # each hospital decides for itself what all runs together may spend
MEASUREMENTS = 20


def patients(count: int, mix: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Make up patients: `mix` shifts what kind of patients a hospital sees, not how they fare."""
    x = rng.standard_normal((count, MEASUREMENTS)).astype(np.float32)
    x[:, 0] += mix
    effect = np.cos(np.arange(MEASUREMENTS))
    risk = x @ effect + 0.5 * x[:, 1] * x[:, 2] - 0.3
    return x, (risk + rng.logistic(size=count) > 0).astype(np.int64)


def network() -> nn.Module:
    """Start from the same public weights everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(MEASUREMENTS, 16), nn.Tanh(), nn.Linear(16, 2))


def train(hospitals: dict, epsilon: list[float], test: tuple, algorithm: dict, out: Path) -> privsgp.Result:
    """Train these hospitals."""
    return privsgp.train(
        network(),
        hospitals,
        test=test,
        test_is_public=True,  # else accuracy on them would stay in private/
        classes=2,
        out=out,
        seed=0,  # to repeat the example; when patients are real leave it out: noise is secret then, and each run counts
        graph="exponential",
        privacy={"epsilon": epsilon, "delta": 1e-5, "clip": 1.0},
        algorithm={"batch": 128, "step_size": 0.5} | algorithm,
    )


def accuracy(weights: torch.Tensor, test: tuple[np.ndarray, np.ndarray]) -> float:
    """Try a hospital's own model on new patients."""
    model = network()
    nn.utils.vector_to_parameters(weights, model.parameters())
    with torch.no_grad():
        return float((model(torch.from_numpy(test[0])).argmax(1).numpy() == test[1]).mean())


def compare(steps: int, out: Path) -> tuple[float, list[dict[str, float]]]:
    """Return the accuracy of the model of all, and what each hospital has spent and reaches alone."""
    rng = np.random.default_rng(0)
    hospitals = {i: patients(count, mix=i / 5 - 0.5, rng=rng) for i, count in enumerate(RECORDS)}
    test = patients(5000, mix=0.0, rng=rng)

    half = [epsilon / 2 for epsilon in EPSILON]
    joint = {"name": "privsgp-sag", "steps": steps}
    together = train(hospitals, half, test, joint, out / "together").summary
    own = {"name": "local", "steps": steps}
    alone = train(hospitals, half, test, own, out / "alone")
    spent, rest = together["epsilon_spent"], alone.summary["epsilon_spent"]
    return together["test_accuracy"], [
        {"spent_together": spent[i], "spent_in_both": spent[i] + rest[i], "alone": accuracy(alone.nodes[i], test)}
        for i in hospitals
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, help="where run folders go; default: a temporary folder")
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="hospitals-"))

    together, rows = compare(options.steps, out)
    print(f"together: {together:.1%} on new patients\n")
    print("hospital  records  budget ε  together  both runs  alone")
    for i, row in enumerate(rows):
        spent = f"{row['spent_together']:>8.3f}  {row['spent_in_both']:>9.3f}"
        print(f"{i:>8}  {RECORDS[i]:>7}  {EPSILON[i]:>8}  {spent}  {row['alone']:.1%}")
    print(f"\nreport: {out / 'together' / 'report.html'}")


if __name__ == "__main__":
    main()
