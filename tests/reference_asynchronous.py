"""AD-PSGD and A(DP)²SGD, one event at a time, from a list that says who did what and how old its model was."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from reference import averaged, clipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reference import Array, Gradient


class Event(NamedTuple):
    """Node `node` averages with `partner`, its gradient computed on its own model as it was after `read` events."""

    node: int
    partner: int
    read: int


def ad_psgd(
    events: Sequence[Event],
    *,
    gradient: Gradient,
    x0: Array,
    batch: Sequence[float],
    draws: Sequence[Iterable[int]],
    step_size: Sequence[float],
) -> Array:
    """x [events + 1, n, d], with neither clip nor noise; otherwise `adp2_sgd`."""
    return adp2_sgd(
        events,
        gradient=gradient,
        x0=x0,
        batch=batch,
        draws=draws,
        step_size=step_size,
        noise=[np.zeros_like(x0)] * len(events),
        sigma=[0.0] * len(batch),
        clip=None,
    )


def adp2_sgd(
    events: Sequence[Event],
    *,
    gradient: Gradient,
    x0: Array,
    batch: Sequence[float],
    draws: Sequence[Iterable[int]],
    step_size: Sequence[float],
    noise: Sequence[Array],
    sigma: Sequence[float],
    clip: float | None,
) -> Array:
    """x [events + 1, n, d]: before the first event and after each.

    `draws[t]`, `noise[t]` and `step_size[t]` belong to event t = (i, j, read). In this order:
    x̂_i is x_i as it was after `read` events (0: x⁰; t: not stale); g̃ = (1/b_i) Σ_S clip_G(∇f(x̂_i)) + σ_i n^t;
    x_i, x_j ← (x_i + x_j)/2 for both, from the states after t events; x_i ← x_i − γ_t g̃. Nobody else moves.
    """
    history = [np.array([x0] * len(batch), dtype=np.float64)]
    for t, (i, j, read) in enumerate(events):
        if not 0 <= read <= t:
            raise ValueError(f"event {t} has read={read}: from 0 to {t}")
        stale = history[read][i]
        g = averaged({s: clipped(gradient(stale, i, s), clip) for s in draws[t]}, batch[i], stale.shape)
        x = history[-1].copy()
        x[i] = x[j] = (x[i] + x[j]) / 2
        x[i] -= step_size[t] * (g + sigma[i] * noise[t])
        history.append(x)
    return np.array(history)
