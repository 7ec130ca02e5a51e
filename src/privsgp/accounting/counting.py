"""How one node's releases are counted: a single run, the paper's formula, or a run after others on the same data.

One budget for several runs on the same data, each chosen after seeing the ones before.

Composition theorems for (ε, δ) assume that all parameters were fixed ahead. A Rényi filter does not: fix one order α
in advance, add up what each run spends at that order, and stop before the sum exceeds what (ε, δ) allows there
(Feldman and Zrnic 2021). The order follows from the budget of the *first* run alone, so it is fixed before any data is
touched, whatever budget later runs are given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privsgp.accounting import accountant, rdp
from privsgp.accounting.mechanisms import Accountant, Mechanism, Relation, described, nominal
from privsgp.accounting.pld import added
from privsgp.accounting.sampler_cost import SHARE, Cost
from privsgp.accounting.shown import up
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from privsgp.accounting.ledger import Segment


C2 = 0.3724  # of the published formula: repeats the paper's ResNet-18 numbers


@dataclass(frozen=True)
class Count:
    """How ε follows from noise, for one node and a run whose parameters were fixed ahead.

    `paper` is (algorithm, K, c₂) where the noise is the one that the algorithm's paper asks for; its true ε is still
    certified. `after` is (filter, cumulants spent) where the run was chosen with the results of others in hand.
    """

    relation: Relation
    paper: tuple[str, int, float] | None = None
    after: tuple[Filter, float] | None = None

    def epsilon(self, mechanism: Mechanism, releases: int, delta: float) -> float:
        """Return the certified ε of everything this node has released, in the runs before too."""
        if self.after is None:
            return accountant.epsilon(mechanism, releases, delta, self.relation).epsilon
        shared, spent = self.after
        return shared.epsilon_of(spent + shared.cost(mechanism, releases, self.relation))


def count(kind: Accountant, relation: Relation, algorithm: str, steps: int, c2: float) -> Count:
    """Return how an accountant counts a run on its own."""
    return Count(relation, (algorithm, steps, c2) if nominal(kind) else None)


_RUNS = 4096


@dataclass(frozen=True)
class Filter:
    """The cap of (ε, δ) at one order on the sum of cumulants (α − 1) D_α.

    `first` is the ε of the first run's budget; it decides the order.
    """

    epsilon: float
    delta: float
    first: float

    def __post_init__(self) -> None:
        if self.cap <= 0:
            raise Refused(
                f"(ε, δ) = ({up(self.epsilon)}, {up(self.delta)}) over several runs",
                "a Rényi filter has no room for so small a budget: use a new budget, or a larger δ",
            )

    @classmethod
    def over(cls, segments: Sequence[Segment], epsilon: float, delta: float) -> Filter:
        """Return the filter for going on under (ε, δ) after the runs of a ledger."""
        opened = segments[0].header.budget
        if opened is None:
            raise Refused(
                "the ledger's first run named no budget (its noise was fixed by hand)",
                "a filter needs a budget that was fixed before the data was first used: start with a new ledger",
            )
        if opened["delta"] != delta:
            raise Refused(f"privacy.delta = {delta}, the ledger began with {opened['delta']}", "keep to its δ")
        return cls(epsilon, delta, opened["epsilon"])

    @property
    def place(self) -> int:
        """The index of the filter's order in rdp.ORDERS: the one that allows the most Gaussian releases."""
        return int(np.argmax(_caps(self.first, self.delta) / (rdp.ORDERS * (rdp.ORDERS - 1))))

    @property
    def order(self) -> float:
        """α."""
        return float(rdp.ORDERS[self.place])

    @property
    def cap(self) -> float:
        """The largest sum of cumulants at α that (ε, δ) allows."""
        return float(_caps(self.epsilon, self.delta)[self.place])

    def cost(self, mechanism: Mechanism, releases: int, relation: Relation) -> float:
        """Return what so many releases spend at α, with what their sampler costs."""
        if not releases:
            return 0.0
        ideal = float(accountant.renyi(mechanism, releases, relation).cumulants[self.place])
        return ideal + self._sampler(accountant.sampler_cost(mechanism, releases, relation))

    def _sampler(self, cost: Cost) -> float:
        """Return what computed noise adds to a sum of cumulants: 2ζ to ε, and a factor below 1 to δ.

        With a = Σζ and t = Σ tail/δ over n runs, e^a (e^(−charges) + t + n 2⁻²⁰) ≤ 1 has to hold. What is charged stays
        below the cap, so t ≤ (cap − a) / (2 max(1, cap)) < ½, and a < ¼ for n ≤ 4096: there it does.
        """
        if not cost.variance:
            return 0.0
        tail = cost.tail_at(self.epsilon)
        zeta = cost.ratio(self.delta, self.epsilon)
        if zeta > SHARE - 2.0**-19:
            return math.inf
        return (self.order - 1) * 2 * zeta - math.log1p(-SHARE) + 2 * max(1.0, self.cap) * tail / self.delta

    def spent(self, segments: Sequence[Segment]) -> float:
        """Return what the runs in a ledger have spent at α."""
        if len(segments) >= _RUNS:
            raise Refused(f"a ledger of {len(segments)} runs", f"{_RUNS} at most are covered by what each is charged")
        return added(self.cost(described(s.header.mechanism), s.charged, s.header.relation) for s in segments)

    def epsilon_of(self, cumulant: float) -> float:
        """Return the ε at this δ that a sum of cumulants at α stands for.

        Guarantee: valid for any number of runs, each chosen after the ones before.
        Assumes: the order was fixed before the first of them, and the sum never exceeded the cap.
        """
        if not cumulant:
            return 0.0
        alpha = self.order
        return max(0.0, (cumulant - math.log(self.delta * alpha)) / (alpha - 1) + math.log1p(-1 / alpha))


def _caps(epsilon: float, delta: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the largest cumulants that give ε at δ (Canonne, Kamath and Steinke 2020, Proposition 12), per order."""
    return (rdp.ORDERS - 1) * (epsilon - np.log1p(-1 / rdp.ORDERS)) + np.log(delta * rdp.ORDERS)
