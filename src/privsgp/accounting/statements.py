"""What ledgers say a node has spent: every line checked, every ε computed again from what was counted."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privsgp.accounting import accountant, ledger
from privsgp.accounting.counting import Filter
from privsgp.accounting.mechanisms import described
from privsgp.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from privsgp.accounting.ledger import Segment
    from privsgp.accounting.mechanisms import Relation

DELTA = 1e-5  # where a run fixed σ and named no budget, ε is told at this δ


@dataclass(frozen=True)
class Statement:
    """One node's account: `epsilon` is certified at `delta`, infinite where no finite bound is known."""

    node: int
    runs: int
    releases: int
    epsilon: float
    delta: float
    budget: float | None
    relation: str
    simulation: bool
    complete: bool
    aggregated: int = 1  # so many nodes' messages are seen as one sum only
    honest: int = 0  # where nodes share noise, ε holds if so many of them are honest; 0: whoever is

    @property
    def above(self) -> bool:
        """Whether more was spent than the budget of the last run allows; rounding is no spending."""
        return self.budget is not None and self.epsilon > self.budget * (1 + 1e-9)

    def to_json(self) -> dict[str, Any]:
        """Return plain values; "no finite bound" is None."""
        values = dataclasses.asdict(self)
        return values | {"epsilon": self.epsilon if math.isfinite(self.epsilon) else None}


def statements(place: Path) -> list[Statement]:
    """Return one statement for every ledger of a run folder, a ledger folder or a single file, in node order.

    Guarantee: ε covers at least everything the node sent: what was reserved and not returned counts as spent.
    Assumes: the files are complete up to their last line (a copy of `head` elsewhere would show a cut end).
    """
    found = [_statement(ledger.read(path)) for path in _files(place)]
    return sorted(found, key=lambda statement: statement.node)


def _files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    files = [*place.glob("node-*.jsonl"), *place.glob("ledger/node-*.jsonl")]
    if not files:
        raise Refused(f"no ledger in {place}", "name a run folder that has ledger/node-<i>.jsonl")
    return files


def _statement(segments: Sequence[Segment]) -> Statement:
    if not segments:
        raise Refused("a ledger without a single complete line", "nothing was spent from it")
    last = segments[-1].header
    budget = last.budget
    delta = DELTA if budget is None else budget["delta"]
    return Statement(
        node=last.node,
        runs=len(segments),
        releases=sum(segment.charged for segment in segments),
        epsilon=_epsilon(segments, delta),
        delta=delta,
        budget=None if budget is None else budget["epsilon"],
        relation=last.relation,
        simulation=any(segment.header.simulation for segment in segments),
        complete=all(segment.closed for segment in segments),
        aggregated=max(segment.header.mechanism.get("aggregated", 1) for segment in segments),
        honest=max(segment.header.mechanism.get("honest", 0) for segment in segments),
    )


def _epsilon(segments: Sequence[Segment], delta: float) -> float:
    """One run: the certified accountant. Several, each chosen after the others: the filter of their common budget."""
    spent = [segment for segment in segments if segment.charged]
    if not spent:
        return 0.0
    if len({segment.header.relation for segment in segments}) > 1:
        return math.inf  # no ε of one relation covers what was spent under another
    last = spent[-1].header
    relation: Relation = "replace-one" if last.relation == "replace-one" else "zero-out"
    if len(spent) == 1:
        return accountant.epsilon(described(last.mechanism), spent[0].charged, delta, relation).epsilon
    if last.budget is None or segments[0].header.budget is None:
        return math.inf  # several runs without a common budget: no filter was fixed ahead
    shared = Filter.over(segments, last.budget["epsilon"], delta)
    return shared.epsilon_of(shared.spent(spent))
