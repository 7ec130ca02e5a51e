"""Six hospitals with unequal data and unequal budgets train one model together, and each learns what it gains.

    python examples/hospitals.py

Patients are made up: twenty measurements each, and whether they came back within a month. Every hospital has another
mix of patients, and chooses its own ε. The script trains once with all of them and once for each hospital by itself,
with the same budget, and prints what each gains by taking part.
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
EPSILON = [0.2, 0.3, 0.3, 0.5, 1.0, 1.0]  # each hospital decides for itself
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


def train(hospitals: dict[int, tuple], epsilon: list[float], test: tuple, steps: int, out: Path) -> dict:
    """Train these hospitals together and return the run's summary."""
    result = privsgp.train(
        network(),
        hospitals,
        test=test,
        out=out,
        seed=0,  # to repeat the example; leave it out when patients are real, and noise is secret
        graph="exponential",
        privacy={"epsilon": epsilon, "delta": 1e-5, "clip": 1.0},
        algorithm={"name": "privsgp-sag", "batch": 128, "steps": steps, "step_size": 0.5},
    )
    return result.summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, help="where run folders go; default: a temporary folder")
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="hospitals-"))

    rng = np.random.default_rng(0)
    hospitals = {i: patients(count, mix=i / 5 - 0.5, rng=rng) for i, count in enumerate(RECORDS)}
    test = patients(5000, mix=0.0, rng=rng)

    together = train(hospitals, EPSILON, test, options.steps, out / "together")
    print(f"together: {together['test_accuracy']:.1%} on new patients\n")
    print("hospital  records  budget ε  spent ε  noise σ  alone")
    for i, count in enumerate(RECORDS):
        alone = train({0: hospitals[i]}, [EPSILON[i]], test, options.steps, out / f"alone-{i}")
        print(
            f"{i:>8}  {count:>7}  {EPSILON[i]:>8}  {together['epsilon_spent'][i]:>7.3f}  "
            f"{together['sigma'][i]:>7.4f}  {alone['test_accuracy']:.1%}"
        )
    print(f"\nreport: {out / 'together' / 'report.html'}")


if __name__ == "__main__":
    main()
