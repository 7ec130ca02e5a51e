"""D-PSGD and DP²-SGD, one node at a time: combine then adapt, with a dense mixing matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reference import Array
    from reference_given import Given


def d_psgd(given: Given, W: Sequence[Array]) -> Array:
    """x [K + 1, n, d]: before the first round and after each. Clip and noise are ignored.

    Round k, every node i from the states before the round: g_i = (1/b_i) Σ_S ∇f_j(x_i), at the model before averaging;
    then x_i ← Σ_j W[k]_ij x_j − γ_k g_i.
    """
    return dp2_sgd(given.without_privacy(), W)


def dp2_sgd(given: Given, W: Sequence[Array]) -> Array:
    """x̃ [K + 1, n, d]: the noised copies, which are all the state there is (x̃⁰ = x⁰, public).

    Round k, every node i from the states before the round: g_i = (1/b_i) Σ_S clip_G(∇f_j(x̃_i)), at the noised copy;
    then x̃_i ← Σ_j W[k]_ij x̃_j − γ_k (g_i + σ_i n_i^k), j = i included: no un-noised gradient survives a round.
    """
    x = np.array([given.x0 for _ in given.nodes], dtype=np.float64)
    history = [x]
    for k, step_size in enumerate(given.step_size):
        new = np.zeros_like(x)
        for i in given.nodes:
            for j in given.nodes:
                new[i] += W[k][i, j] * x[j]
            new[i] -= step_size * given.noised(given.mean(x[i], k, i), k, i)
        x = new
        history.append(x)
    return np.array(history)
