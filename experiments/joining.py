"""What a node with a small budget does to the others: noise in the average model as nodes join, largest budget first.

Needs no data: sizes and budgets are in the configuration, and σ_i is what training would certify.

    python experiments/joining.py experiments/configs/a9a.toml
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

from privsgp.algorithms.update_rule import node_weights
from privsgp.runs import config as configs
from privsgp.runs.budgets import calibrate_nodes


def rows(path: Path) -> list[dict[str, float]]:
    """Return how many nodes, the smallest ε among them, and the noise with equal weights and with weights by noise."""
    config = configs.read(path)
    sizes, budgets = config.data.sizes, config.privacy.epsilon
    if sizes is None or not isinstance(budgets, list):
        sys.exit(f"{path}: give data.sizes and a list privacy.epsilon")
    sigmas = [mechanism.sigma for mechanism in calibrate_nodes(config, sizes, 1e-6).mechanisms]
    order = sorted(range(len(sizes)), key=lambda i: -budgets[i])
    found = []
    for count in range(2, len(order) + 1, 2):
        here = [sigmas[i] for i in order[:count]]
        weights = node_weights("noise", [sizes[i] for i in order[:count]], here)
        travelled = config.algorithm.steps * config.algorithm.step_size**2
        equal, weighted = (
            math.sqrt(travelled * math.fsum((p * s) ** 2 for p, s in zip(shares, here, strict=True)))
            for shares in ([1 / count] * count, weights or [1 / count] * count)
        )
        found.append({"nodes": count, "epsilon": budgets[order[count - 1]], "equal": equal, "weighted": weighted})
    return found


def table(found: list[dict[str, float]]) -> str:
    """Return a line for each number of nodes."""
    lines = ['| nodes | smallest ε | equal weights | weights = "noise" |', "|---|---|---|---|"]
    lines += [f"| {r['nodes']} | {r['epsilon']:g} | {r['equal']:.3f} | {r['weighted']:.3f} |" for r in found]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(rows(Path(sys.argv[1]))))
