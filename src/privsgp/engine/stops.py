"""Why a run ends before its last step."""

from __future__ import annotations


class Interrupted(Exception):
    """The run was stopped; unless nothing was `kept`, a checkpoint holds it."""

    kept = True

    def __init__(self, step: int, *, kept: bool = True) -> None:
        super().__init__(f"stopped after step {step}")
        self.step, self.kept = step, kept


class Diverged(Exception):
    """A message was not finite, or without noise the test loss. Messages are noised: a look at them reveals nothing."""

    def __init__(self, step: int, what: str) -> None:
        super().__init__(
            f"{what} is not finite after step {step}: the run has diverged\n"
            "  → lower algorithm.step_size or privacy.clip, and choose another --out"
        )


class ReplayDiffers(Exception):
    """A step computed again after a crash gives other bytes than were sent: it must not go out with the same noise."""
