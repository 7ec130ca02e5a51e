"""A public schedule of clip and noise: a stair of stretches, each with its own share of the clip and factor of σ.

What is applied *is* the stair: step k clips at `clip` · stretch.clip and adds σ · stretch.sigma, and exactly that is
counted (docs/privacy.md, "Schedules"). A mechanism's own `clip` and `sigma` are the largest clip and the least σ of
any step, so whoever takes it for a mechanism without a schedule counts too much, never too little.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from privsgp.errors import Refused

MOST_STRETCHES = 64  # a header has room for them, and each is one more distribution to compose
WIDEST = 2.0**20  # between two clips, or two σ, of one schedule


class Stretch(NamedTuple):
    """So many steps that are alike: their clip as a share of the largest, their σ in units of the least."""

    steps: int
    clip: float = 1.0
    sigma: float = 1.0


@dataclass(frozen=True)
class Schedule:
    """Stretches in order, and how many releases may be steps made again after a crash, whichever these are."""

    stretches: tuple[Stretch, ...]
    spare: int = 0

    def __post_init__(self) -> None:
        if not 0 < len(self.stretches) <= MOST_STRETCHES or self.spare < 0:
            raise Refused(
                f"a schedule of {len(self.stretches)} stretches with {self.spare} spare releases",
                f"take 1 to {MOST_STRETCHES} stretches, and 0 releases or more",
            )
        for one in self.stretches:
            if not (one.steps >= 1 and 1 / WIDEST <= one.clip <= 1 <= one.sigma <= WIDEST):
                raise Refused(
                    f"a stretch of {one.steps} steps with {one.clip:g} of the clip and {one.sigma:g} of the noise",
                    "take at least one step, a share of the largest clip and a multiple of the least σ",
                )

    @classmethod
    def read(cls, values: Any) -> Schedule:  # noqa: ANN401 - what a file says
        """Return the schedule that `describe` wrote down."""
        return cls(tuple(Stretch(*one) for one in values["stretches"]), values["spare"])

    @property
    def text(self) -> str:
        """Say in words what changes, for people."""
        least = min(one.clip for one in self.stretches)
        clip = "one clip" if least == 1 else f"clip down to {least:.3g} of the largest"
        noise = "one σ" if self.largest_sigma == 1 else f"σ up to {self.largest_sigma:.3g} times the least"
        return f"{clip}, {noise}, in {len(self.stretches)} stretches of steps; known to all"

    def describe(self) -> dict[str, Any]:
        """Return plain values for ledgers and JSON."""
        return {"spare": self.spare, "stretches": [list(one) for one in self.stretches]}

    @property
    def steps(self) -> int:
        """K."""
        return self._ends[-1]

    @property
    def clips(self) -> bool:
        """Whether the clip changes."""
        return any(one.clip != 1 for one in self.stretches)

    @property
    def largest_sigma(self) -> float:
        """The largest σ of any step, in units of the least."""
        return max(one.sigma for one in self.stretches)

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(one.steps for one in self.stretches))

    def place(self, step: int) -> int:
        """Return the number of the stretch that a step belongs to; one beyond the last is refused: it has no plan."""
        self._refuse_more(step + 1)
        return bisect_right(self._ends, step)

    def of(self, steps: int) -> list[Stretch]:
        """Return the stretches of the first `steps` steps."""
        self._refuse_more(steps)
        starts = [0, *self._ends]
        taken = [one._replace(steps=min(one.steps, steps - a)) for a, one in zip(starts, self.stretches, strict=False)]
        return [one for one in taken if one.steps > 0]

    def releases(self, charged: int) -> list[Stretch]:
        """Return what so many charged releases show at most: steps in order, and `spare` of them as the worst.

        D steps and r ≤ spare repeats are R = D + r releases. The first R − spare steps are among the D; each of the
        others, whichever it is, shows no more than the step with the largest clip for its noise.
        """
        unsure = min(charged, self.spare)
        worst = max(self.stretches, key=lambda one: one.clip / one.sigma)
        return self.of(charged - unsure) + ([worst._replace(steps=unsure)] if unsure else [])

    def _refuse_more(self, steps: int) -> None:
        if steps > self.steps:
            raise Refused(
                f"{steps} steps of a schedule for {self.steps}",
                "a schedule is public and fixed before the run: start a new run with more steps",
            )


def stair(clips: list[float], sigmas: list[float], most: int = 16) -> tuple[tuple[Stretch, ...], float, float]:
    """Return at most `most` stretches for these values by step, and the clip and σ that they are shares of.

    Steps that are alike stay together. Where there are more kinds than `most`, steps are laid together in order, so
    that the logarithms of clip and σ move about as much within each, and get the means of theirs.
    """
    groups = _groups(list(zip(clips, sigmas, strict=True)), most)
    clip, sigma = ([_mean(values[a:b]) for a, b in groups] for values in (clips, sigmas))
    top, least = max(clip), min(sigma)
    made = (Stretch(b - a, c / top, s / least) for (a, b), c, s in zip(groups, clip, sigma, strict=True))
    return tuple(made), top, least


def _mean(values: list[float]) -> float:
    return values[0] if min(values) == max(values) else math.fsum(values) / len(values)


def _groups(values: list[tuple[float, float]], most: int) -> list[tuple[int, int]]:
    """Return (first, stop) of what is laid together: equal neighbours, then as much movement in each as in another."""
    moved = [0.0]
    for (c, s), (d, t) in pairwise(values):
        moved.append(moved[-1] + abs(math.log(d / c)) + abs(math.log(t / s)))
    changes = [k for k in range(1, len(values)) if values[k] != values[k - 1]]
    if len(changes) >= most:
        part = [min(int(most * one / (moved[-1] * (1 + 1e-9))), most - 1) for one in moved]
        changes = [k for k in range(1, len(values)) if part[k] != part[k - 1]]
    starts = [0, *changes]
    return list(zip(starts, [*changes, len(values)], strict=True))
