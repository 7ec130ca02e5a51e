"""Averages of iterates: the model that a run releases instead of its last step, so that noise averages out.

`tail` is the mean over the last share of the steps. It is kept of x and of w, so that Σx̄_i / Σw̄_i is the same average
of the average models, and each node's x̄_i / w̄_i its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Self

import torch
from pydantic import Field, model_validator

from privsgp.algorithms import State
from privsgp.errors import Refused
from privsgp.options import Options, Share, option

if TYPE_CHECKING:
    from torch import Tensor


_SHARE = 0.5  # of the steps, if none is given


class FinalModel(Options):
    """Which model a run ends with."""

    average: Literal["none", "tail"] = option(
        "none", "the released model: the last iterate, or an average of the last iterates"
    )
    average_share: Share | None = option(
        None, f"share of the steps, from the end, of a tail average; default: {_SHARE}"
    )
    final_mixing: Annotated[int, Field(ge=0)] = option(0, "rounds of mixing without gradients at the end")

    @model_validator(mode="after")
    def _average_has_a_use(self) -> Self:
        if self.average_share is not None and self.average == "none":
            what = f"algorithm.average_share = {self.average_share} with algorithm.average = 'none'"
            raise Refused(what, "leave it out, or take 'tail'")
        return self

    @property
    def share(self) -> float:
        """The share of the steps that an average is taken over."""
        return self.average_share or _SHARE

    @property
    def text(self) -> str:
        """A description of the model in model.safetensors."""
        tail = f"averaged over the last {self.share:.0%} of the steps"
        mixed = f", mixed {self.final_mixing} times more" if self.final_mixing else ""
        return (tail if self.average == "tail" else "of the last step") + mixed


class Averaging:
    """The running average of a block of nodes."""

    def __init__(self, final_model: FinalModel, steps: int, like: State) -> None:
        self.first = steps - max(1, round(final_model.share * steps))
        self.x = torch.zeros_like(like.x) if final_model.average != "none" else None
        self.w = torch.zeros_like(like.w)

    def add(self, k: int, s: State) -> None:
        """Take in the state after step k."""
        if self.x is not None and k >= self.first:
            self.x.lerp_(s.x, 1 / (k + 1 - self.first))
            self.w.lerp_(s.w, 1 / (k + 1 - self.first))

    def released(self, s: State) -> State:
        """Return the average, or the state itself where there is none (yet)."""
        if self.x is None or not bool(self.w.any()):
            return s
        return State.debiased(self.x, self.w)

    def arrays(self) -> dict[str, Tensor]:
        """Return what must survive."""
        return {} if self.x is None else {"x": self.x, "w": self.w}
