"""What the paper claims, as statements that results either satisfy or do not.

One mean is above another when their difference is larger than both standard errors together. With one seed nobody knows
those, and every difference counts. A claim is judged by the curves that were run: its own must be among them, and
another to compare it with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from privsgp.experiments.several import Several, Spread

COMPARABLE = 0.02  # accuracies that differ by no more are called comparable
WORDS = {True: "holds", False: "does not hold", None: "cannot be judged"}


@dataclass(frozen=True)
class Found:
    """What several runs of one curve came to; `x` is its place on the line it belongs to."""

    label: str
    accuracy: Spread
    train_loss: Spread | None
    line: str = ""
    x: float = 0.0

    @classmethod
    def of(cls, runs: Several, label: str, line: str, x: float) -> Found:
        """Take what a claim looks at from runs of a classification."""
        accuracy = runs.accuracy
        if accuracy is None:
            raise TypeError("claims are about accuracies")
        return cls(label, accuracy, runs.of("train_loss"), line, x)

    @property
    def words(self) -> str:
        """Its label and accuracy."""
        return f"{self.label}: {100 * self.accuracy.mean:.2f} %"


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, None if it cannot be judged, and the numbers."""

    holds: bool | None
    words: str


Claim = Callable[[Mapping[str, Found]], Verdict]
ALONE = "there is no other curve to compare with"


def comparable(keys: Sequence[str]) -> Claim:
    """All accuracies lie within two points."""

    def judge(found: Mapping[str, Found]) -> Verdict:
        shown = [found[key] for key in keys if key in found]
        if len(shown) < 2:
            return _unjudged(ALONE, shown)
        means = [one.accuracy.mean for one in shown]
        apart = max(means) - min(means)
        return Verdict(apart <= COMPARABLE, f"{_listed(shown)}; {100 * apart:.1f} points apart, comparable up to 2")

    return judge


def best(key: str) -> Claim:
    """No other curve has a higher accuracy, and none a lower training loss."""

    def judge(found: Mapping[str, Found]) -> Verdict:
        own = found[key]
        high = max(found.values(), key=lambda one: one.accuracy.mean)
        low = min(found.values(), key=lambda one: math.inf if one.train_loss is None else one.train_loss.mean)
        close = high is not own and not _more(high.accuracy, own.accuracy)
        by = ", by less than the standard errors" if close else ""
        shown = "; ".join(f"{one.words}{_loss(one)}" for one in found.values())
        words = f"{shown}; the highest accuracy has {high.label}{by}, the lowest loss {low.label}"
        return Verdict(high is own and low is own, words)

    return _about(key, judge)


def rising(line: str) -> Claim:
    """Along a line, no accuracy is lower than the one before."""

    def judge(found: Mapping[str, Found]) -> Verdict:
        along = sorted((one for one in found.values() if one.line == line), key=lambda one: one.x)
        if len(along) < 2:
            return _unjudged(ALONE, along)
        falls = [b.label for a, b in pairwise(along) if _more(a.accuracy, b.accuracy)]
        return Verdict(not falls, _listed(along) + (f"; falls at {', '.join(falls)}" if falls else ""))

    return judge


def ahead(key: str) -> Claim:
    """Accuracy is higher and training loss lower than any other's."""

    def judge(found: Mapping[str, Found]) -> Verdict:
        own, others = found[key], [one for name, one in found.items() if name != key]
        holds = all(_more(own.accuracy, one.accuracy) and _less_loss(own, one) for one in others)
        return Verdict(holds, "; ".join(f"{one.words}{_loss(one)}" for one in found.values()))

    return _about(key, judge)


def _about(key: str, claim: Claim) -> Claim:
    """Judge what is claimed of one curve against all others only if it was run, and one of them."""

    def judge(found: Mapping[str, Found]) -> Verdict:
        if key in found and len(found) > 1:
            return claim(found)
        return _unjudged(ALONE if key in found else "the claim's own curve was left out", found.values())

    return judge


def _unjudged(why: str, found: Iterable[Found]) -> Verdict:
    return Verdict(None, "; ".join([why, *(one.words for one in found)]))


def _more(a: Spread, b: Spread) -> bool:
    return a.mean - b.mean > a.error + b.error


def _less_loss(a: Found, b: Found) -> bool:
    """A run that diverged has no loss, and is behind."""
    if a.train_loss is None or b.train_loss is None:
        return b.train_loss is None
    return _more(b.train_loss, a.train_loss)


def _loss(one: Found) -> str:
    return "" if one.train_loss is None else f", loss {one.train_loss.mean:.3f}"


def _listed(found: Iterable[Found]) -> str:
    return "; ".join(one.words for one in found)
