"""Survival: times and events as targets in public bins, the curves that a model predicts, and metrics of them.

Bin k reaches from one public edge to the next. A target has a number for each bin: the share of the bin for which a
person was seen, negative in the bin of the event. So (1, 1, −0.3, 0) is an event in the third bin, (1, 0.6, 0, 0) a
person who was last seen in the second. A model has one output per bin, the logit of the event in that bin for a person
who reaches it (the hazard). Times in this file count bins: 2.3 is in the third. Metrics are the same in any unit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit

from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

NAMES = ("c_index", "survival_brier")
_SHORTEST = 1e-6  # the share of a bin at which an event is at least: zero would be no event
_GROUPS = 5  # of equal size by prediction, to compare predicted with observed survival


def targets(time: ArrayLike, event: ArrayLike, bins: Sequence[float]) -> NDArray[np.float32]:
    """Return targets [N, bins] for loss = "survival".

    Args:
        time: The time of the event, or the time at which a person was last seen [N].
        event: Whether the event happened at that time [N].
        bins: The public upper edges of the bins; the first bin begins at 0. Later events are not seen.

    Returns:
        For each person the share of each bin that was seen, negative in the bin of the event.

    Raises:
        Refused: If a time is negative or not finite, or the edges do not rise from above 0.

    Example:
        >>> from privsgp import survival
        >>> survival.targets([45, 150], [True, False], bins=[30, 60, 180]).round(2).tolist()
        [[1.0, -0.5, 0.0], [1.0, 1.0, 0.75]]

    """
    t, edges = np.asarray(time, np.float64), np.array([0.0, *bins])
    if len(edges) < 2 or not (np.isfinite(edges).all() and (np.diff(edges) > 0).all()):
        raise Refused(f"bins = {list(bins)}", "give rising upper edges above 0, for example [30, 90, 180]")
    if not (np.isfinite(t) & (t >= 0)).all():
        raise Refused("a survival time is negative or not finite", "give the time since each person's start")
    share = np.clip((t[:, None] - edges[:-1]) / np.diff(edges), 0, 1)
    died = np.flatnonzero(np.asarray(event, bool) & (t <= edges[-1]))
    place = np.searchsorted(edges[1:], t[died])  # an event at an edge is in the bin that ends there
    share[died, place] = -np.maximum(share[died, place], _SHORTEST)
    return np.asarray(share, np.float32)


def decoded(y: NDArray[Any]) -> tuple[Floats, Flags]:
    """Return (time, event) of targets; refuse numbers that are no such targets."""
    share = np.abs(y.astype(np.float64))
    after = share[:, 1:] > 0
    if (share > 1).any() or (after & ((share[:, :-1] < 1) | (y[:, :-1] < 0))).any():
        raise Refused("y is no survival target", "make it by privsgp.survival.targets(time, event, bins)")
    return share.sum(1), np.asarray((y < 0).any(1))


def curves(outputs: NDArray[Any]) -> Floats:
    """Return the predicted probability to survive each bin [N, bins] from a model's outputs."""
    found: Floats = np.cumprod(expit(-outputs.astype(np.float64)), 1)
    return found


def kaplan_meier(time: Floats, event: Flags, at: ArrayLike) -> Floats:
    """Return the share that survives these times, by Kaplan and Meier."""
    known, survived = _product_limit(time, event, np.zeros_like(event))
    found: Floats = survived[np.searchsorted(known, at, side="right")]
    return found


def concordance(time: Floats, event: Flags, risk: Floats) -> float | None:
    """Return Harrell's C-index: how often, of two persons, the one whose event was first has the higher risk.

    Equal risks count half. Two events at one time are not compared; a person last seen at that time lived longer.
    """
    later: list[float] = []
    waiting: list[int] = []
    right = pairs = 0.0
    for i in np.lexsort((event, -time)):
        if waiting and time[waiting[0]] != time[i]:
            for j in waiting:
                insort(later, risk[j])
            waiting = []
        if event[i]:
            waiting.append(i)
            right += (bisect_left(later, risk[i]) + bisect_right(later, risk[i])) / 2
            pairs += len(later)
        else:
            insort(later, risk[i])
    return right / pairs if pairs else None


def brier(survival: Floats, time: Floats, event: Flags, at: float) -> float:
    """Return the Brier score of predicted survival at a time, weighted for those who were not seen until then.

    A person counts by one over the probability not to be censored before the event, or before that time (Graf 1999).
    """
    known, left = _product_limit(time, ~event, event)
    seen = np.maximum(left, 1 / len(time) ** 2)  # zero where nobody is left to be counted
    died, alive = event & (time <= at), (time > at) | ((time == at) & ~event)
    weight = died / seen[np.searchsorted(known, time)] + alive / seen[np.searchsorted(known, at)]
    return float((weight * np.square(alive - survival)).mean())


def _product_limit(time: Floats, event: Flags, first: Flags) -> tuple[Floats, Floats]:
    """Return the times, and the share left before the first and after each; those in `first` leave before others."""
    known, place = np.unique(time, return_inverse=True)
    counts, events, gone = (np.bincount(place, w, len(known)) for w in (np.ones_like(time), event, first))
    there = len(time) - np.concatenate([[0], np.cumsum(counts)[:-1]]) - gone
    return known, np.concatenate([[1.0], np.cumprod(1 - events / np.maximum(there, 1))])


def measured(outputs: NDArray[Any], y: NDArray[Any], times: Sequence[float] | None = None) -> dict[str, Any]:
    """Return the C-index, Brier scores, and what is drawn: curves and calibration at each edge.

    The risk of a person is minus the sum of the curve: the expected number of bins, with the opposite sign.
    """
    found, (time, event) = curves(outputs), decoded(y)
    edges = range(1, found.shape[1] + 1)
    each = [brier(s, time, event, k) for k, s in zip(edges, found.T, strict=True)]
    drawn = {
        "times": list(map(float, edges if times is None else times)),
        "kaplan_meier": kaplan_meier(time, event, edges).tolist(),
        "predicted": found.mean(0).tolist(),
        "brier": each,
        "calibration": [_calibration(s, time, event, k) for k, s in zip(edges, found.T, strict=True)],
    }
    c_index = concordance(time, event, -found.sum(1))
    return {"c_index": c_index, "survival_brier": float(np.mean(each)), "survival": drawn}


def guessed(y: NDArray[Any]) -> dict[str, float | None]:
    """Return the metrics of one curve for everybody: that of Kaplan and Meier."""
    time, event = decoded(y)
    edges = range(1, y.shape[1] + 1)
    each = [brier(np.full(len(time), kaplan_meier(time, event, k)), time, event, k) for k in edges]
    return {"c_index": 0.5, "survival_brier": float(np.mean(each))}


def _calibration(survival: Floats, time: Floats, event: Flags, at: float) -> list[list[float]]:
    """Return (mean predicted survival, observed survival, persons) of groups by predicted survival."""
    groups = [rows for rows in np.array_split(np.argsort(survival, kind="stable"), _GROUPS) if len(rows)]
    return [[float(survival[g].mean()), float(kaplan_meier(time[g], event[g], at)), len(g)] for g in groups]
