"""Which messages no honest site can have sent, and which are far outside what other sites send.

A message has a model, Δx/Δw. It is measured by its distance from the receiver's own model x/w, in steps: one step moves
x by about γ (C + σ √d), which all sites know from the agreement. Everything here is computed from messages that were
released, so a distance or a weight reveals no more than they do.

A message is taken as a whole, or its link is stopped. If a part of it were clipped or dropped, Σx would not be the sum
of what all sites sent, and pairwise noise would not cancel.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

from privsgp.sites.protocol.frames import Frame, Rejected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.sites.agreement import Agreement
    from privsgp.transport.link import Increment

FAR = 100.0  # times the other links' median distance, or steps if that is more: beyond it a site warns
_ROUNDING = 1e-6
_WHO = "That member, or one whose messages it took, does not follow the agreement"


class Arrival(NamedTuple):
    """A message without its body, its measures, and the weights of both ends of its link."""

    head: Frame
    increment: Increment
    w: float  # of the source; of a message of several steps, the most that it can have been
    own: float

    @property
    def source(self) -> int:
        """The node that sent it."""
        return self.head.header.source

    @property
    def step(self) -> int:
        """The step that it is of."""
        return self.head.header.step

    @property
    def far(self) -> float:
        """How far its model is from the receiver's, times the smaller of the two weights.

        A step moves x/w by its length divided by w, and w is small while much of it is on its way. If the receiver's
        own model has gone far away, the distance says nothing of the message, and its norm counts instead.
        """
        return min(self.increment.distance, self.increment.norm) * min(self.w, self.own)

    def rejected(self, kind: str, what: str) -> Rejected:
        """Return what is said of it, with the header that its sender signed."""
        return Rejected(kind, f"{what}. {_WHO}", self.head.evidence())


class Outliers:
    """Judges the messages that arrive at one site."""

    def __init__(self, agreement: Agreement, node: int) -> None:
        self.agreement, self.node, self.nodes = agreement, node, len(agreement.roster)
        self._newest: dict[int, Arrival] = {}  # by source

    def arrival(self, frame: Frame, after: int, increment: Increment, own: float) -> Arrival:
        """Return a message as it is judged: after the one of a step, at a receiver of the weight `own`."""
        most = self.agreement.most_weight((frame.header.source, self.node), after, frame.header.step)
        return Arrival(Frame(frame.header, frame.signature, b""), increment, self.nodes * increment.weight / most, own)

    def refused(self, arrived: Sequence[Arrival], total: float) -> tuple[Arrival, Rejected] | None:
        """Return a message that must not be taken, and why; None where there is none.

        `total` is the weight that this site would hold. It is at most n: what other sites hold is not negative.
        """
        most, unit = self.agreement.limits.max_update, self.agreement.step_norm
        for one in arrived:
            if most is not None and unit is not None and one.far > most * unit:
                return one, one.rejected("update", f"{self._described(one)}. The agreement has max_update = {most:g}")
        if arrived and total > self.nodes * (1 + _ROUNDING):
            one = max(arrived, key=lambda one: one.increment.weight)
            what = f"with the weight {one.increment.weight:g} of its message of step {one.step} this site would hold"
            return one, one.rejected("weight", f"{what} {total:g}, and all sites together hold {self.nodes}")
        return None

    def warned(self, taken: Sequence[Arrival]) -> list[tuple[Arrival, Rejected]]:
        """Keep the messages that a step takes; return those to warn of."""
        self._newest |= {one.source: one for one in taken}
        found = []
        for one in taken:
            if one.far > FAR * (usual := self._usual(one.source)):
                what = f"{self._described(one)}, which is {one.far / usual:.3g} times the usual distance"
                found.append((one, one.rejected("outlier", what)))
        return found

    def _usual(self, source: int) -> float:
        """Return how far the other sources' messages are, by the median, or the length of a step if that is more."""
        others = [one.far for j, one in self._newest.items() if j != source]
        known = [statistics.median_low(others)] if others else []
        return max([*known, self.agreement.step_norm or 0.0]) or math.inf

    def _described(self, one: Arrival) -> str:
        unit = self.agreement.step_norm
        steps = f"{one.far:.3g}" if unit is None else f"{one.far / unit:.3g} steps"
        norm = f"the model in its message of step {one.step} has the norm {one.increment.norm:.3g}"
        return f"{norm} and is {steps} away from this site's"
