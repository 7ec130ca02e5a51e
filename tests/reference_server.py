"""Distributed DP-SRM, LDP-SVRG and LDP-SPIDER: every node releases one vector a round, the server averages them.

The average is over nodes, unweighted. In all three, round k finds a direction at x^k from what the nodes release in
round k, then x^{k+1} = x^k − γ_k · direction: K rounds, K releases of each node. An *anchor* is a release that does not
build on earlier ones; its noise is `anchor_noise` σ_i n_i^k, that of the others σ_i n_i^k. g_j is clip_G(∇f_j).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reference import Array
    from reference_given import Given


def dp_srm(
    given: Given,
    *,
    alpha: float,
    difference_clip: float | None = None,
    anchor_batch: Sequence[float] | None = None,
    anchor_noise: float = 1.0,
) -> Array:
    """x [K + 1, d]. Round 0 is an anchor: v = mean_i [(1/b0_i) Σ_S g_j(x⁰) + noise], with b0 = `anchor_batch` or b.

    Round k ≥ 1: Δ_i = (1/b_i) Σ_S [α g_j(x^k) + (1−α) clip_R(g_j(x^k) − g_j(x^{k−1}))] + noise, same S at both points;
    v ← (1−α) v + mean_i Δ_i. R is `difference_clip`; without it Δ_i is (1/b_i) Σ_S [g_j(x^k) − (1−α) g_j(x^{k−1})].
    The direction is the new v. `sigma[i]` is what node i adds to its own release: √n σ each leaves σ on the mean.
    """
    x = before = v = np.array(given.x0, dtype=np.float64)
    history = [x]
    for k, step_size in enumerate(given.step_size):
        if k == 0:
            v = average(_anchors(given, x, k, anchor_batch, anchor_noise))
        else:
            deltas = []
            for i in given.nodes:
                difference = given.differences(x, before, k, i, difference_clip)
                delta = alpha * given.mean(x, k, i) + (1 - alpha) * difference
                deltas.append(given.noised(delta, k, i))
            v = (1 - alpha) * v + average(deltas)
        before, x = x, x - step_size * v
        history.append(x)
    return np.array(history)


def ldp_svrg(given: Given, *, period: int, difference_clip: float | None = None, anchor_noise: float = 1.0) -> Array:
    """x [K + 1, d]. Rounds 0, Q, 2Q, … (Q is `period`) are anchors, and move with what they release.

    Anchor round: w̄ = x^k; a = mean_i [(1/J_i) Σ_j g_j(w̄) + noise], all samples, `draws[k]` unused; direction a.
    Other rounds: direction a + mean_i [(1/b_i) Σ_S clip_R(g_j(x^k) − g_j(w̄)) + noise].
    """
    x = anchor = a = np.array(given.x0, dtype=np.float64)
    history = [x]
    for k, step_size in enumerate(given.step_size):
        if k % period == 0:
            anchor = x
            a = average(given.noised(given.full(x, i), k, i, anchor_noise) for i in given.nodes)
            direction = a
        else:
            inner = [given.differences(x, anchor, k, i, difference_clip) for i in given.nodes]
            direction = a + average(given.noised(inner[i], k, i) for i in given.nodes)
        x = x - step_size * direction
        history.append(x)
    return np.array(history)


def ldp_spider(
    given: Given,
    *,
    period: int,
    difference_clip: float | None = None,
    anchor_batch: Sequence[float] | None = None,
    anchor_noise: float = 1.0,
) -> Array:
    """x [K + 1, d]. Rounds 0, p, 2p, … (p is `period`) restart: h = mean_i [(1/b0_i) Σ_S g_j(x^k) + noise].

    Other rounds: h ← h + mean_i [(1/b_i) Σ_S clip_R(g_j(x^k) − g_j(x^{k−1})) + noise], same S at both points. Either
    way the direction is the new h. b0 is `anchor_batch`, or b. There is no regulariser ψ, hence no prox.
    """
    x = before = h = np.array(given.x0, dtype=np.float64)
    history = [x]
    for k, step_size in enumerate(given.step_size):
        if k % period == 0:
            h = average(_anchors(given, x, k, anchor_batch, anchor_noise))
        else:
            inner = [given.differences(x, before, k, i, difference_clip) for i in given.nodes]
            h = h + average(given.noised(inner[i], k, i) for i in given.nodes)
        before, x = x, x - step_size * h
        history.append(x)
    return np.array(history)


def _anchors(given: Given, x: Array, k: int, batch: Sequence[float] | None, factor: float) -> list[Array]:
    own = given if batch is None else replace(given, batch=batch)
    return [own.noised(own.mean(x, k, i), k, i, factor) for i in own.nodes]


def average(released: Iterable[Array]) -> Array:
    """The server: the mean over nodes."""
    mean: Array = np.mean(list(released), axis=0)
    return mean
