"""Why a run ends before its last step, and how it is asked to."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from privsgp.errors import Diverged
from privsgp.transport.protocol import refuse_wild

if TYPE_CHECKING:
    from privsgp.algorithms import State

_LEAST = 2.0**-20  # of a node's weight w, which is 1 at the start: below, z = x / w is what a single step makes of it


def refuse_no_model(k: int, s: State, nodes: range) -> None:
    """End the run where what a node is left with is no model."""
    refuse_wild(k, s.x, nodes)
    for node, w in zip(nodes, s.w.tolist(), strict=True):
        if not w >= _LEAST:
            remedy = "z = x / w is no model: take more steps after the last fault, or a denser [graph]"
            raise Diverged(k, f"the weight of node {node} is w = {w:.2g}", remedy)
    refuse_wild(k, s.z, nodes)


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
