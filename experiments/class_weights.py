"""What weights of classes do under a clip: sensitivity and specificity where one record in ten is positive.

python experiments/class_weights.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import privsgp

STEP_SIZE = {0.3: 2.0, 3.0: 0.3, 30.0: 0.3}  # by clip


def records(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return made-up records with ten features, three of which tell."""
    rng = np.random.default_rng(seed)
    y = (rng.random(count) < 0.1).astype(np.int64)
    x = rng.standard_normal((count, 10)).astype(np.float32)
    x[:, :3] += 0.9 * y[:, None]
    return x, y


def rates(clip: float, weight: float, seed: int) -> tuple[float, float]:
    """Return sensitivity and specificity of a linear model that four sites learnt."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        result = privsgp.train(
            nn.Linear(10, 2),
            [records(2000, 10 * seed + site) for site in range(4)],
            loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, weight]), reduction="none"),
            classes=2,
            out=Path(folder) / "run",
            seed=seed,
            graph="exponential",
            privacy={"epsilon": 2.0, "clip": clip},
            algorithm={"name": "privsgp", "batch": 400, "steps": 100, "step_size": STEP_SIZE[clip]},
        )
    x, y = records(20_000, 99)
    said = result.model(torch.from_numpy(x)).argmax(1).numpy()
    return float(said[y == 1].mean()), float(1 - said[y == 0].mean())


if __name__ == "__main__":
    for clip in STEP_SIZE:
        for weight in (1.0, 9.0):
            sensitivity, specificity = np.mean([rates(clip, weight, seed) for seed in range(3)], 0)
            print(f"clip {clip:g}, weight {weight:g}: {sensitivity:.3f}, {specificity:.3f}")
