"""What noise reaches the average model x̄ = Σx_i / Σw_i, and how far the nodes' own models lie around it.

Columns of P sum to one, so mixing never changes Σx: whatever the graph, Σx moves by −γ Σ(g_i + N_i) and each coordinate
of x̄ collects the variance Σ_k γ_k² Σ_i σ_i² / n². Curvature then pulls a little of it back (`response`, measured in a
rehearsal). The graph decides how far the z_i are apart, which `spread` follows step by step.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from privsgp.plan.rehearsal import SEEDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from privsgp.graph import Graph
    from privsgp.plan.rehearsal import Scene, Stage

SETTLED = 400  # steps after which the distance between nodes no longer grows on any graph that is of use


def average_variance(step_size: Callable[[int], float], steps: int, sigmas: Sequence[float]) -> float:
    """Return Σ_k γ_k² Σ_i σ_i² / n², the variance of a coordinate of x̄ if nothing pulled it back."""
    travelled = math.fsum(step_size(k) ** 2 for k in range(steps))
    return travelled * math.fsum(sigma**2 for sigma in sigmas) / len(sigmas) ** 2


def response(stage: Stage, scene: Scene, distance: float) -> float:
    """Return the share of `average_variance` that is left when gradients answer to the noise, from a rehearsal.

    Rehearsals with the same coins, with noise and without: curvature makes it less than 1, and so does everything
    in which noise moves a model less (or more) than it moves a point on a plain.
    """
    if not scene.noise:
        return 1.0
    moved = []
    for seed in range(SEEDS):
        noisy, quiet = (stage.end(s, distance, seed=seed) for s in (scene, replace(scene, noise=0.0)))
        moved.append(float((noisy - quiet).double().square().mean()))
    return math.fsum(moved) / SEEDS / (scene.noise * distance) ** 2


def spread(graph: Graph, step_size: Callable[[int], float], steps: int, sigmas: Sequence[float]) -> float:
    """Return (1/n) Σ_i E(z_i − x̄)² of one coordinate after `steps` steps, by following the covariance of the x_i.

    X ← P (X + γ² diag σ²) Pᵀ and w ← P w, exactly; the last few hundred steps are all that matters.
    """
    n = graph.nodes
    covariance, w = np.zeros((n, n)), np.ones(n)
    for k in range(max(0, steps - SETTLED), steps):
        P = graph.matrix(k)
        covariance[np.diag_indices(n)] += step_size(k) ** 2 * np.square(sigmas)
        covariance, w = P @ covariance @ P.T, P @ w
    apart = np.diag(1 / w) - np.full((n, n), 1 / n)
    return float(np.trace(apart @ covariance @ apart.T)) / n
