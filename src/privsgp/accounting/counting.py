"""How one node's releases are counted: a single run, the paper's formula, or a run after others on the same data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, get_args

from privsgp.accounting import accountant, calibration, published
from privsgp.accounting.accountant import Accountant

if TYPE_CHECKING:
    from privsgp.accounting.filter import Filter
    from privsgp.accounting.mechanisms import Mechanism, Relation

ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)


def nominal(kind: str) -> bool:
    """Tell whether the ε that an accountant turns into noise is a paper's: no guarantee, and shown as none."""
    return kind == "published"


class Count(Protocol):
    """ε from noise and noise from ε, for one node."""

    def epsilon(self, mechanism: Mechanism, releases: int, delta: float) -> float:
        """Return the certified ε of everything this node has released."""

    def sigma(self, mechanism: Mechanism, releases: int, epsilon: float, delta: float) -> float:
        """Return the noise that keeps so many releases within the budget."""


@dataclass(frozen=True)
class Certified:
    """A run on its own, with parameters fixed ahead."""

    relation: Relation

    def epsilon(self, mechanism: Mechanism, releases: int, delta: float) -> float:
        """Count with the certified accountant."""
        return accountant.epsilon(mechanism, releases, delta, self.relation).epsilon

    def sigma(self, mechanism: Mechanism, releases: int, epsilon: float, delta: float) -> float:
        """Calibrate with the certified accountant."""
        return calibration.sigma(mechanism, releases, epsilon, delta, self.relation)


@dataclass(frozen=True)
class Published(Certified):
    """Noise from an algorithm's paper, for K steps; what it really gives is still certified."""

    algorithm: str
    steps: int
    c2: float

    def sigma(self, mechanism: Mechanism, releases: int, epsilon: float, delta: float) -> float:
        """Calibrate as published; the spare releases are not part of it."""
        del releases
        return published.sigma(mechanism, self.steps, epsilon, delta, self.c2, self.algorithm)


def count(kind: Accountant, relation: Relation, algorithm: str, steps: int, c2: float) -> Certified:
    """Return how an accountant counts a run on its own."""
    return Published(relation, algorithm, steps, c2) if nominal(kind) else Certified(relation)


@dataclass(frozen=True)
class After:
    """A run after others, chosen with their results in hand: a Rényi filter counts them together."""

    filter: Filter
    spent: float  # cumulants at the filter's order
    relation: Relation

    def epsilon(self, mechanism: Mechanism, releases: int, delta: float) -> float:
        """Return the ε of all runs together."""
        del delta
        return self.filter.epsilon_of(self.spent + self.filter.cost(mechanism, releases, self.relation))

    def sigma(self, mechanism: Mechanism, releases: int, epsilon: float, delta: float) -> float:
        """Return the noise with which this run fits into what the others have left."""
        del epsilon, delta
        return self.filter.sigma(mechanism, releases, self.relation, self.spent)
