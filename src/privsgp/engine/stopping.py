"""Ctrl-C and SIGTERM during a run."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Any


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
