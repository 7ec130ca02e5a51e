"""Your own `torch.nn.Module`, your own arrays, your own loss: handwritten digits with a small residual network.

    python examples/own_module.py

Any module works whose samples do not influence each other: use GroupNorm or LayerNorm in place of BatchNorm. Linear,
Conv2d, Embedding and norm layers have a fast rule; anything else, like the scale below, goes through torch.func. What
cannot be protected is refused before anything is trained; the end of the script shows how that reads.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import privsgp
from privsgp.accounting.shown import up


class Residual(nn.Module):
    """Two layers around a residual block with a scale of its own."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enter = nn.Linear(64, width)
        self.norm = nn.LayerNorm(width)
        self.inside = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(width))  # no layer with a rule: torch.func takes over
        self.leave = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return ten scores."""
        h = torch.tanh(self.enter(x))
        h = h + self.scale * torch.tanh(self.inside(self.norm(h)))
        return self.leave(h)


class Batched(Residual):
    """The same with BatchNorm: a sample's output depends on the others in its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(32)


def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
    """One number for every sample: cross-entropy with softened targets."""
    return functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.05)


def correct(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the highest score is right."""
    return (outputs.argmax(-1) == targets).float()


def digits() -> tuple[np.ndarray, ...]:
    """Return (x, y, x_test, y_test), scaled by constants: statistics of the data would spend privacy."""
    x, y = load_digits(return_X_y=True)
    x = ((x / 16 - 0.3) / 0.37).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:1440], order[1440:]
    return x[train], y[train].astype(np.int64), x[test], y[test].astype(np.int64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, help="where the run folder goes; default: a temporary folder")
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp(prefix="own-module-"))

    torch.manual_seed(0)  # the weights a model starts from are public
    settings = {
        "nodes": 8,
        "seed": 0,
        "graph": "exponential",
        "privacy": {"epsilon": 8.0, "delta": 1e-5, "clip": 1.0},
        "algorithm": {"name": "privsgp", "batch": 60, "steps": options.steps, "step_size": 0.5},
    }
    result = privsgp.train(Residual(), digits(), loss=smoothed, correct=correct, out=out / "run", **settings)
    s = result.summary
    print(f"{s['test_accuracy']:.1%} with ε = {up(max(s['epsilon_spent']), 3)} at every one of {s['nodes']} nodes")
    print(f"the model is an ordinary module: {type(result.model).__name__}; report: {result.folder / 'report.html'}")

    try:
        privsgp.train(Batched(), digits(), loss=smoothed, correct=correct, out=out / "refused", **settings)
    except privsgp.Refused as refused:
        print(f"\nwith BatchNorm: {refused}")


if __name__ == "__main__":
    main()
