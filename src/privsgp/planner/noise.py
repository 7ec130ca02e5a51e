"""What noise reaches the average model x̄ = Σx_i / Σw_i, and how far the nodes' own models lie around it.

Columns of P sum to one, so mixing never changes Σx: whatever the graph, x̄ moves by −γ Σ p_i (g_i + N_i) (p_i = 1/n
where all nodes count alike), and each coordinate of it collects the variance Σ_k γ_k² Σ_i p_i² σ_i². Curvature then
pulls a little of it back (`response`, measured in a rehearsal). The graph decides how far the z_i are apart, which
`spread` follows step by step.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from privsgp.planner.rehearsal import SEEDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from privsgp.graph import Graph
    from privsgp.planner.rehearsal import Rehearsal, RehearsalSpec

SETTLED = 400  # steps after which the distance between nodes no longer grows on any graph that is of use


def average_variance(
    step_size: Callable[[int], float], steps: int, sigmas: Sequence[float], weights: Sequence[float] | None = None
) -> float:
    """Return Σ_k γ_k² Σ_i p_i² σ_i², the variance of a coordinate of x̄ if nothing pulled it back."""
    travelled = math.fsum(step_size(k) ** 2 for k in range(steps))
    return travelled * math.fsum(np.square(_weighted(sigmas, weights))) / len(sigmas) ** 2


def _weighted(sigmas: Sequence[float], weights: Sequence[float] | None) -> NDArray[np.float64]:
    """Return n p_i σ_i: what node i really adds to its x_i for each unit of γ."""
    return np.asarray(sigmas) * (1.0 if weights is None else len(sigmas) * np.asarray(weights))


def added(sigmas: Sequence[float], weights: Sequence[float] | None = None) -> NDArray[np.float64]:
    """Return the covariance of what the nodes add to x for each unit of γ where their noise is independent."""
    covariance: NDArray[np.float64] = np.diag(np.square(_weighted(sigmas, weights)))
    return covariance


def response(rehearsal: Rehearsal, spec: RehearsalSpec, distance: float) -> float:
    """Return the share of `average_variance` that is left when gradients answer to the noise, from a rehearsal.

    Rehearsals with the same coins, with noise and without: curvature makes it less than 1, and so does everything
    in which noise moves a model less (or more) than it moves a point on a plain.
    """
    if not spec.noise:
        return 1.0
    moved = []
    for seed in range(SEEDS):
        noisy, quiet = (rehearsal.end(s, distance, seed=seed) for s in (spec, replace(spec, noise=0.0)))
        moved.append(float((noisy - quiet).double().square().mean()))
    return math.fsum(moved) / SEEDS / (spec.noise * distance) ** 2


def spread(
    graph: Graph,
    step_size: Callable[[int], float],
    steps: int,
    noise: NDArray[np.float64],
) -> float:
    """Return (1/n) Σ_i E(z_i − x̄)² of one coordinate after `steps` steps, by following the covariance of the x_i.

    `noise` is the covariance N of what the nodes add to x for each unit of γ. X ← P (X + γ² N) Pᵀ and w ← P w, exactly;
    the last few hundred steps are all that matters.
    """
    n = graph.nodes
    covariance, w = np.zeros((n, n)), np.ones(n)
    for k in range(max(0, steps - SETTLED), steps):
        P = graph.matrix(k)
        covariance += step_size(k) ** 2 * noise
        covariance, w = P @ covariance @ P.T, P @ w
    apart = np.diag(1 / w) - np.full((n, n), 1 / n)
    return float(np.trace(apart @ covariance @ apart.T)) / n
