"""Averages of iterates: what a run releases in place of its last step, so that noise averages out.

`tail` is the mean over the last share of the steps, `exponential` weighs a step d^age. Both are kept of x and of w, so
that Σx̄_i / Σw̄_i is the same average of the average models, and each node's x̄_i / w̄_i its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from privsgp.algorithms import State

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Release:
    """What becomes of the iterates in the end: an average over `share` of them, and rounds of mixing alone."""

    average: Literal["none", "tail", "exponential"] = "none"
    share: float = 0.5
    decay: float = 0.99
    mixing: int = 0

    @property
    def words(self) -> str:
        """Say what model.safetensors is."""
        kind = {
            "none": "of the last step",
            "tail": f"averaged over the last {self.share:.0%} of the steps",
            "exponential": f"averaged over the steps with weights {self.decay:g}^age",
        }[self.average]
        return kind + (f", mixed {self.mixing} times more" if self.mixing else "")


class Averaging:
    """The running average of a block of nodes."""

    def __init__(self, release: Release, steps: int, like: State) -> None:
        self.release, self.first = release, steps - max(1, round(release.share * steps))
        self.x = torch.zeros_like(like.x) if release.average != "none" else None
        self.w = torch.zeros_like(like.w)

    def add(self, k: int, s: State) -> None:
        """Take in the state after step k."""
        if self.x is None or (self.release.average == "tail" and k < self.first):
            return
        new = 1 - self.release.decay if self.release.average == "exponential" else 1 / (k + 1 - self.first)
        self.x.lerp_(s.x, new)
        self.w.lerp_(s.w, new)

    def released(self, s: State) -> State:
        """Return the average, or the state itself where there is none (yet)."""
        if self.x is None or not bool(self.w.any()):
            return s
        return State.debiased(self.x, self.w)

    def forget(self) -> None:
        """Begin again."""
        self.w.zero_()
        if self.x is not None:
            self.x.zero_()

    def arrays(self) -> dict[str, Tensor]:
        """Return what must survive."""
        return {} if self.x is None else {"x": self.x, "w": self.w}
