"""Survival: times and events as targets in public bins.

Bin k reaches from one public edge to the next. A target has a number for each bin: the share of the bin for which a
person was seen, negative in the bin of the event. So (1, 1, −0.3, 0) is an event in the third bin, (1, 0.6, 0, 0) a
person who was last seen in the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

_SHORTEST = 1e-6  # the share of a bin at which an event is at least: zero would be no event


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
        >>> from privsgp.data import survival
        >>> survival.targets([45, 150], [True, False], bins=[30, 60, 180]).round(2).tolist()
        [[1.0, -0.5, 0.0], [1.0, 1.0, 0.75]]

    """
    t, edges = np.asarray(time, np.float64), np.array([0.0, *bins])
    if len(edges) < 2 or not (np.isfinite(edges).all() and (np.diff(edges) > 0).all()):
        raise Refused(f"bins = {list(bins)} do not rise from 0", "give rising upper edges, for example [30, 90, 180]")
    if not (np.isfinite(t) & (t >= 0)).all():
        raise Refused("a survival time is negative or not finite", "give the time since each person's start")
    share = np.clip((t[:, None] - edges[:-1]) / np.diff(edges), 0, 1)
    died = np.flatnonzero(np.asarray(event, bool) & (t <= edges[-1]))
    died_in = np.searchsorted(edges[1:], t[died])  # an event at an edge is in the bin that ends there
    share[died, died_in] = -np.maximum(share[died, died_in], _SHORTEST)
    return np.asarray(share, np.float32)


def decoded(y: NDArray[Any]) -> tuple[Floats, Flags]:
    """Return (time, event) of targets, times in bins (2.3 is in the third); refuse numbers that are no such targets."""
    share = np.abs(y.astype(np.float64))
    after = share[:, 1:] > 0
    if (share > 1).any() or (after & ((share[:, :-1] < 1) | (y[:, :-1] < 0))).any():
        raise Refused("y is not a survival target", "make it by privsgp.data.survival.targets(time, event, bins)")
    return share.sum(1), np.asarray((y < 0).any(1))
