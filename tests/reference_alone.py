"""DP-SGD on one node: with everybody's data (`dp-sgd`), or each node with its own (`local`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reference_given import Given

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reference import Array, Gradient


def dp_sgd(
    *,
    gradient: Gradient,
    x0: Array,
    samples: Sequence[int],
    batch: float,
    draws: Sequence[Iterable[int]],
    step_size: Sequence[float],
    noise: Sequence[Array],
    sigma: float,
    clip: float | None,
) -> Array:
    """x [K + 1, d] of one node that holds the samples of all nodes: node 0's first, then node 1's, and so on.

    `draws[k]` are numbers in that pool, `batch` the one public b. Round k: y = (1/b) Σ_S clip_G(∇f_j(x)) + σ n^k;
    then x ← x − γ_k y.
    """
    owner = [(i, j) for i, J in enumerate(samples) for j in range(J)]
    pooled = Given(
        gradient=lambda x, _, p: gradient(x, *owner[p]),
        x0=x0,
        samples=[len(owner)],
        batch=[batch],
        draws=[[drawn] for drawn in draws],
        step_size=step_size,
        noise=[[n] for n in noise],
        sigma=[sigma],
        clip=clip,
    )
    return local(pooled)[:, 0]


def local(given: Given) -> Array:
    """x [K + 1, n, d]: nobody sends anything.

    Round k, every node i: y_i = (1/b_i) Σ_S clip_G(∇f_j(x_i)) + σ_i n_i^k; then x_i ← x_i − γ_k y_i.
    """
    history = [np.array([given.x0 for _ in given.nodes], dtype=np.float64)]
    for k, step_size in enumerate(given.step_size):
        x = history[-1].copy()
        for i in given.nodes:
            x[i] -= step_size * given.noised(given.mean(x[i], k, i), k, i)
        history.append(x)
    return np.array(history)
