"""Why a run ends before its last step, and how it is asked to."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Any


class Interrupted(Exception):
    """The run was stopped; `kept` tells whether a checkpoint holds it."""

    kept = False

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step


class Diverged(Exception):
    """A message was not finite, or without noise the test loss. Messages are noised: a look at them reveals nothing."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(
            f"{what} is not finite after step {step}: the run has diverged\n"
            "  → lower algorithm.step_size or privacy.clip, and choose another --out"
        )


class ReplayDiffers(Exception):
    """A step computed again after a crash gives other bytes than were sent: it must not go out with the same noise."""


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
