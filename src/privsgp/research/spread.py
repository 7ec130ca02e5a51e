"""One number of several runs: its mean, how far the runs lie apart, and how well the mean is known.

It stands alone: the command line counts without torch.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Spread:
    """One number of each run."""

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
