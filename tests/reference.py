"""The algorithms as the paper writes them: the obvious version that the fast code is tested against.

One node at a time, one sample at a time, a dense mixing matrix, a dense table, float64 throughout. Nothing here is
imported from the package, and nothing is random: coins and noise are arguments. torch appears only to differentiate.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]
Gradient = Callable[[Array, int, int], Array]


@dataclass(frozen=True)
class Outcome:
    """State after the last step: x [n, d], w [n], z [n, d], one table [J_i, d] per node (none without a table).

    `history` is [steps + 1, n, d]: z before the first step and after each one.
    """

    x: Array
    w: Array
    z: Array
    tables: list[Array]
    history: Array


def per_sample_gradient(
    module: torch.nn.Module, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], x: Array, a: Any, b: Any
) -> Array:
    """∇f(x; (a, b)) for input a and target b, flat in the order of `module.parameters()`; `module` is left alone."""
    model = copy.deepcopy(module).double()
    parameters = list(model.parameters())
    torch.nn.utils.vector_to_parameters(torch.tensor(x, dtype=torch.float64), parameters)
    value = loss(model(_batch_of_one(a)), _batch_of_one(b)).sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)]).numpy()


def _batch_of_one(sample: Any) -> torch.Tensor:
    tensor = torch.as_tensor(sample)[None]
    return tensor.double() if tensor.is_floating_point() else tensor


def clipped(v: Array, radius: float | None) -> Array:
    """v·min(1, radius/‖v‖); None does not clip. Total: a non-finite v counts as 0 (docs/proofs/rounding.md)."""
    if not np.isfinite(v).all():
        return np.zeros_like(v)
    norm = np.linalg.norm(v)
    return v if radius is None or norm <= radius else v * (radius / norm)


def run(
    algorithm: Literal["sgp", "privsgp", "privsgp-vr", "privsgp-sag"],
    *,
    gradient: Gradient,
    x0: Array,
    samples: Sequence[int],
    batch: Sequence[float],
    draws: Sequence[Sequence[Iterable[int]]],
    step_size: Sequence[float],
    P: Sequence[Array],
    steps: int,
    noise: Sequence[Sequence[Array]] = (),
    sigma: Sequence[float] = (),
    clip: float | None = None,
    difference_clip: float | None = None,
    difference_scale: float = 1.0,
    table_init: Literal["gradients", "zeros"] = "gradients",
) -> Outcome:
    """Algorithms 1 and 2 with everything random given.

    `gradient(z_i, i, j)` is ∇f_i(z_i; j); `draws[k][i]` are the distinct samples of node i at step k; `noise[k][i]` is
    standard normal and is multiplied by `sigma[i]`; P[k][i, j] is the share of j's message that i receives. SGP has
    neither clip nor noise and ignores both; the others need `noise` and `sigma`, and clip unless `clip` is None.
    """
    if (difference_clip is not None or difference_scale != 1) and algorithm != "privsgp-vr":
        raise ValueError(f"difference_clip={difference_clip}, difference_scale={difference_scale} with {algorithm}")
    n = len(samples)
    G = None if algorithm == "sgp" else clip
    x = np.array([x0] * n, dtype=np.float64)
    w = np.ones(n)
    z = x.copy()
    tables: list[Array] = []
    if algorithm in ("privsgp-vr", "privsgp-sag"):
        tables = [first_table(gradient, z[i], i, samples[i], G, table_init) for i in range(n)]
    history = [z]
    for k in range(steps):
        half = np.zeros_like(x)
        for i in range(n):
            g = {j: clipped(gradient(z[i], i, j), G) for j in draws[k][i]}
            match algorithm:
                case "sgp":
                    y = averaged(g, batch[i], x[i].shape)
                case "privsgp":
                    y = averaged(g, batch[i], x[i].shape) + sigma[i] * noise[k][i]
                case "privsgp-vr":
                    y = corrected(tables[i], g, batch[i], difference_clip, difference_scale) + sigma[i] * noise[k][i]
                case "privsgp-sag":
                    y = updated_mean(tables[i], g) + sigma[i] * noise[k][i]
            half[i] = x[i] - step_size[k] * y
        x, w = mixed(P[k], half, w)
        z = np.array([x[i] / w[i] for i in range(n)])
        history.append(z)
    return Outcome(x, w, z, tables, np.array(history))


def first_table(gradient: Gradient, z: Array, i: int, J: int, G: float | None, init: str) -> Array:
    """Algorithm 1, lines 1-3; or zeros."""
    table = np.zeros((J, len(z)))
    if init == "gradients":
        for j in range(J):
            table[j] = clipped(gradient(z, i, j), G)
    return table


def averaged(g: dict[int, Array], b: float, shape: tuple[int, ...]) -> Array:
    """(1/b) Σ_B g_j: the public b, never the drawn size."""
    total = np.zeros(shape)
    for g_j in g.values():
        total += g_j
    return total / b


def corrected(table: Array, g: dict[int, Array], b: float, C: float | None, scale: float = 1.0) -> Array:
    """(θ/b) Σ_B c_j + mean of the table before this step, with c_j = clip(g_j - t_j, C); then t_j ← t_j + c_j."""
    y: Array = np.mean(table, axis=0)
    for j, g_j in g.items():
        c_j = clipped(g_j - table[j], C)
        y = y + scale * c_j / b
        table[j] += c_j
    return y


def updated_mean(table: Array, g: dict[int, Array]) -> Array:
    """t_j ← g_j, then the mean of the table: every sample weighs 1/J, drawn or not, so b plays no part."""
    for j, g_j in g.items():
        table[j] = g_j
    mean: Array = np.mean(table, axis=0)
    return mean


def mixed(P: Array, half: Array, w: Array) -> tuple[Array, Array]:
    """Algorithm 1, lines 10-13: x_i = Σ_j P_ij x_j^{k+1/2}, w_i = Σ_j P_ij w_j."""
    x_new, w_new = np.zeros_like(half), np.zeros_like(w)
    for i in range(len(w)):
        for j in range(len(w)):
            x_new[i] += P[i, j] * half[j]
            w_new[i] += P[i, j] * w[j]
    return x_new, w_new
