"""Survival curves that a model predicts, and metrics of them.

A model has one output per bin: the logit of the event in that bin for a person who reaches it (the hazard). Times count
bins, as in `data.survival`: metrics are the same in any unit of time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit

from privsgp.data.survival import decoded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

NAMES = ("c_index", "survival_brier")
_GROUPS = 5  # of equal size by prediction, to compare predicted with observed survival


def predicted(outputs: NDArray[Any]) -> Floats:
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
    known, remaining = _product_limit(time, ~event, event)
    uncensored = np.maximum(remaining, 1 / len(time) ** 2)  # zero where nobody is left to be counted
    died, alive = event & (time <= at), (time > at) | ((time == at) & ~event)
    weight = died / uncensored[np.searchsorted(known, time)] + alive / uncensored[np.searchsorted(known, at)]
    return float((weight * np.square(alive - survival)).mean())


def _product_limit(time: Floats, event: Flags, first: Flags) -> tuple[Floats, Floats]:
    """Return the times, and the share left before the first and after each; those in `first` leave before others."""
    known, index = np.unique(time, return_inverse=True)
    counts, events, gone = (np.bincount(index, w, len(known)) for w in (np.ones_like(time), event, first))
    there = len(time) - np.concatenate([[0], np.cumsum(counts)[:-1]]) - gone
    return known, np.concatenate([[1.0], np.cumprod(1 - events / np.maximum(there, 1))])


def measured(outputs: NDArray[Any], y: NDArray[Any], times: Sequence[float] | None = None) -> dict[str, Any]:
    """Return the C-index, Brier scores, and what is drawn: curves and calibration at each edge.

    The risk of a person is minus the sum of the curve: the expected number of bins, with the opposite sign.
    """
    found, (time, event) = predicted(outputs), decoded(y)
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
