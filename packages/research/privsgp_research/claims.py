"""The paper's claims, as statements about results.

One mean is above another when their difference is larger than both standard errors together. With one seed nobody knows
those, and every difference counts. A claim is judged by the curves that were run: its own must be among them, and
another to compare it with.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

COMPARABLE = 0.02  # accuracies that differ by no more are called comparable
SIMILAR = 0.1  # and losses that differ by no more than such a share of the lowest
WORDS = {True: "holds", False: "does not hold", None: "cannot be judged"}


@dataclass(frozen=True)
class Spread:
    """One number of each run: its mean, how far the runs lie apart, and how well the mean is known."""

    each: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Their mean."""
        return statistics.fmean(self.each)

    @property
    def sd(self) -> float:
        """Their standard deviation; 0 for a single run, of which nobody knows it."""
        return statistics.stdev(self.each) if len(self.each) > 1 else 0.0

    @property
    def error(self) -> float:
        """The standard error of their mean."""
        return self.sd / math.sqrt(len(self.each))

    def as_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"mean": self.mean, "sd": self.sd, "each": list(self.each)}


@dataclass(frozen=True)
class Found:
    """The result of several runs of one curve; `x` is its position on its line."""

    label: str
    accuracy: Spread
    train_loss: Spread  # infinite where a run diverged
    line: str = ""
    x: float = 0.0

    @classmethod
    def of(cls, curve: Mapping[str, Any]) -> Found:
        """Take what a claim looks at from a curve of a figure's JSON."""
        loss = curve["train_loss"] or {"each": [math.inf]}
        accuracy = Spread(tuple(curve["accuracy"]["each"]))
        return cls(curve["label"], accuracy, Spread(tuple(loss["each"])), curve["line"], curve["x"])

    @property
    def text(self) -> str:
        """Its label and accuracy, with the standard error where there is one."""
        error = f" ± {100 * self.accuracy.error:.2f}" if len(self.accuracy.each) > 1 else ""
        return f"{self.label}: {100 * self.accuracy.mean:.2f}{error} %"

    @property
    def with_loss(self) -> str:
        """The same with its training loss, if it has one."""
        loss = self.train_loss.mean
        shown = f"{loss:.3f}" if loss < 1000 else f"{loss:.2g}"
        return f"{self.text}, loss {shown}" if math.isfinite(loss) else self.text


def stated(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the verdicts on a judged figure with their numbers: the paper's and, where ours was run, one on that."""
    printed = WORDS[result["holds"]]
    if "scaled" not in result:
        return {printed: result["found"]}
    ours = result["scaled"]
    return {f"{printed} as printed": result["found"], f"{WORDS[ours['holds']]} with scaled differences": ours["found"]}


Curves = Mapping[str, Found]
Verdict = tuple[bool | None, str]  # whether a claim holds, None if it cannot be judged, and the numbers
ALONE = "there is no other curve to compare with"


def comparable(keys: Sequence[str], found: Curves) -> Verdict:
    """All accuracies lie within two points, and all losses within a tenth of the lowest."""
    shown = [found[key] for key in keys if key in found]
    if len(shown) < 2:
        return _unjudged(ALONE, shown)
    means, losses = [one.accuracy.mean for one in shown], [one.train_loss.mean for one in shown]
    apart, share = max(means) - min(means), max(losses) / min(losses) - 1
    gap = f"{100 * apart:.1f} points and {100 * share:.0f} % of loss apart, comparable up to 2 and 10"
    return apart <= COMPARABLE and share <= SIMILAR, f"{_with_losses(shown)}; {gap}"


def best(key: str, found: Curves) -> Verdict:
    """No other curve has as high an accuracy, and none as low a training loss."""
    holds, words = ahead(key, found)
    if holds is None:
        return holds, words
    high = max(found.values(), key=lambda one: one.accuracy.mean)
    low = min(found.values(), key=lambda one: one.train_loss.mean)
    clear = [
        all(_more(high.accuracy, one.accuracy) for one in found.values() if one is not high),
        all(_more(one.train_loss, low.train_loss) for one in found.values() if one is not low),
    ]
    by = ["" if one else ", by less than the standard errors" for one in clear]
    return holds, f"{words}; the highest accuracy has {high.label}{by[0]}, the lowest loss {low.label}{by[1]}"


def rising(line: str, found: Curves) -> Verdict:
    """Along a line, no accuracy is lower than the one before."""
    along = sorted((one for one in found.values() if one.line == line), key=lambda one: one.x)
    if len(along) < 2:
        return _unjudged(ALONE, along)
    falls = [b.label for a, b in pairwise(along) if _more(a.accuracy, b.accuracy)]
    fell = [f"falls at {', '.join(falls)}"] if falls else []
    return not falls, "; ".join([*(one.text for one in along), *fell])


def ahead(key: str, found: Curves) -> Verdict:
    """Accuracy is higher and training loss lower than any other's; judged only if the curve and another were run."""
    if key not in found or len(found) < 2:
        return _unjudged(ALONE if key in found else "the claim's own curve was left out", found.values())
    own, others = found[key], [one for name, one in found.items() if name != key]
    holds = all(_more(own.accuracy, one.accuracy) and _more(one.train_loss, own.train_loss) for one in others)
    return holds, _with_losses(found.values())


def _unjudged(why: str, found: Iterable[Found]) -> Verdict:
    return None, "; ".join([why, *(one.text for one in found)])


def _more(a: Spread, b: Spread) -> bool:
    return a.mean - b.mean > a.error + b.error


def _with_losses(found: Iterable[Found]) -> str:
    return "; ".join(one.with_loss for one in found)
