"""Why a run ends before its last step, and how it is asked to."""

from __future__ import annotations

import math
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import Tensor

    from privsgp.algorithms import State

_LEAST = 2.0**-20  # of a node's weight w, which is 1 at the start: below, z = x / w is what a single step makes of it
_SMALLER = "lower algorithm.step_size or privacy.clip, and choose another --out"


class Interrupted(Exception):
    """The run was stopped; `kept` tells whether a checkpoint holds it."""

    kept = False

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step


class Diverged(Exception):
    """A message is no model, or without noise the test loss no number. Messages are noised: a look reveals nothing."""

    def __init__(self, step: int, what: str, remedy: str = _SMALLER) -> None:
        super().__init__(f"{what} after step {step}: the run has diverged\n  → {remedy}")


class ReplayDiffers(Exception):
    """A step computed again after a crash gives other bytes than were sent: it must not go out with the same noise."""


def wild(rows: Tensor) -> int | None:
    """Return the first row that can be no model: a number in it is not finite, or so large that its square is not."""
    most = math.sqrt(torch.finfo(rows.dtype).max)
    low, high = torch.aminmax(rows)
    if bool(torch.maximum(-low, high) <= most):  # not so where one is not a number
        return None
    return int((rows.abs().amax(1) <= most).logical_not().nonzero()[0])


def refuse_wild(k: int, rows: Tensor, nodes: Sequence[int], whose: str = "") -> None:
    """End the run where a node's row can be no model."""
    row = wild(rows)
    if row is not None:
        finite = bool(rows[row].isfinite().all())
        how = f"holds {float(rows[row].abs().max()):.1g}, too large for a model," if finite else "is not finite"
        raise Diverged(k, f"the message of node {nodes[row]}{whose} {how}")


def refuse_no_model(k: int, s: State, nodes: range, left: Collection[int] = ()) -> None:
    """End the run where what a node is left with is no model; one that has `left` for good has none."""
    refuse_wild(k, s.x, nodes)
    for node, w in zip(nodes, s.w.tolist(), strict=True):
        if node not in left and not w >= _LEAST:
            remedy = "z = x / w is no model: take more steps after the last fault, or a denser [graph]"
            raise Diverged(k, f"the weight of node {node} is w = {w:.2g}", remedy)
    there = [place for place, node in enumerate(nodes) if node not in left]
    refuse_wild(k, s.z[there], [nodes[place] for place in there])


class Stopping:
    """Lets Ctrl-C and SIGTERM end a run after the step in hand; a second one ends it at once."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        with suppress(ValueError):  # not the main thread: the caller looks after signals
            self._before = {n: signal.signal(n, self._ask) for n in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, _frame: object) -> None:
        self.asked = True
        signal.signal(number, self._before[number])
