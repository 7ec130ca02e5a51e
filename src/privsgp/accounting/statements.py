"""Statements of spending from ledgers: every line is checked, and every ε recomputed."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from privsgp.accounting import accountant, ledger
from privsgp.accounting.book import Book
from privsgp.accounting.chain import lost
from privsgp.accounting.mechanisms import described
from privsgp.errors import Refused
from privsgp.files import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from privsgp.accounting.chain import Mark
    from privsgp.accounting.ledger import Segment
    from privsgp.accounting.mechanisms import Mechanism, Relation

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
    site: str = ""  # what people call the node
    unit: str = "one record"  # what ε protects
    by_sites: tuple[tuple[int, float], ...] = ()  # ε of a person by the number of sites that hold rows of it

    @property
    def name(self) -> str:
        """The name of the node in a sentence."""
        return f"node {self.node}" + (f" ({self.site})" if self.site else "")

    @property
    def above(self) -> bool:
        """Whether more was spent than the budget of the last run allows; rounding is no spending."""
        return self.budget is not None and self.epsilon > self.budget * (1 + 1e-9)

    def to_json(self) -> dict[str, Any]:
        """Return plain values; "no finite bound" is None."""
        by_sites = [[sites, finite(epsilon)] for sites, epsilon in self.by_sites]
        return dataclasses.asdict(self) | {"epsilon": finite(self.epsilon), "by_sites": by_sites}


def statements(path: Path) -> list[Statement]:
    """Return one statement for every ledger of a run folder, a ledger folder or a single file, in node order.

    Guarantee: ε covers at least everything the node sent: what was reserved and not returned counts as spent.
    Assumes: the files are complete up to their last line. A cut end, or a lost file, is refused if this user's budget
    book knows more.
    """
    files, book = _files(path), Book()
    known = lru_cache(book.marks)
    found = [_read(path, known) for path in files]
    if not path.is_file():
        nodes, ledgers = [segments[-1].header.node for segments in found], files[0].parent
        if (gone := book.missing(found[0][0].header.run, ledgers.parent, nodes)) is not None:
            raise lost(ledgers / f"node-{gone[0]}.jsonl", gone[1])
    return sorted(map(_statement, found), key=lambda statement: statement.node)


def _read(path: Path, known: Callable[[str], dict[int, list[Mark]]]) -> list[Segment]:
    header = ledger.first(path)
    if header is None:
        raise Refused(f"{path} has not a single complete line", "remove it: nothing was spent from it")
    return ledger.read(path, known(header.run).get(header.node, []))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = [*path.glob("node-*.jsonl"), *path.glob("ledger/node-*.jsonl")]
    if not files:
        raise Refused(f"no ledger in {path}", "name a run folder that has ledger/node-<i>.jsonl")
    return files


def _statement(segments: Sequence[Segment]) -> Statement:
    last, several = segments[-1].header, len(segments) > 1
    return Statement(
        node=last.node,
        runs=len(segments),
        releases=sum(segment.charged for segment in segments),
        epsilon=_epsilon(segments),
        delta=math.fsum(map(_delta, segments)),
        budget=None if last.budget is None or several else last.budget["epsilon"],
        relation=last.relation,
        simulation=any(segment.header.simulation for segment in segments),
        complete=all(segment.closed for segment in segments),
        aggregated=max(segment.header.mechanism.get("aggregated", 1) for segment in segments),
        honest=max(segment.header.mechanism.get("honest", 0) for segment in segments),
        site=last.site,
        unit=" and ".join(sorted({_unit(segment) for segment in segments})),
        by_sites=() if several else tuple(
            by_sites(described(last.mechanism), segments[0].charged, _delta(segments[0]), last.relation)
        ),
    )  # fmt: skip


def by_sites(mechanism: Mechanism, releases: int, delta: float, relation: Relation) -> list[tuple[int, float]]:
    """Return ε of a person at 1, 2, 3 and the counted number of sites like this one; nothing for records."""
    if (person := mechanism.person) is None:
        return []
    counted = sorted({1, 2, 3, person.sites})
    each = ((sites, dataclasses.replace(person, sites=sites)) for sites in counted)
    return [(sites, accountant.epsilon(one, releases, delta, relation).epsilon) for sites, one in each]


def _unit(segment: Segment) -> str:
    person = described(segment.header.mechanism).person
    return Statement.unit if person is None else person.unit


def _delta(segment: Segment) -> float:
    budget = segment.header.budget
    return DELTA if budget is None else budget["delta"]


def _epsilon(segments: Sequence[Segment]) -> float:
    """Return the certified ε. Release 1.0.0rc1 could write several runs into one ledger: their ε and δ add up."""
    if len({(segment.header.relation, _unit(segment)) for segment in segments}) > 1:
        return math.inf  # no ε of one relation, or unit of privacy, covers what was spent under another
    if len(segments) > 1 and any(segment.header.budget is None for segment in segments):
        return math.inf  # a later run may have been chosen by what the ones before showed
    each = (
        accountant.epsilon(described(s.header.mechanism), s.charged, _delta(s), s.header.relation).epsilon
        for s in segments
    )
    return math.fsum(each)
