"""SoteriaFL with its three local estimators: noise, shift, compression; the server averages what arrives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from reference import Array, corrected, first_table

if TYPE_CHECKING:
    from reference_given import Given

Compressor = Callable[[int, int, Array], Array]


@dataclass(frozen=True)
class SoteriaOutcome:
    """x [K + 1, d]; the shifts s_i [n, d] and s [d] and the tables (SAGA only) after the last round."""

    history: Array
    shifts: Array
    server_shift: Array
    tables: list[Array]


def soteriafl(
    estimator: Literal["sgd", "svrg", "saga"],
    given: Given,
    *,
    compressor: Compressor,
    shift_rate: float,
    coins: Sequence[bool] = (),
    difference_clip: float | None = None,
    difference_scale: float = 1.0,
    table_init: Literal["gradients", "zeros"] = "gradients",
) -> SoteriaOutcome:
    """`compressor(k, i, v)` is C with the coins of node i in round k. All shifts start at 0. Round k, in this order:

    every node i, at the common x^k, g_j being clip_G(∇f_j):
        ĝ_i by the estimator:
            sgd   (1/b_i) Σ_S g_j(x^k)
            svrg  (θ/b_i) Σ_S clip_R(g_j(x^k) − g_j(w)) + (1/J_i) Σ_j g_j(w), the anchor w = x⁰ at first
            saga  (θ/b_i) Σ_S c_j + mean of the table, c_j = clip_R(g_j(x^k) − t_j), then t_j ← t_j + c_j
        v_i = C(ĝ_i + σ_i n_i^k − s_i);  then s_i ← s_i + γ_s v_i
    the server: v = mean_i v_i;  x^{k+1} = x^k − γ_k (s + v), s before its update;  then s ← s + γ_s v
    svrg: where coins[k], w ← x^k, the model *before* this round's step, used from round k + 1 on. One anchor for all.
    """
    x = w = np.array(given.x0, dtype=np.float64)
    shifts, s = np.zeros((len(given.nodes), len(x))), np.zeros_like(x)
    tables: list[Array] = []
    if estimator == "saga":
        tables = [first_table(given.gradient, x, i, given.samples[i], given.clip, table_init) for i in given.nodes]
    history = [x]
    for k, step_size in enumerate(given.step_size):
        v = np.zeros_like(x)
        for i in given.nodes:
            match estimator:
                case "sgd":
                    g = given.mean(x, k, i)
                case "svrg":
                    g = difference_scale * given.differences(x, w, k, i, difference_clip) + given.full(w, i)
                case "saga":
                    g = corrected(tables[i], given.drawn(x, k, i), given.batch[i], difference_clip, difference_scale)
            v_i = compressor(k, i, given.noised(g, k, i) - shifts[i])
            shifts[i] += shift_rate * v_i
            v += v_i / len(given.nodes)
        if estimator == "svrg" and coins[k]:
            w = x
        x = x - step_size * (s + v)
        s = s + shift_rate * v
        history.append(x)
    return SoteriaOutcome(np.array(history), shifts, s, tables)
