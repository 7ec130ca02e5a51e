"""Why a run ends before its last step, and how it is asked to."""

from __future__ import annotations

import math
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Collection

    from privsgp.algorithms import State

LEAST = 2.0**-24  # of the weight w a node starts with: below, z = x / w is what rounding and single steps make it


def largest(dtype: torch.dtype) -> float:
    """Return the largest number a model may hold: its square is still a number."""
    return math.sqrt(torch.finfo(dtype).max)


class Interrupted(Exception):
    """The run was stopped; `kept` tells whether a checkpoint holds it."""

    kept = False

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step


class Diverged(Exception):
    """A message is no model, or without noise the test loss no number. Messages are noised: a look reveals nothing."""

    def __init__(self, step: int, what: str, how: str = "is not finite, or too large to be a model's") -> None:
        super().__init__(
            f"{what} {how}, after step {step}: the run has diverged\n"
            "  → lower algorithm.step_size or privacy.clip, and choose another --out"
        )


class ReplayDiffers(Exception):
    """A step computed again after a crash gives other bytes than were sent: it must not go out with the same noise."""


def refuse_no_model(k: int, s: State, nodes: range, left: Collection[int] = ()) -> None:
    """End the run where a node's x, w and z = x / w are no model; one that has `left` for good has none."""
    most = largest(s.x.dtype)
    for values, how in (
        (torch.maximum(s.x.abs().amax(1), s.z.abs().amax(1)) <= most, "is not finite, or too large to be a model's"),
        (s.w > LEAST, f"has a weight w below {LEAST:.1g}: too little has reached it to tell z = x / w"),
    ):
        wrong = [node for node, fine in zip(nodes, values.tolist(), strict=True) if not fine and node not in left]
        if wrong:
            raise Diverged(k, f"the model of node {wrong[0]}", how)


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
